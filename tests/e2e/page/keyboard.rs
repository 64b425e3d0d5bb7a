//! A force release by keys alone, from the link to its outcome.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::browser::{DOWN, ENTER, ESCAPE, TAB};
use super::{open, until_row};
use crate::harness::{Namespace, Operator};
use crate::support::{audit_lines_of, grant_admin_rights, sidecar, until_described, with_operator};

const REASON: &str = "the export hangs, INC-4711";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn keys_alone_suffice_to_force_a_release_on_record() -> Result<()> {
    let (cluster, operator) = with_operator().await?;
    let namespace = cluster.namespace("page-keys").await?;
    grant_admin_rights(&namespace).await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    for lock in ["import", "nightly-audit"] {
        a.acquire_for_long(lock).await?.granted()?;
    }
    let app = a.curl_hold(&json!({"resource": "nightly-export", "ownerId": "app"}))?;
    app.until("acquired").await?;
    let (_served, browser) = open(&namespace, Some("jane")).await?;
    until_row(&browser, &["import"]).await?;

    // The second of the two that match.
    browser.keys(&format!("/nightly{DOWN}")).await?;
    let focused = "return document.activeElement.dataset.key ?? ''";
    let first = format!("{}/nightly-audit", namespace.name);
    let in_first = format!("{focused} === '{first}'");
    browser.until("the focus on a row", &in_first).await?;
    browser.keys(DOWN).await?;
    let second = format!("{}/nightly-export", namespace.name);
    ensure!(browser.run(focused).await? == *second);
    browser.keys(ENTER).await?;
    let opened = "return text('lock-heading') === 'nightly-export' && seen('force')";
    browser.until("the lock's view", opened).await?;

    browser.tab_to("force").await?;
    browser.keys(ENTER).await?;
    let reason = "return document.activeElement === seen('reason')";
    browser.until("the focus on the reason", reason).await?;
    // The name is missing, so nothing is requested.
    browser.keys(&format!("{REASON}{TAB}nightly")).await?;
    browser.tab_to("submit").await?;
    browser.keys(ENTER).await?;
    let refused = "return seen('confirm-name').ariaInvalid ?? seen('confirm-name').getAttribute('aria-invalid')";
    browser.until("the name to be refused", refused).await?;
    ensure!(app.events()?.iter().all(|event| event.name != "lost"));
    browser.keys(&format!("-export{ENTER}")).await?;

    let lost = app.until("lost").await?;
    ensure!(lost.data["reason"] == "force_released", "{lost:?}");
    let outcome = browser
        .until(
            "the outcome",
            "return text('outcome').includes('was released') && text('outcome')",
        )
        .await?;
    let outcome = outcome.as_str().context("a text")?;
    for word in ["nightly-export", "ForceReleased", "by jane", REASON] {
        ensure!(outcome.contains(word), "no {word} in {outcome}");
    }
    is_on_record(&namespace, operator).await?;

    // Back to the row that was opened.
    browser.keys(ESCAPE).await?;
    let back = format!("{focused} === '{second}'");
    browser
        .until("the focus on the same row", &back)
        .await
        .map(drop)
}

/// The person and the reason are in the audit log, and in the Event.
async fn is_on_record(namespace: &Namespace, operator: &Operator) -> Result<()> {
    let events = until_described(namespace, "nightly-export", "ForceReleased").await?;
    let events = events.join("\n");
    ensure!(
        events.contains("jane") && events.contains(REASON),
        "{events}"
    );
    let lines = audit_lines_of(namespace, operator);
    let line = lines.iter().find(|line| line["action"] == "force-release");
    let line = line.with_context(|| format!("no line: {lines:?}"))?;
    ensure!(line["actorId"] == "jane", "{line}");
    ensure!(line["reason"] == REASON, "{line}");
    Ok(())
}

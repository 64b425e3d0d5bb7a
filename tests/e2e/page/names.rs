//! Names that a tenant chose: each is shown as the text that it is.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::open;
use crate::harness::TakeOver;
use crate::support::{Pair, bind, until_queued};

/// What would run or hide something, if it was read as HTML or by a script.
const RESOURCE: &str = r#"<img src=x onerror="window.hostile=1">'"`${window.hostile=2}"#;
const OWNER: &str =
    "<script>window.hostile=3</script>&lt;b&gt;</title><svg/onload=window.hostile=4>";
const REASON: &str = "<iframe srcdoc='<script>parent.hostile=5</script>'></iframe>";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn names_that_look_like_html_are_shown_as_text() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("page-names", TakeOver::Peer, 60).await?;
    bind(&namespace, "jane", ("ClusterRole", "leasehold-lock-admin")).await?;
    let body = json!({"resource": RESOURCE, "ownerId": OWNER, "ttlSeconds": 3600});
    let mut waiting = body.clone();
    waiting["waitSeconds"] = json!(240);
    a.acquire_with(&body).await?.granted()?;
    let _waiting = b.wait_with(&waiting).await?;
    let locks = namespace.all("distributedlocks").await?;
    let name = locks[0]["metadata"]["name"].as_str().context("a name")?;
    until_queued(&namespace, name, 1).await?;

    let (_served, browser) = open(&namespace, Some("jane")).await?;
    let has = |hook: &str, words: &str| -> Result<String> {
        let words = serde_json::to_string(words)?;
        Ok(format!(
            "return seen('{hook}')?.textContent.includes({words})"
        ))
    };
    browser
        .until("the resource", &has("row", RESOURCE)?)
        .await?;
    browser.until("the owner", &has("row", OWNER)?).await?;
    browser.click("[data-testid=row]").await?;
    let heading = has("lock-heading", RESOURCE)?;
    browser.until("the heading", &heading).await?;
    let holder = serde_json::to_string(OWNER)?;
    let holder = format!("return document.getElementById('main').innerText.includes({holder})");
    browser
        .until("the owner in the lock's view", &holder)
        .await?;
    browser
        .until(
            "a button",
            "return seen('ask') && !seen('ask').ariaDisabled",
        )
        .await?;
    browser.click("[data-testid=ask]").await?;
    browser
        .until("the preview", &has("dialog", RESOURCE)?)
        .await?;
    browser.keys(REASON).await?;
    browser.click("[data-testid=submit]").await?;
    browser
        .until("that it was requested", "return text('outcome')")
        .await?;
    browser
        .until(
            "the reason",
            "return document.getElementById('main').innerText.includes('<iframe srcdoc=')",
        )
        .await?;
    browser.click("nav a[href='#/waits']").await?;
    browser.until("the graph", &has("graph", RESOURCE)?).await?;
    browser.until("the list", &has("wait", RESOURCE)?).await?;
    browser.click("nav a[href='#/hour']").await?;
    let hour = has("hour", RESOURCE)?;
    browser.until("the last hour", &hour).await?;

    ensure!(browser.run("return window.hostile").await?.is_null());
    let made = "return document.querySelectorAll('#main img, #main iframe, #main script').length";
    ensure!(browser.run(made).await? == 0);
    let log = browser.log().await?;
    ensure!(log.is_empty(), "{log:?}");
    Ok(())
}

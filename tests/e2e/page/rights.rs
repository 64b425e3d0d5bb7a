//! Rights that a person lacks: the page names them, and continues when they are granted.

use anyhow::{Context, Result, ensure};

use super::browser::ENTER;
use super::{accessibility, open, until_row};
use crate::harness::TakeOver;
use crate::support::{Pair, bind};

const VIEW: (&str, &str) = ("ClusterRole", "leasehold-view");

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn release_is_disabled_with_the_missing_right_named() -> Result<()> {
    let Pair { namespace, a, .. } = Pair::start("page-view", TakeOver::Peer, 60).await?;
    bind(&namespace, "vera", VIEW).await?;
    a.acquire_for_long("nightly-report").await?.granted()?;
    let (_served, browser) = open(&namespace, Some("vera")).await?;
    until_row(&browser, &["nightly-report"]).await?;
    browser.click("[data-testid=row]").await?;
    let missing = browser
        .until("the missing right", "return text('missing-right')")
        .await?;
    let missing = missing.as_str().context("a text")?;
    for word in [
        "patch distributedlocks",
        &namespace.name,
        "leasehold-lock-admin",
    ] {
        ensure!(missing.contains(word), "no {word} in {missing}");
    }
    for button in ["ask", "force"] {
        let disabled = format!(
            "const button = seen('{button}');
             const why = document.getElementById(button.getAttribute('aria-describedby'));
             return button.ariaDisabled === 'true' && why === seen('missing-right')"
        );
        ensure!(browser.run(&disabled).await? == true, "{button}");
        browser.tab_to(button).await?;
        browser.keys(ENTER).await?;
        ensure!(
            browser.run("return !seen('dialog')").await? == true,
            "{button}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn table_is_refused_until_the_right_to_list_is_granted() -> Result<()> {
    let Pair { namespace, a, .. } = Pair::start("page-refused", TakeOver::Peer, 60).await?;
    a.acquire_for_long("nightly-report").await?.granted()?;
    let (_served, browser) = open(&namespace, Some("nick")).await?;
    let refused = browser.until("a refusal", "return text('refused')").await?;
    let refused = refused.as_str().context("a text")?;
    for word in ["list distributedlocks", &namespace.name, "leasehold-view"] {
        ensure!(refused.contains(word), "no {word} in {refused}");
    }
    ensure!(browser.run("return !seen('grid')").await? == true);
    accessibility::check(&browser, "the refusal").await?;

    browser.run("window.loadedOnce = true").await?;
    bind(&namespace, "nick", VIEW).await?;
    until_row(&browser, &["nightly-report"]).await?;
    let continued = "return !seen('refused') && window.loadedOnce";
    browser.until("the same page", continued).await.map(drop)
}

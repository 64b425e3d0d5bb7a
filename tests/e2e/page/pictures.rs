//! A walk through all views of a small world: what axe-core finds in each, and a picture of each in `target/page`.
//! `LEASEHOLD_REGENERATE=1` replaces those in docs/images.

use anyhow::{Result, ensure};

use super::browser::{Browser, ENTER, Scheme};
use super::world::World;
use super::{Served, accessibility, files, until_row};
use crate::harness::repository;

/// The pictures that the documentation has.
const KEPT: [(&str, Scheme); 4] = [
    ("locks", Scheme::Light),
    ("lock", Scheme::Light),
    ("force", Scheme::Light),
    ("waits", Scheme::Dark),
];

/// Shows another view, without a mouse that would stay over a link.
async fn go(browser: &Browser, hash: &str) -> Result<()> {
    let go = "location.hash = arguments[0]";
    browser.run_with(go, &[hash.into()]).await.map(drop)
}

/// Checks a view, and takes its picture, light and dark.
async fn visit(browser: &Browser, view: &str) -> Result<()> {
    accessibility::check(browser, view).await?;
    for scheme in [Scheme::Dark, Scheme::Light] {
        browser.prefer(scheme).await?;
        let name = match scheme {
            Scheme::Light => format!("ui-{view}.png"),
            Scheme::Dark => format!("ui-{view}-dark.png"),
        };
        let file = files().join(&name);
        browser.picture(&file).await?;
        if KEPT.contains(&(view, scheme)) && std::env::var_os("LEASEHOLD_REGENERATE").is_some() {
            std::fs::create_dir_all(repository("docs/images"))?;
            std::fs::copy(&file, repository("docs/images").join(name))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn axe_finds_nothing_serious_in_any_view() -> Result<()> {
    let world = World::start().await?;
    let flags = ["-A", "--as", "jane", "--as-group", "system:masters"];
    let served = Served::start_with(&world.cluster, &flags).await?;
    let browser = served.open().await?;
    until_row(&browser, &["nightly-report", "worker-0", "live"]).await?;
    visit(&browser, "locks").await?;
    browser.keys("/no-such-lock").await?;
    let none = "return document.body.innerText.includes('begins with “no-such-lock”')";
    browser.until("no rows", none).await?;
    visit(&browser, "none").await?;

    go(&browser, "#/lock/reports/nightly-report").await?;
    let shown = "return seen('force') && !seen('force').ariaDisabled && document.body.innerText.includes('1. ')";
    browser.until("the lock", shown).await?;
    visit(&browser, "lock").await?;
    dialogs(&browser).await?;

    go(&browser, "#/waits").await?;
    let deadlock = "return hooks('wait').filter((one) => one.innerText.includes('Possible deadlock')).length === 2";
    browser.until("a deadlock of two", deadlock).await?;
    let waits = browser.run("return hooks('wait').length").await?;
    ensure!(waits == 4, "{waits} waits");
    visit(&browser, "waits").await?;

    for lock in ["import", "import", "index/rebuild"] {
        world.use_once(lock).await?;
    }
    go(&browser, "#/hour").await?;
    let hour = "return text('hour').includes('import') && text('hour').includes('nightly-report')";
    browser.until("the last hour", hour).await?;
    visit(&browser, "hour").await?;
    let log = browser.log().await?;
    ensure!(log.is_empty(), "{log:?}");

    // A picture without a text, so that the check is known to find something.
    browser
        .run("document.getElementById('main').append(new Image())")
        .await?;
    let found = accessibility::check(&browser, "a changed view").await;
    ensure!(found.is_err_and(|error| format!("{error}").contains("image-alt")));
    Ok(())
}

/// The two dialogs of a lock, with what they refuse, and the outcome of a request.
async fn dialogs(browser: &Browser) -> Result<()> {
    for button in ["ask", "force"] {
        browser.click(&format!("[data-testid={button}]")).await?;
        browser.until("a dialog", "return text('dialog')").await?;
        visit(browser, button).await?;
        browser.keys(" ").await?;
        browser.click("[data-testid=submit]").await?;
        let refused = "return seen('reason').getAttribute('aria-invalid') === 'true'";
        browser
            .until("a blank reason to be refused", refused)
            .await?;
        visit(browser, &format!("{button}-refused")).await?;
        browser.click("[data-testid=cancel]").await?;
        browser.until("no dialog", "return !seen('dialog')").await?;
    }
    browser.click("[data-testid=ask]").await?;
    browser.until("a dialog", "return text('dialog')").await?;
    browser.keys("the database is in maintenance").await?;
    browser.tab_to("submit").await?;
    browser.keys(ENTER).await?;
    browser
        .until("that it was requested", "return text('outcome')")
        .await?;
    visit(browser, "asked").await
}

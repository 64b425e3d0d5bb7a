//! The table of locks: it follows them, and finds them by a prefix and a namespace.

use anyhow::{Context, Result};

use super::{Served, open, until_row};
use crate::harness::{TakeOver, now};
use crate::support::{Pair, complete, sidecar, tell};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn table_follows_locks_without_a_reload() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("page-live", TakeOver::Peer, 60).await?;
    a.acquire_for_long("nightly-report").await?.granted()?;
    let (_served, browser) = open(&namespace, None).await?;
    until_row(&browser, &["nightly-report", "a", "live"]).await?;
    browser.run("window.loadedOnce = true").await?;

    let lease = b.acquire_for_long("ledger").await?.granted()?;
    let acquired = now();
    until_row(&browser, &["ledger", "b", "live"]).await?;
    let shown = now().since(acquired);
    let waiting = a.wait_for_long("ledger", 120).await?;
    let waits = "return row('ledger')?.querySelector('[data-column=WAITING]').innerText === '1'";
    browser.until("ledger to have a waiter", waits).await?;
    b.release_for_good(&lease.id).await?;
    let next = waiting.answer().await?.granted()?;
    let handed_over = now();
    let of_a = "return row('ledger')?.querySelector('[data-column=POD]').innerText === 'a'";
    browser.until("ledger to be pod a's", of_a).await?;
    let followed = now().since(handed_over);
    a.release_for_good(&next.id).await?;
    let released = now();
    let free = "return row('ledger')?.querySelector('[data-column=POD]').innerText === ''";
    browser.until("ledger to be free", free).await?;
    let freed = now().since(released);
    browser
        .until("the same page", "return window.loadedOnce")
        .await?;
    tell(&format!(
        "measured: the page showed an acquired lock after {shown:?}, a hand-over after {followed:?}, a release after \
         {freed:?}"
    ))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn prefix_and_namespace_filter_and_count_is_announced() -> Result<()> {
    let cluster = complete(TakeOver::Peer).await?;
    let [payments, reports] = [
        cluster.namespace("page-payments").await?,
        cluster.namespace("page-reports").await?,
    ];
    let of_payments = sidecar(&payments.pod("a").await?, 60).await?;
    let of_reports = sidecar(&reports.pod("b").await?, 60).await?;
    for lock in ["filtered-ledger", "filtered-refunds"] {
        of_payments.acquire_for_long(lock).await?.granted()?;
    }
    of_reports
        .acquire_for_long("filtered-ledger")
        .await?
        .granted()?;
    let served = Served::start_with(&cluster, &["-A"]).await?;
    let browser = served.open().await?;
    until_row(&browser, &[&reports.name, "filtered-ledger"]).await?;

    let rows = |count: usize| format!("return hooks('row').length === {count}");
    let announced = |words: &str| {
        format!(
            "return [...document.querySelectorAll('[role=status]')].some((one) => one.textContent === '{words}')"
        )
    };
    browser.keys("/filtered-").await?;
    browser.until("three rows", &rows(3)).await?;
    browser
        .until("their number", &announced("3 locks match"))
        .await?;
    browser.keys("ledger").await?;
    browser.until("two rows", &rows(2)).await?;
    let choose = "const select = seen('namespace');
        select.value = arguments[0];
        select.dispatchEvent(new Event('change', { bubbles: true }));
        return select.value";
    let arguments = [reports.name.as_str().into()];
    let chosen = browser.run_with(choose, &arguments).await?;
    chosen.as_str().context("a namespace of the list")?;
    browser.until("one row", &rows(1)).await?;
    until_row(&browser, &[&reports.name, "filtered-ledger"]).await?;
    let one = announced("1 lock matches");
    browser.until("its number", &one).await?;
    let matched = "return text('matched').startsWith('1 lock matches, of ')";
    browser.until("the number in sight", matched).await?;

    browser.keys("-none").await?;
    let says_so = "return document.body.innerText.includes('has a resource that begins with “filtered-ledger-none”')";
    browser.until("that none matches", says_so).await.map(drop)
}

//! Ten thousand locks: few rows are elements, the filter is fast, and the plugin stays small.

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

use super::browser::{BACKSPACE, Browser, END, ENTER, HOME};
use super::{open, until_row};
use crate::harness::{Cluster, Namespace, TakeOver, now};
use crate::support::{sidecar, tell};

const LOCKS: usize = 10_000;
/// The elements of a window of rows, with its margins.
const ROWS_MAX: u64 = 200;
/// What an optimized plugin may need.
const MEMORY_KIB: u64 = 100 * 1024;

/// Measures from the input to the frame that shows its rows: `arguments[0]` is their number.
const MEASURE: &str = "
    const count = arguments[0];
    const began = { at: 0 };
    const filter = seen('filter');
    filter.addEventListener('input', () => { began.at = performance.now(); }, { capture: true, once: true });
    window.filtered = 0;
    const observer = new MutationObserver(() => {
      if (!began.at || !text('matched').startsWith(`${count} lock`)) return;
      observer.disconnect();
      requestAnimationFrame(() => { window.filtered = performance.now() - began.at; });
    });
    observer.observe(document.body, { subtree: true, childList: true, characterData: true });
";

/// Creates free locks, as a person could.
async fn create(namespace: &Namespace) -> Result<()> {
    let created = (0..LOCKS).map(async |number| {
        let name = format!("shard-{number:05}");
        let lock = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
            "metadata": {"name": name}, "spec": {"resource": name}});
        namespace.create(&lock).await.map(drop)
    });
    stream::iter(created)
        .buffer_unordered(32)
        .try_collect()
        .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn ten_thousand_locks_are_filtered_with_few_elements() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("page-many").await?;
    let began = now();
    create(&namespace).await?;
    let created = now().since(began);
    let holder = sidecar(&namespace.pod("a").await?, 300).await?;
    holder.acquire_for_long("shard-07777").await?.granted()?;
    let began = now();
    let (served, browser) = open(&namespace, None).await?;
    let all = "return text('matched') === '10,000 locks'";
    browser.until("all locks to be counted", all).await?;
    let opened = now().since(began);

    let mut filtered = Vec::new();
    browser.keys("/shard-0").await?;
    for count in ["1,000", "100", "10", "1"] {
        browser.run_with(MEASURE, &[count.into()]).await?;
        browser.keys("7").await?;
        let what = "the filter to apply";
        let took = browser.until(what, "return window.filtered").await?;
        filtered.push(took.as_f64().context("milliseconds")?.round());
    }
    until_row(&browser, &["shard-07777", "a", "live"]).await?;
    scroll(&browser).await?;
    let peak = served.plugin.peak_rss_kib()?;
    tell(&format!(
        "measured: {LOCKS} locks, created in {created:?}, are in the page {opened:?} after the start of the plugin; \
         prefixes filter them within {filtered:?} ms; the plugin's memory was {} MiB at most",
        peak / 1024
    ))?;
    let is_optimized = std::env::var_os("LEASEHOLD_OPTIMIZED").is_some();
    ensure!(!is_optimized || peak < MEMORY_KIB, "{peak} KiB");
    Ok(())
}

/// From the first row to the last one.
async fn scroll(browser: &Browser) -> Result<()> {
    for _ in "shard-07777".chars() {
        browser.keys(BACKSPACE).await?;
    }
    let all = "return text('matched') === '10,000 locks'";
    browser.until("all locks again", all).await?;
    browser.keys(ENTER).await?;
    for (key, last) in [
        (END, "shard-09999"),
        (HOME, "shard-00000"),
        (END, "shard-09999"),
    ] {
        browser.keys(key).await?;
        let focused = format!("return document.activeElement.innerText.includes('{last}')");
        browser.until(last, &focused).await?;
        let rows = browser.run("return hooks('row').length").await?;
        let rows = rows.as_u64().context("a number")?;
        ensure!(rows < ROWS_MAX, "{rows} rows are elements");
    }
    Ok(())
}

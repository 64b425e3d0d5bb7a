//! The API server stops and returns while the page is open.

use anyhow::Result;

use super::{open, until_row};
use crate::harness::{Cluster, TakeOver, now};
use crate::support::{Pair, tell};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn last_locks_stay_with_a_banner_until_the_server_is_back() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "page-away", 300).await?;
    a.acquire_for_long("nightly-report").await?.granted()?;
    let (served, browser) = open(&namespace, None).await?;
    until_row(&browser, &["nightly-report", "a"]).await?;

    cluster.control_plane().stop_api_server().await?;
    let stopped = now();
    let says_so = "return text('banner').includes('What you see is the last known state')";
    browser.until("the banner", says_so).await?;
    let noticed = now().since(stopped);
    until_row(&browser, &["nightly-report", "a"]).await?;

    cluster.control_plane().start_api_server().await?;
    let started = now();
    browser
        .until("no banner", "return text('banner') === ''")
        .await?;
    let over = now().since(started);
    b.acquire_for_long("ledger").await?.granted()?;
    let acquired = now();
    until_row(&browser, &["ledger", "b"]).await?;
    let shown = now().since(acquired);

    // The plugin itself ends.
    drop(served);
    let says_so = "return text('banner').includes('The plugin does not answer')";
    browser.until("the other banner", says_so).await?;
    until_row(&browser, &["ledger", "b"]).await?;
    tell(&format!(
        "measured: the banner came {noticed:?} after the API server had stopped and went {over:?} after it was ready; a \
         lock acquired then was shown after {shown:?}"
    ))
}

//! Which pods wait for which: the list beside the graph.

use anyhow::Result;

use super::open;
use crate::harness::TakeOver;
use crate::support::{Pair, until_queued};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a browser: make page"]
async fn possible_deadlock_of_two_pods_is_listed_while_it_lasts() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("page-waits", TakeOver::Peer, 60).await?;
    a.acquire_for_long("accounts").await?.granted()?;
    b.acquire_for_long("refunds").await?.granted()?;
    let _of_a = a.wait_for_long("refunds", 240).await?;
    let of_b = b.wait_for_long("accounts", 240).await?;
    until_queued(&namespace, "refunds", 1).await?;
    until_queued(&namespace, "accounts", 1).await?;

    let (_served, browser) = open(&namespace, None).await?;
    browser.click("nav a[href='#/waits']").await?;
    let listed = |pod: &str, lock: &str, holder: &str, is_deadlock: bool| {
        format!(
            "const words = '{pod} waits for {lock}, held by {holder}, 1st in the queue';
             const one = hooks('wait').find((one) => one.innerText.includes(words));
             return one && one.innerText.includes('Possible deadlock') === {is_deadlock}"
        )
    };
    let (first, second) = (
        listed("a", "refunds", "b", true),
        listed("b", "accounts", "a", true),
    );
    browser.until("pod a in a deadlock", &first).await?;
    browser.until("pod b in a deadlock", &second).await?;
    let drawn = "return ['a', 'b', 'accounts', 'refunds'].every((name) => seen('graph').textContent.includes(name))";
    browser.until("both in the graph", drawn).await?;

    // Pod b's caller hangs up.
    drop(of_b);
    let alone = listed("a", "refunds", "b", false);
    browser.until("that pod a waits", &alone).await?;
    let over = "return hooks('wait').length === 1 && !document.body.innerText.includes('Possible deadlock')";
    browser.until("no deadlock", over).await.map(drop)
}

//! Locks that are held by a connection: they are released with the app, and every promise to the app is kept, whether
//! or not it reads.

mod connections;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use serde_json::{Value, json};

use crate::harness::{Event, TakeOver, now};
use crate::support::{Pair, until_queued, until_renewed};

/// How long waiters in these tests wait at most.
const WAIT_SECONDS: u64 = 120;

fn hold_of(resource: &str) -> Value {
    json!({"resource": resource, "ownerId": "app"})
}

/// Until when each event lets its app act.
fn claims(events: &[Event], sent: Moment) -> Vec<Moment> {
    let told = events.iter().filter_map(Event::valid_for);
    told.map(|valid_for| sent.after(valid_for)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_holders_lock_goes_to_the_next_pod_at_once() -> Result<()> {
    const ROUNDS: usize = 10;
    let Pair { namespace, a, b } = Pair::start("hold-kill", TakeOver::Peer, 60).await?;
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let app = a.curl_hold(&hold_of("res"))?;
        let held = app.until("acquired").await?;
        let waiting = b.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&namespace, "res", 1).await?;

        let killed = now();
        app.kill9()?;
        let next = waiting.answer().await?.granted()?;
        took.push(now().since(killed));
        let before = held.data["fencingToken"].as_u64().context("a token")?;
        ensure!(next.token > before, "{next:?} after {held:?}");
        b.release_for_good(&next.id).await?;
    }
    took.sort_unstable();
    println!("from kill -9 to the next pod's answer: {took:?}");
    ensure!(took[ROUNDS - 1] < Duration::from_secs(5), "{took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_waiter_leaves_the_queue() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("hold-leave", TakeOver::Peer, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    let app = b.curl_hold(&hold_of("res"))?;
    let waiting = app.until("waiting").await?;
    ensure!(waiting.data["holder"]["pod"] == "a", "{waiting:?}");
    until_queued(&namespace, "res", 1).await?;
    app.kill9()?;
    until_queued(&namespace, "res", 0).await?;
    a.renew(&lease.id).await?.granted()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_app_holds_for_its_maximum_time_and_no_longer() -> Result<()> {
    // Longer than its session would live unrenewed.
    const MAX_HOLD: Duration = Duration::from_secs(12);

    let Pair { namespace, a, b } = Pair::start("hold-frozen", TakeOver::Peer, 9).await?;
    let body = json!({"resource": "res", "maxHoldSeconds": MAX_HOLD.as_secs()});
    let before = now();
    let app = a.curl_hold(&body)?;
    app.until("acquired").await?;
    app.freeze()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 1).await?;
    waiting.answer().await?.granted()?;
    let gone = now();
    ensure!(gone.since(before) >= MAX_HOLD, "before its time");

    app.thaw()?;
    app.until("lost").await?;
    ensure!(app.ended().await?.success());
    let events = app.events()?;
    let last = events.last().context("events")?;
    ensure!(
        last.name == "lost" && last.data["reason"] == "max_hold",
        "{events:?}"
    );
    let requested = events.iter().filter(|e| e.name == "release-requested");
    ensure!(requested.count() <= 1, "{events:?}");
    ensure!(
        claims(&events, before).iter().all(|claim| *claim <= gone),
        "{events:?}"
    );
    Ok(())
}

/// The sidecar hangs too, so that its lock is taken over: what lies in the client's buffer is all
/// that the client knows.
#[tokio::test(flavor = "multi_thread")]
async fn late_reader_of_old_heartbeats_is_not_misled() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("hold-sleepy", TakeOver::Peer, 9).await?;
    let mut sleepy = a.sleepy_hold(&hold_of("res")).await?;
    // It receives heartbeats, and reads none of them.
    until_renewed(&namespace, "res", 5).await?;
    let renewed = now();
    a.freeze()?;
    let waiting = b.wait_for("res", WAIT_SECONDS).await?;
    waiting.answer().await?.granted()?;
    let gone = now();
    a.thaw()?;

    let events = sleepy.read_until("lost").await?;
    let heartbeats = events.iter().filter(|e| e.name == "heartbeat").count();
    ensure!(heartbeats >= 3, "{events:?}");
    let last = events.last().context("events")?;
    ensure!(
        last.name == "lost" && last.data["reason"] == "session_expired",
        "{events:?}"
    );
    let claims = claims(&events, sleepy.sent());
    ensure!(
        claims.is_sorted(),
        "they count from the same request: {events:?}"
    );
    let longest = *claims.last().context("claims")?;
    ensure!(
        longest <= gone,
        "{:?} too long: {events:?}",
        longest.since(gone)
    );
    ensure!(
        longest >= renewed,
        "what was told of its renewals reaches beyond the last of them"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_sidecar_sends_release_requests_to_its_holds() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("hold-stop", TakeOver::Peer, 30).await?;
    let held = a.curl_hold(&hold_of("res"))?;
    held.until("acquired").await?;
    b.acquire("other").await?.granted()?;
    let waits = a.curl_hold(&hold_of("other"))?;
    waits.until("waiting").await?;

    a.sigterm()?;
    let requested = held.until("release-requested").await?;
    ensure!(
        requested.data["reason"] == "agent_stopping",
        "{requested:?}"
    );
    let refused = waits.until("error").await?;
    ensure!(refused.data["code"] == "shutting_down", "{refused:?}");
    ensure!(waits.ended().await?.success());
    let lock = namespace.lock("res").await?.context("the lock")?;
    ensure!(lock["status"]["holder"]["pod"] == "a", "it goes on: {lock}");
    held.kill9()?;
    ensure!(a.ended().await?.success());
    b.acquire("res").await?.granted()?;
    Ok(())
}

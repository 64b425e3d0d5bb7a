//! The scenarios of clients that hold by renewals: what happens to renewals, and to no other request.

use std::process::Command;
use std::time::Duration;

use leasehold::clock::{Clock as _, SystemClock};
use tempfile::TempDir;

use super::{App, Dev, Handling, Kind, Way, eventually, sidecar};

/// The TTL of the lease and of the session where an answer comes late: several attempts fit into it.
const TTL: u64 = 10;

fn is_renewal(request: &str) -> bool {
    request.ends_with("/renew")
}

async fn slow_sidecar() -> (TempDir, Dev) {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--session-ttl", &TTL.to_string()]).await;
    (data, dev)
}

/// Waits until the first validity is over, and the app has sent some renewals. It checks the lease
/// all the time: what is promised counts from when a renewal was sent.
async fn lease_continues(app: &mut App, way: &Way, renewals: usize) {
    let start = SystemClock.now();
    let first = app.holds("report").await;
    eventually(async || {
        let before = SystemClock.now();
        let remaining = app.holds("report").await;
        let most = way.promised().expect("an answer").since(before);
        assert!(remaining <= most, "too much: {remaining:?} of {most:?}");
        let is_over = SystemClock.now().since(start) > first;
        (is_over && way.count("/renew") >= renewals).then_some(())
    })
    .await;
}

pub(in super::super) async fn late_renewals_promise_no_more<C: Fn() -> Command>(mut kind: Kind<C>) {
    let (_data, dev) = slow_sidecar().await;
    kind.ttl = Some(TTL);
    let way = Way::to(dev.url()).await;
    way.rule(|request| {
        if is_renewal(request) {
            Handling::Late(Duration::from_secs(1))
        } else {
            Handling::Passes
        }
    });
    let mut app = kind.start(way.url()).await;
    app.lock("report").await;
    lease_continues(&mut app, &way, 3).await;
}

pub(in super::super) async fn renewal_answered_with_503_is_repeated<C: Fn() -> Command>(
    mut kind: Kind<C>,
) {
    let (_data, dev) = slow_sidecar().await;
    kind.ttl = Some(TTL);
    let way = Way::to(dev.url()).await;
    let mut renewals = 0;
    way.rule(move |request| {
        renewals += u32::from(is_renewal(request));
        // The third attempt succeeds.
        if is_renewal(request) && renewals % 3 != 0 {
            Handling::Unavailable
        } else {
            Handling::Passes
        }
    });
    let mut app = kind.start(way.url()).await;
    app.lock("report").await;
    lease_continues(&mut app, &way, 6).await;
}

pub(in super::super) async fn lease_ends_at_the_deadline_under_503<C: Fn() -> Command>(
    kind: Kind<C>,
) {
    let (_data, dev) = sidecar().await;
    let way = Way::to(dev.url()).await;
    let mut app = kind.start(way.url()).await;
    app.lock("report").await;
    way.rule(|request| {
        if is_renewal(request) {
            Handling::Unavailable
        } else {
            Handling::Passes
        }
    });
    let before = way.count("/renew");
    let start = SystemClock.now();
    let promised = app.holds("report").await;
    assert_eq!(app.loss("report").await, "validity_over");
    let after = SystemClock.now().since(start);
    assert!(after >= promised, "lost after {after:?} of {promised:?}");
    app.has_lost("report").await;
    assert!(way.count("/renew") > before + 1, "one attempt");
}

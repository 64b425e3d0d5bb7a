//! Sessions with the longest TTL, for long outages: leases last as long as the TTL says, and all else is as
//! prompt as with a TTL of two minutes.

use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::agent::Campaign;
use leasehold::protocol::election::ElectionName;
use leasehold::store::StoreError;

use super::expired::Cluster;
use super::waiting::{granted, queued_waiter, release};
use super::*;

const MINUTE: Duration = Duration::from_mins(1);
/// A third of two minutes, and a tenth of that.
const THIRD: Duration = Duration::from_secs(44);
/// For how long a holder may trust a renewal.
const HOLDER_SHARE: Duration = Duration::from_secs(3_420);
/// For how long a challenger must observe no renewal.
const CHALLENGER_SHARE: Duration = Duration::from_secs(3_780);

/// Renews a lease every minute for half an hour. Returns the latest deadline that was returned.
async fn renew_for_half_an_hour(pod: &Pod, lease: &LeaseView) -> Moment {
    let mut until = Moment::default();
    for _ in 0..30 {
        tokio::time::sleep(MINUTE).await;
        let asked = pod.now();
        let renewed = pod.agent.renew(&lease.lease, None, asked);
        let valid_for = renewed.expect("it is valid").valid_for;
        until = until.max(asked.after(valid_for));
    }
    until
}

#[tokio::test(start_paused = true)]
async fn lease_and_queue_entry_survive_an_outage_of_half_an_hour() {
    let cluster = Cluster::new();
    let [a, b] = ["a", "b"].map(|name| cluster.pod_with_ttl(name, 3_600));
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 7_200).await;
    tokio::time::sleep(5 * MINUTE).await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    let outage = a.now();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    cluster.store.on_call(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Some(StoreError::Unavailable("outage".into()))
    });
    let until = renew_for_half_an_hour(&a, &lease).await;
    assert!(until <= outage.after(HOLDER_SHARE), "no renewal succeeded");
    assert!(until >= a.now().after(9 * MINUTE), "what its app asked for");
    let tried = calls.load(Ordering::Relaxed);
    assert!(
        (100..3_600).contains(&tried),
        "{tried}: one a second and pod at most"
    );
    cluster.store.heal();
    tokio::time::sleep(MINUTE).await;
    let session = a
        .agent
        .renew(&lease.lease, Some(Duration::from_hours(2)), a.now());
    let left = session.unwrap().valid_for;
    assert!(left + MINUTE >= HOLDER_SHARE, "{left:?}");
    assert_eq!(cluster.store.lock("r").unwrap().incidents, []);
    release(&a, &lease).await;
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn waiter_with_short_ttl_waits_for_the_long_ttl_of_a_holder() {
    let cluster = Cluster::new();
    let (a, b) = (
        cluster.pod_with_ttl("a", 3_600),
        cluster.pod_with_ttl("b", 15),
    );
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 7_200).await;
    tokio::time::sleep(5 * MINUTE).await;
    a.store.cut_off();
    let cut_off = a.now();
    let until = renew_for_half_an_hour(&a, &lease).await;
    granted(waiting).await;
    assert!(b.now() > until, "the holder may act until {until:?}");
    let took = b.now().since(cut_off);
    // Its last renewal was up to a third before it was cut off.
    let late = took + THIRD;
    let expected = CHALLENGER_SHARE..CHALLENGER_SHARE + THIRD + Duration::from_secs(2);
    assert!(expected.contains(&late), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiter_with_a_long_ttl_finds_its_grant_without_a_watch() {
    let cluster = Cluster::new();
    let [a, b] = ["a", "b"].map(|name| cluster.pod_with_ttl(name, 3_600));
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 7_200).await;
    let _stalled = cluster.store.stall_watches();
    tokio::time::sleep(9 * MINUTE).await;
    release(&a, &lease).await;
    let since = b.now();
    granted(waiting).await;
    let took = b.now().since(since);
    assert!(took <= THIRD + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn session_with_a_long_ttl_is_renewed_every_40_seconds() {
    let cluster = Cluster::new();
    let a = cluster.pod_with_ttl("a", 3_600);
    let lease = a.lease("r").await;
    let session = cluster.store.session_of("r").unwrap();
    renew_for_half_an_hour(&a, &lease).await;
    let renewals = cluster.store.session(&session).unwrap().renewals;
    assert!((45..=51).contains(&renewals), "{renewals} in half an hour");
    release(&a, &lease).await;
    tokio::time::sleep(12 * MINUTE).await;
    let session = cluster.store.session(&session);
    let is_over = session.is_none_or(|session| session.revoked.is_some());
    assert!(is_over, "it is ended after ten idle minutes");
}

#[tokio::test(start_paused = true)]
async fn try_waits_for_the_proof_only_if_it_is_near() {
    let cluster = Cluster::new();
    let a = cluster.pod_with_ttl("a", 3_600);
    a.lease("r").await;
    a.store.cut_off();
    tokio::time::sleep(120 * MINUTE).await;
    let b = cluster.pod_with_ttl("b", 15);
    let since = b.now();
    assert!(matches!(b.acquire("r").await, Ok(Acquired::Held { .. })));
    assert_eq!(b.now(), since, "the proof is an hour away");
    tokio::time::sleep(CHALLENGER_SHARE.saturating_sub(MINUTE / 2)).await;
    b.lease("r").await;
    let took = b.now().since(since);
    let expected = CHALLENGER_SHARE..CHALLENGER_SHARE + Duration::from_secs(1);
    assert!(expected.contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn lead_with_a_long_ttl_is_promised_for_two_minutes_only() {
    let cluster = Cluster::new();
    let [a, b] = ["a", "b"].map(|name| cluster.pod_with_ttl(name, 3_600));
    let election = ElectionName::parse("e").unwrap();
    let campaign = || Campaign {
        election: election.clone(),
        preferred: false,
    };
    let lead = async |pod: &Pod| {
        let view = pod.agent.election(&election, pod.now()).await;
        view.ok().and_then(|view| view.lead)
    };
    a.agent.run_for_while_asked(campaign());
    while lead(&a).await.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    b.agent.run_for(campaign());
    tokio::time::sleep(10 * MINUTE).await;
    // It asks no more, so the other one leads: after two periods, as with a TTL of two minutes.
    assert!(lead(&a).await.is_none());
    let promised = lead(&b).await.expect("it leads");
    assert_eq!(promised.valid_for, 2 * MINUTE);
}

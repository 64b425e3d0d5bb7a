//! Grants that end by a recorded force release: every call of their apps reports that. Without a record none does.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use leasehold::agent::{AcquireError, LeaseError, LeaseEvent, LeaseEvents, LeaseView, Released};
use leasehold::protocol::ids::{GrantId, Resource};
use leasehold::protocol::incident::{Incident, IncidentKind};
use leasehold::protocol::lease::Loss;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::time::WallTime;
use leasehold::store::StoreError;

use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

const FORCED: LeaseError = LeaseError::Lost(Loss::ForceReleased);
const GONE: LeaseError = LeaseError::Lost(Loss::GrantGone);

/// Ends the grant as the operator does, but for what `adjust` makes of the record.
fn take(lock: &mut Lock, adjust: impl FnOnce(&mut Incident)) {
    let grant = lock.grant.take().unwrap();
    let mut incident = Incident {
        at: WallTime(0),
        kind: IncidentKind::ForceReleased,
        token: lock.token,
        grant: Some(grant.id),
        owner: grant.holder.owner,
        pod: grant.holder.pod.name,
        actor: "alice".into(),
        reason: "it hangs".into(),
    };
    adjust(&mut incident);
    lock.incidents.push(incident);
}

fn force(store: &MemoryStore) {
    store.edit_lock("r", |lock| take(lock, |_| {}));
}

async fn a_lease() -> (MemoryStore, Pod, LeaseView) {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    (store, pod, lease)
}

async fn following(pod: &Pod, lease: &LeaseView) -> LeaseEvents {
    let mut events = pod.agent.events(&lease.lease, pod.now()).unwrap();
    events.next().await;
    events
}

async fn next_loss(events: &mut LeaseEvents) -> Loss {
    match events.next().await {
        Some(LeaseEvent::Lost(_, loss)) => loss,
        other => panic!("no loss: {other:?}"),
    }
}

fn counts(pod: &Pod, line: &str) -> bool {
    pod.agent.metrics().encode().contains(line)
}

#[tokio::test(start_paused = true)]
async fn every_call_reports_the_force_release() {
    let (store, pod, lease) = a_lease().await;
    let (mut one, mut other) = (following(&pod, &lease).await, following(&pod, &lease).await);
    let since = pod.now();
    force(&store);
    for events in [&mut one, &mut other] {
        assert_eq!(next_loss(events).await, Loss::ForceReleased);
        assert_eq!(events.next().await, None);
    }
    assert_eq!(pod.now(), since, "the watch told at once");
    let lease = &lease.lease;
    assert_eq!(pod.agent.renew(lease, None, pod.now()), Err(FORCED));
    assert_eq!(pod.agent.lease(lease, pod.now()), Err(FORCED));
    for _repeated in 0..2 {
        assert_eq!(pod.agent.release(lease).await, Err(FORCED));
    }
    assert!(counts(
        &pod,
        "leases_lost_total{reason=\"force_released\"} 1"
    ));
    assert!(
        counts(&pod, "leasehold_dual_owners_suspected_total 0"),
        "what is on the record is no alarm"
    );
    assert!(pod.is_free("r"), "nothing is undone");
}

#[tokio::test]
async fn release_that_finds_the_force_release_reports_it() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    force(&store);
    let writes = store.writes();
    for _repeated in 0..2 {
        assert_eq!(pod.agent.release(&lease.lease).await, Err(FORCED));
    }
    assert_eq!(store.writes(), writes);
    assert!(counts(
        &pod,
        "leases_lost_total{reason=\"force_released\"} 1"
    ));
    assert!(counts(&pod, "leasehold_dual_owners_suspected_total 0"));

    // Also when its time was up by then: the record is certain.
    let late = pod.lease("r").await;
    store.fail_all(StoreError::Unavailable("connection refused".into()));
    assert_eq!(pod.agent.release(&late.lease).await, Ok(Released::Pending));
    pod.clock.advance(Duration::from_secs(20));
    force(&store);
    store.heal();
    let told = || pod.agent.release(&late.lease).now_or_never() == Some(Err(FORCED));
    eventually("it is told", told).await;
}

#[tokio::test(start_paused = true)]
async fn read_alone_reveals_the_force_release() {
    let (store, pod, lease) = a_lease().await;
    let _stalled = store.stall_watches();
    force(&store);
    let resource = Resource::parse("r").unwrap();
    pod.agent.verify(&resource, lease.token).await.unwrap();
    assert_eq!(pod.agent.renew(&lease.lease, None, pod.now()), Err(FORCED));
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_cause_of_a_loss_and_agree_on_it() {
    let (store, pod, lease) = a_lease().await;
    let mut events = following(&pod, &lease).await;
    let looking = store.hold(Call::GetLock, Half::Answer);
    force(&store);
    eventually("it is looked up", || looking.arrived() == 1).await;
    assert!(pod.agent.renew(&lease.lease, None, pod.now()).is_err());
    assert!(pod.agent.lease(&lease.lease, pod.now()).is_err());
    assert!(pod.agent.events(&lease.lease, pod.now()).is_err());
    assert_eq!(events.next().now_or_never(), None, "nothing is told yet");
    let renewed = pod.agent.explained(&lease.lease, GONE);
    let released = pod.agent.release(&lease.lease);
    tokio::pin!(renewed, released);
    assert_eq!(renewed.as_mut().now_or_never(), None);
    assert_eq!(released.as_mut().now_or_never(), None);
    looking.open();
    assert_eq!(renewed.await, FORCED);
    assert_eq!(released.await, Err(FORCED));
    assert_eq!(next_loss(&mut events).await, Loss::ForceReleased);
}

#[tokio::test(start_paused = true)]
async fn unknown_cause_becomes_grant_gone_after_a_second() {
    let (store, pod, lease) = a_lease().await;
    for how in ["it fails", "it hangs"] {
        let lease = match how {
            "it fails" => lease.clone(),
            _ => pod.lease("r").await,
        };
        let mut events = following(&pod, &lease).await;
        let gate = (how == "it hangs").then(|| store.hold(Call::GetLock, Half::Request));
        if gate.is_none() {
            let away = StoreError::Unavailable("connection refused".into());
            store.fail(Call::GetLock, away);
        }
        let since = pod.now();
        force(&store);
        assert_eq!(next_loss(&mut events).await, Loss::GrantGone, "{how}");
        let took = pod.now().since(since);
        assert!(took <= Duration::from_millis(1_010), "{how}: {took:?}");
        assert_eq!(pod.agent.release(&lease.lease).await, Err(GONE), "{how}");
        if let Some(gate) = gate {
            gate.open();
        }
        store.heal();
        eventually("it is over", || counts(&pod, "leasehold_leases 0")).await;
    }
    assert!(counts(&pod, "leasehold_dual_owners_suspected_total 2"));
}

#[tokio::test(start_paused = true)]
async fn only_a_force_record_of_this_grant_counts() {
    type Adjust = fn(&mut Incident);
    let records: [(&str, Adjust, Loss); 4] = [
        (
            "of an older version",
            |i| i.grant = None,
            Loss::ForceReleased,
        ),
        (
            "of another grant",
            |i| i.grant = Some(GrantId::from("another")),
            Loss::GrantGone,
        ),
        (
            "of an older version and another grant",
            |i| (i.grant, i.token) = (None, i.token.nth(1).unwrap()),
            Loss::GrantGone,
        ),
        (
            "of another end",
            |i| i.kind = IncidentKind::ReleasedOnRequest,
            Loss::GrantGone,
        ),
    ];
    for (what, adjust, expected) in records {
        let (store, pod, lease) = a_lease().await;
        let mut events = following(&pod, &lease).await;
        store.edit_lock("r", |lock| take(lock, adjust));
        assert_eq!(next_loss(&mut events).await, expected, "{what}");
    }
    let (store, pod, lease) = a_lease().await;
    let mut events = following(&pod, &lease).await;
    store.edit_lock("r", |lock| lock.grant = None);
    assert_eq!(next_loss(&mut events).await, Loss::GrantGone, "by hand");
}

/// A repeated request reports the same as a renewal.
#[tokio::test(start_paused = true)]
async fn repeated_request_reports_the_force_release() {
    let store = MemoryStore::default();
    let pod = Arc::new(Pod::in_paused_time("a", &store));
    pod.acquire_as("r", Some("request")).await.unwrap();
    let looking = store.hold(Call::GetLock, Half::Answer);
    force(&store);
    eventually("it is looked up", || looking.arrived() == 1).await;
    let repeated = {
        let pod = pod.clone();
        tokio::spawn(async move { pod.acquire_as("r", Some("request")).await })
    };
    tokio::task::yield_now().await;
    looking.open();
    let refused = repeated.await.unwrap().unwrap_err();
    assert!(
        matches!(refused, AcquireError::RequestEnded { why: FORCED, .. }),
        "{refused:?}"
    );
}

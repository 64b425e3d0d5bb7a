//! Release requests by `spec.releaseRequest`: which app is notified, how often, and what is recorded when it
//! releases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::agent::{
    AcquireRequest, Acquired, Hold, LeaseEvent, LeaseEvents, LeaseView, Life, Released, Request,
};
use leasehold::protocol::ids::{OwnerId, Resource};
use leasehold::protocol::incident::{Incident, IncidentKind};
use leasehold::protocol::lock::Grant;
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest};
use leasehold::store::StoreError;
use tokio::task::JoinHandle;

use super::{DAY, a_pod, acquired, follow, hold_for};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, MemoryStore};

fn grant_of(store: &MemoryStore) -> Grant {
    store.lock("r").and_then(|lock| lock.grant).expect("held")
}

fn request(lease: &str, mode: ReleaseMode, reason: &str) -> Arc<ReleaseRequest> {
    Arc::new(ReleaseRequest {
        lease: lease.into(),
        mode,
        reason: reason.into(),
        actor: "alice".into(),
    })
}

/// A person asks for the end of the lock's grant.
fn ask(store: &MemoryStore, reason: &str) -> Arc<ReleaseRequest> {
    let asked = request(grant_of(store).id.as_str(), ReleaseMode::Ask, reason);
    set(store, Some(&asked));
    asked
}

fn set(store: &MemoryStore, request: Option<&Arc<ReleaseRequest>>) {
    store.edit_lock("r", |lock| {
        lock.settings.release_request = request.cloned();
    });
}

async fn requested_of_hold(hold: &mut Hold) -> Arc<ReleaseRequest> {
    match hold.next().await {
        Some(LeaseEvent::ReleaseRequested(_, Request::PersonAsked(request))) => request,
        other => panic!("not asked: {other:?}"),
    }
}

async fn told(events: &mut LeaseEvents) -> Arc<ReleaseRequest> {
    match events.next().await {
        Some(LeaseEvent::ReleaseRequested(_, Request::PersonAsked(request))) => request,
        other => panic!("not asked: {other:?}"),
    }
}

/// The next events are heartbeats and nothing else.
async fn only_heartbeats(events: &mut LeaseEvents) {
    for _ in 0..3 {
        let event = events.next().await;
        assert!(matches!(event, Some(LeaseEvent::Heartbeat(_))), "{event:?}");
    }
}

/// What the app of a lease receives that renews and has no stream.
fn asked_of(pod: &Pod, lease: &LeaseView) -> Option<Arc<ReleaseRequest>> {
    let renewed = pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    let read = pod.agent.lease(&lease.lease, pod.now()).unwrap();
    assert_eq!(renewed.asked, read.asked);
    renewed.asked
}

async fn until_asked(pod: &Pod, lease: &LeaseView) {
    eventually("it is asked", || asked_of(pod, lease).is_some()).await;
}

fn incidents(store: &MemoryStore) -> Vec<Incident> {
    store.lock("r").unwrap().incidents
}

fn taking(owner: &str, wait: u64, keep: u64) -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse("r").unwrap(),
        owner: OwnerId::from(owner),
        life: Life::Ttl(Duration::from_secs(20)),
        wait: Duration::from_secs(wait),
        keep: Duration::from_secs(keep),
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

fn spawn(pod: &Pod, request: AcquireRequest) -> JoinHandle<LeaseView> {
    let agent = pod.agent.clone();
    tokio::spawn(async move {
        match agent.acquire(request, agent.now()).await {
            Ok(Acquired::Granted { lease, .. }) => lease,
            other => panic!("not granted: {other:?}"),
        }
    })
}

/// Everything that can go on without time passing has gone on.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

async fn release(pod: &Pod, lease: &LeaseView) {
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
}

#[tokio::test(start_paused = true)]
async fn release_request_reaches_every_stream_once() {
    let (store, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    let lease = acquired(&mut hold).await.lease;
    let mut events = follow(&pod, &lease);
    events.next().await;
    let asked = ask(&store, "upgrade");
    let before = pod.now();
    assert_eq!(requested_of_hold(&mut hold).await, asked);
    assert_eq!(told(&mut events).await, asked);
    assert_eq!(pod.now(), before, "the watch told at once");
    only_heartbeats(&mut events).await;
    let mut later = follow(&pod, &lease);
    later.next().await;
    assert_eq!(told(&mut later).await, asked);
    only_heartbeats(&mut later).await;
}

#[tokio::test(start_paused = true)]
async fn changed_or_renewed_release_request_is_reported_again() {
    let (store, pod) = a_pod();
    let lease = pod.lease("r").await;
    let mut events = follow(&pod, &lease.lease);
    events.next().await;
    let first = ask(&store, "upgrade");
    assert_eq!(told(&mut events).await, first);
    let second = ask(&store, "now, please");
    assert_eq!(told(&mut events).await, second);
    assert_eq!(asked_of(&pod, &lease), Some(second));
    set(&store, None);
    only_heartbeats(&mut events).await;
    assert_eq!(asked_of(&pod, &lease), None);
    set(&store, Some(&first));
    assert_eq!(told(&mut events).await, first);
}

#[tokio::test(start_paused = true)]
async fn requested_release_is_recorded_in_the_same_write() {
    let (store, a) = a_pod();
    let b = Pod::in_paused_time("b", &store);
    let lease = a.lease("r").await;
    let waiting = spawn(&b, taking("b", 60, 0));
    let waits = || store.lock("r").unwrap().waiters.len() == 1;
    eventually("the other waits", waits).await;
    ask(&store, "upgrade");
    let (grant, token) = (grant_of(&store), store.lock("r").unwrap().token);
    until_asked(&a, &lease).await;
    let writes = store.writes();
    release(&a, &lease).await;
    assert!(waiting.await.unwrap().token > lease.token);
    assert_eq!(store.writes(), writes + 1);
    let [incident] = &incidents(&store)[..] else {
        panic!("{:?}", incidents(&store));
    };
    assert_eq!(incident.kind, IncidentKind::ReleasedOnRequest);
    assert_eq!((&*incident.actor, &*incident.reason), ("alice", "upgrade"));
    assert_eq!((&incident.grant, incident.token), (&Some(grant.id), token));
    assert_eq!(incident.owner, grant.holder.owner);
    assert_eq!(&*incident.pod, "a");
}

#[tokio::test(start_paused = true)]
async fn requested_end_of_a_connection_is_recorded() {
    let (store, pod) = a_pod();
    let mut hold = hold_for(&pod, DAY).await;
    acquired(&mut hold).await;
    ask(&store, "upgrade");
    requested_of_hold(&mut hold).await;
    drop(hold);
    eventually("the lock is free", || pod.is_free("r")).await;
    assert_eq!(incidents(&store).len(), 1);
}

/// An app that releases unasked, does not know of the request, or falls silent does not release because of it.
#[tokio::test(start_paused = true)]
async fn unrequested_end_is_not_recorded_as_requested() {
    let (store, pod) = a_pod();
    let unasked = pod.lease("r").await;
    release(&pod, &unasked).await;

    let unaware = pod.lease("r").await;
    {
        let _stalled = store.stall_watches();
        ask(&store, "upgrade");
        assert_eq!(asked_of(&pod, &unaware), None);
        release(&pod, &unaware).await;
    }
    let silent = spawn(&pod, taking("silent", 0, 0)).await.unwrap();
    ask(&store, "upgrade");
    until_asked(&pod, &silent).await;
    eventually("the silent one's time is up", || pod.is_free("r")).await;
    assert_eq!(incidents(&store), []);
}

#[tokio::test(start_paused = true)]
async fn request_for_another_grant_or_by_force_skips_the_app() {
    let (store, pod) = a_pod();
    let over = pod.lease("r").await;
    release(&pod, &over).await;
    let lease = pod.lease("r").await;
    let own = grant_of(&store).id;
    let mut events = follow(&pod, &lease.lease);
    events.next().await;
    for (names, mode) in [
        (over.lease.as_str(), ReleaseMode::Ask),
        (own.as_str(), ReleaseMode::Force),
    ] {
        set(&store, Some(&request(names, mode, "upgrade")));
        only_heartbeats(&mut events).await;
        assert_eq!(asked_of(&pod, &lease), None);
    }
    release(&pod, &lease).await;
    assert_eq!(incidents(&store), []);
}

#[tokio::test(start_paused = true)]
async fn read_reports_the_release_request_without_a_watch() {
    let (store, pod) = a_pod();
    let lease = pod.lease("r").await;
    let mut events = follow(&pod, &lease.lease);
    events.next().await;
    let _stalled = store.stall_watches();
    let asked = ask(&store, "upgrade");
    assert_eq!(asked_of(&pod, &lease), None);
    let resource = Resource::parse("r").unwrap();
    pod.agent.verify(&resource, lease.token).await.unwrap();
    assert_eq!(asked_of(&pod, &lease), Some(asked.clone()));
    assert_eq!(told(&mut events).await, asked);
}

#[tokio::test(start_paused = true)]
async fn requested_idle_grant_is_released_at_once() {
    let (store, pod) = a_pod();
    let lease = spawn(&pod, taking("app", 0, 600)).await.unwrap();
    release(&pod, &lease).await;
    assert!(!pod.is_free("r"), "it is kept");
    let since = pod.now();
    ask(&store, "upgrade");
    eventually("it is given back", || pod.is_free("r")).await;
    assert!(pod.now().since(since) < Duration::from_secs(1));
    assert_eq!(incidents(&store).len(), 1);
    // One that is in use is not kept after it.
    let lease = spawn(&pod, taking("app", 0, 600)).await.unwrap();
    ask(&store, "upgrade");
    until_asked(&pod, &lease).await;
    release(&pod, &lease).await;
    assert!(pod.is_free("r"));
    assert_eq!(incidents(&store).len(), 2);
}

/// The request names the grant, so it is about each of its leases; the last of them is the one that
/// is served when it comes.
#[tokio::test(start_paused = true)]
async fn requested_lock_is_not_handed_over_within_its_pod() {
    let (store, pod) = a_pod();
    let first = pod.lease("r").await;
    let second = spawn(&pod, taking("second", 240, 0));
    settled().await;
    let third = spawn(&pod, taking("third", 240, 0));
    settled().await;
    release(&pod, &first).await;
    let second = second.await.unwrap();
    assert_eq!(second.lease.grant(), first.lease.grant());
    set(
        &store,
        Some(&request(first.lease.as_str(), ReleaseMode::Ask, "upgrade")),
    );
    until_asked(&pod, &second).await;
    let in_queue = || store.lock("r").unwrap().waiters.len() == 1;
    eventually("who is next goes to the store", in_queue).await;
    release(&pod, &second).await;
    let third = third.await.unwrap();
    assert_ne!(third.lease.grant(), first.lease.grant());
    assert_eq!(incidents(&store).len(), 1);
    assert_eq!(asked_of(&pod, &third), None, "it is another grant");
    release(&pod, &third).await;
    assert_eq!(incidents(&store).len(), 1);
}

/// The policies want the request beside its record. So a release has no record if the request was withdrawn or
/// replaced at the same time. It costs no further refused write, and no wait.
#[tokio::test(start_paused = true)]
async fn withdrawn_or_changed_request_is_not_recorded() {
    for next in [
        "withdrawn",
        "reworded",
        "another's",
        "forced",
        "of another grant",
    ] {
        let (store, pod) = a_pod();
        let lease = pod.lease("r").await;
        let asked = ask(&store, "upgrade");
        until_asked(&pod, &lease).await;
        let changed = match next {
            "withdrawn" => None,
            "reworded" => Some(ReleaseRequest {
                reason: "now".into(),
                ..(*asked).clone()
            }),
            "another's" => Some(ReleaseRequest {
                actor: "bob".into(),
                ..(*asked).clone()
            }),
            "forced" => Some(ReleaseRequest {
                mode: ReleaseMode::Force,
                ..(*asked).clone()
            }),
            _ => Some(ReleaseRequest {
                lease: "another".into(),
                ..(*asked).clone()
            }),
        };
        let _stalled = store.stall_watches();
        set(&store, changed.map(Arc::new).as_ref());
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = tries.clone();
        store.on_call(move |call| {
            counted.fetch_add(usize::from(call == Call::UpdateLock), Ordering::Relaxed);
            None
        });
        release(&pod, &lease).await;
        assert!(pod.is_free("r"), "{next}");
        assert_eq!(incidents(&store), [], "{next}");
        assert_eq!(tries.load(Ordering::Relaxed), 2, "{next}: outrun once");
    }
}

#[tokio::test(start_paused = true)]
async fn lock_is_released_although_its_record_is_refused() {
    let (store, pod) = a_pod();
    let lease = pod.lease("r").await;
    ask(&store, "upgrade");
    until_asked(&pod, &lease).await;
    let mut tries = 0;
    store.on_call(move |call| {
        tries += usize::from(call == Call::UpdateLock);
        let refused = StoreError::DeniedByPolicy("no such record".into());
        (call == Call::UpdateLock && tries == 1).then_some(refused)
    });
    release(&pod, &lease).await;
    assert!(pod.is_free("r"));
    assert_eq!(incidents(&store), []);
}

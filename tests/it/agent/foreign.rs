//! Grants, queue entries and sessions that carry our ids with another pod's uid. Every pod of the namespace can read
//! ids and sessions; only together with the uid, which the token proves, do they show the owner.

use std::sync::{Arc, Mutex};

use leasehold::protocol::ids::{GrantId, SessionId};
use leasehold::protocol::lock::{Grant, Lock};
use leasehold::protocol::queue::Waiter;
use leasehold::protocol::session::Claimant;
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::Token;
use leasehold::store::SessionStore as _;

use super::waiting::{granted, queued_waiter, request, spawn};
use super::*;
use crate::memory_store::Call;

/// A claimant in pod `m` that names this session.
fn in_m(session: &SessionId) -> Claimant {
    Claimant {
        owner: OwnerId::from("b"),
        pod: pod_ref("m"),
        session: session.clone(),
        session_ttl: SessionTtl::clamped(15),
    }
}

fn grant(id: impl Into<GrantId>, holder: Claimant) -> Grant {
    Grant {
        id: id.into(),
        holder,
        metadata: BTreeMap::new(),
        acquired_at: WallTime(0),
        kept: false,
    }
}

/// Grants the lock past every rule, and drops all waiters.
fn poison(store: &MemoryStore, resource: &str, grant: Grant) {
    store.edit_lock(resource, |lock| {
        lock.token = Token::from_raw(lock.token.get() + 1_000_000);
        lock.grant = Some(grant);
        lock.waiters = leasehold::protocol::queue::Queue::default();
    });
}

fn first_waiter(store: &MemoryStore) -> Waiter {
    store.lock("r").unwrap().waiters.entries()[0].clone()
}

fn holder_uid(lock: &Lock) -> Option<String> {
    Some(lock.grant.as_ref()?.holder.pod.uid.to_string())
}

fn updates(calls: &Arc<Mutex<Vec<Call>>>) -> usize {
    let calls = calls.lock().unwrap();
    calls
        .iter()
        .filter(|call| **call == Call::UpdateLock)
        .count()
}

#[tokio::test(start_paused = true)]
async fn waiters_grant_id_under_another_session_is_not_served() {
    let store = MemoryStore::default();
    let (m, b) = (
        Pod::in_paused_time("m", &store),
        Pod::in_paused_time("b", &store),
    );
    m.lease("r").await;
    let of_m = store.lock("r").unwrap().grant.unwrap().holder;
    let waiting = queued_waiter(&b, "b", 240).await;
    let waiter = first_waiter(&store);
    let named_b = Claimant {
        owner: OwnerId::from("b"),
        ..of_m.clone()
    };
    // From here on m's writes do not come from its agent.
    m.store.cut_off();
    poison(&store, "r", grant(waiter.grant.clone(), named_b));
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        store.renew_session(&of_m.session);
    }
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    // It waits for the lock under another id, and gets it from the holder.
    assert_ne!(first_waiter(&store).grant, waiter.grant);
    store.edit_lock("r", |lock| {
        let (head, rest) = lock.waiters.split_head().unwrap();
        lock.token = Token::from_raw(lock.token.get() + 1_000_000);
        lock.grant = Some(grant(head.grant, head.claimant));
        lock.waiters = rest;
    });
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_grant_id_under_another_pod_is_not_served() {
    let store = MemoryStore::default();
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let waiter = first_waiter(&store);
    let session = &waiter.claimant.session;
    let calls = store.record_calls();
    poison(&store, "r", grant(waiter.grant.clone(), in_m(session)));
    let poisoned = store.lock("r").unwrap().token;
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    assert_eq!(updates(&calls), 0, "it is another pod's to end");
    // That pod has no session of this name, so it is taken over from like one without any.
    let lease = granted(waiting).await;
    assert!(lease.token > poisoned);
    let lock = store.lock("r").unwrap();
    assert_eq!(holder_uid(&lock).as_deref(), Some("uid-of-b"));
    assert_eq!(lock.incidents.len(), 1);
    assert!(store.session(session).unwrap().revoked.is_none());
}

#[tokio::test(start_paused = true)]
async fn foreign_grants_in_own_session_are_left_alone() {
    let store = MemoryStore::default();
    let mut config = Config::new(pod_ref("b"));
    config.max_leases = 3;
    let clock = ManualClock::default();
    let b = Pod::with(config, &store, clock, Arc::new(PausedClock::start()));
    b.lease("mine").await;
    let session = store.session_of("mine").unwrap();
    let calls = store.record_calls();
    for n in 0..5 {
        let name = format!("r{n}");
        store.make_lock(&name);
        poison(&store, &name, grant(format!("g{n}"), in_m(&session)));
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = calls.lock().unwrap().clone();
    let about_locks = |call: &&Call| !matches!(call, Call::RenewSession);
    assert_eq!(asked.iter().find(about_locks), None, "{asked:?}");
    for n in 0..5 {
        let lock = store.lock(&format!("r{n}")).unwrap();
        assert_eq!(holder_uid(&lock).as_deref(), Some("uid-of-m"));
    }
    // They take none of the places that this agent has for leases.
    b.lease("another").await;
}

#[tokio::test(start_paused = true)]
async fn lease_ends_when_its_grant_gets_another_pod() {
    let store = MemoryStore::default();
    let b = Pod::in_paused_time("b", &store);
    let lease = b.lease("r").await;
    let own = store.lock("r").unwrap().grant.unwrap();
    let calls = store.record_calls();
    poison(&store, "r", grant(own.id, in_m(&own.holder.session)));
    let lost = LeaseError::Lost(Loss::GrantGone);
    eventually("the lease is over", || {
        b.agent.lease(&lease.lease, b.now()) == Err(lost)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(15)).await;
    // One release on the version that it knew may be sent, and conflicts.
    assert!(updates(&calls) <= 1);
    let lock = store.lock("r").unwrap();
    assert_eq!(holder_uid(&lock).as_deref(), Some("uid-of-m"));
    assert_eq!(b.agent.release(&lease.lease).await, Err(lost));
}

#[tokio::test(start_paused = true)]
async fn foreign_queue_entry_in_own_session_refuses_a_wait() {
    let store = MemoryStore::default();
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    a.lease("r").await;
    b.lease("mine").await;
    let session = store.session_of("mine").unwrap();
    store.edit_lock("r", |lock| {
        let waiter = Waiter {
            grant: GrantId::from("of-m"),
            claimant: in_m(&session),
            queued_at: WallTime(0),
            preferred: false,
        };
        let leasehold::protocol::queue::Join::Joined(queue) = lock.waiters.join(waiter) else {
            panic!("there is room");
        };
        lock.waiters = queue;
    });
    let calls = store.record_calls();
    let waiting = spawn(&b.agent, request("b", 240));
    let refused = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    let refused = refused.expect("no endless loop").unwrap();
    let words = refused.as_ref().map_err(ToString::to_string);
    assert!(
        matches!(&words, Err(words) if words.contains("pod m")),
        "{words:?}"
    );
    assert_eq!(updates(&calls), 0, "the entry is another pod's");
    // A try does not queue, so it is refused with the holder.
    let tried = b.acquire("r").await;
    assert!(matches!(tried, Ok(Acquired::Held { .. })), "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn session_recreated_by_another_pod_extends_no_grant() {
    let store = MemoryStore::default();
    let (v, c) = (
        Pod::in_paused_time("v", &store),
        Pod::in_paused_time("c", &store),
    );
    let old = v.lease("r").await;
    let id = store.session_of("r").unwrap();
    let mut recreated = store.session(&id).unwrap();
    v.store.cut_off();
    store.delete_session(&id);
    recreated.pod = pod_ref("m");
    store.create(&recreated).await.unwrap();
    let waiting = queued_waiter(&c, "c", 240).await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_secs(5)).await;
        store.renew_session(&id);
    }
    assert!(waiting.is_finished(), "its pod's session is gone");
    assert!(granted(waiting).await.token > old.token);
    let lock = store.lock("r").unwrap();
    assert_eq!(holder_uid(&lock).as_deref(), Some("uid-of-c"));
    assert!(store.session(&id).unwrap().revoked.is_none(), "it is m's");
}

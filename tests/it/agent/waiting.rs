//! Waiting in the queue, on a store in memory and in paused time: what takes a TTL takes none here.

mod crowd;
mod faults;
mod holds;
mod joins;
mod kept;
mod local;
mod repeated;
mod slow_store;

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, Agent, LeaseView, Life, OnTerm, Released,
};
use leasehold::protocol::ids::{OwnerId, Resource};
use tokio::task::JoinHandle;

use super::{Pod, eventually};
use crate::memory_store::MemoryStore;

pub(super) type Waiting = JoinHandle<Result<Acquired, AcquireError>>;

pub(super) fn request(owner: &str, wait: u64) -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse("r").unwrap(),
        owner: OwnerId::from(owner),
        life: Life::Ttl(Duration::from_mins(10)),
        wait: Duration::from_secs(wait),
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

pub(super) fn spawn(agent: &Agent, request: AcquireRequest) -> Waiting {
    let agent = agent.clone();
    tokio::spawn(async move { agent.acquire(request, agent.now()).await })
}

/// Two pods on one store, in paused time.
fn two_pods() -> (MemoryStore, Pod, Pod) {
    let store = MemoryStore::default();
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    (store, a, b)
}

/// Waits in line, and is in it when this returns.
pub(super) async fn queued_waiter(pod: &Pod, owner: &str, wait: u64) -> Waiting {
    let before = queue(pod).len();
    let waiting = spawn(&pod.agent, request(owner, wait));
    eventually("it stands in the queue", || queue(pod).len() > before).await;
    waiting
}

/// The owners in the queue, oldest first.
fn queue(pod: &Pod) -> Vec<String> {
    let lock = pod.store.lock("r");
    let waiters = lock.iter().flat_map(|lock| lock.waiters.entries());
    waiters.map(|w| w.claimant.owner.to_string()).collect()
}

fn holder(pod: &Pod) -> Option<String> {
    let grant = pod.store.lock("r")?.grant?;
    Some(grant.holder.owner.to_string())
}

pub(super) async fn granted(waiting: Waiting) -> LeaseView {
    match waiting.await.unwrap() {
        Ok(Acquired::Granted { lease, .. }) => lease,
        other => panic!("it was not granted: {other:?}"),
    }
}

/// Everything that can go on without time passing has gone on.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(super) async fn release(pod: &Pod, lease: &LeaseView) {
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_handed_the_lock_in_the_releasing_write() {
    let (store, a, b) = two_pods();
    let first = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 60).await;
    let writes = store.writes();
    release(&a, &first).await;
    let second = granted(waiting).await;
    assert_eq!(store.writes(), writes + 1);
    assert!(second.token > first.token);
    assert_eq!(holder(&b).as_deref(), Some("b"));
}

#[tokio::test(start_paused = true)]
async fn waiters_validity_counts_from_its_request() {
    let (_, a, b) = two_pods();
    let first = a.lease("r").await;
    let arrived = b.now();
    let waiting = queued_waiter(&b, "b", 240).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    a.agent.renew(&first.lease, None, a.now()).unwrap();
    release(&a, &first).await;
    let lease = granted(waiting).await;
    let waited = b.now().since(arrived);
    let left = lease.valid_for.saturating_sub(waited);
    assert!(
        left > Duration::from_secs(7),
        "{left:?}: more than half a TTL"
    );
    assert!(
        // Equal if the session was renewed in the same moment.
        left <= Duration::from_millis(14_250),
        "{left:?}: within the session's own deadline"
    );
    assert!(lease.renew_after > waited);
}

#[tokio::test(start_paused = true)]
async fn lock_is_granted_in_queue_order() {
    let store = MemoryStore::default();
    let pods: Vec<Pod> = (0..10)
        .map(|n| Pod::in_paused_time(&format!("p{n}"), &store))
        .collect();
    let mut lease = pods[0].lease("r").await;
    let mut waiting = Vec::new();
    for (n, pod) in pods.iter().enumerate().skip(1) {
        waiting.push(queued_waiter(pod, &format!("o{n}"), 240).await);
    }
    for (n, waiting) in (1..).zip(waiting) {
        release(&pods[n - 1], &lease).await;
        let next = granted(waiting).await;
        assert!(next.token > lease.token);
        assert_eq!(holder(&pods[n]), Some(format!("o{n}")));
        lease = next;
    }
}

#[tokio::test(start_paused = true)]
async fn local_callers_share_one_queue_entry() {
    let (_, a, b) = two_pods();
    let lease = a.lease("r").await;
    let one = queued_waiter(&b, "one", 240).await;
    let _two = spawn(&b.agent, request("two", 240));
    settled().await;
    assert_eq!(queue(&b), ["one"]);
    release(&a, &lease).await;
    granted(one).await;
    assert_eq!(holder(&b).as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn timed_out_waiter_receives_the_holder_and_leaves_the_queue() {
    let (_, a, b) = two_pods();
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 30).await;
    let answer = waiting.await.unwrap();
    assert!(matches!(answer, Ok(Acquired::Held(held)) if held.holder.owner.as_str() == "app"));
    eventually("it left the queue", || queue(&b).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn hang_up_frees_the_entry_or_passes_it_on_within_the_pod() {
    let (_, a, b) = two_pods();
    let c = Pod::in_paused_time("c", &a.store);
    let lease = a.lease("r").await;
    let gone = queued_waiter(&b, "gone", 240).await;
    let _last = queued_waiter(&c, "last", 240).await;
    let next = spawn(&b.agent, request("next", 240));
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.is_err());
    release(&a, &lease).await;
    let lease = granted(next).await;
    assert_eq!(holder(&b).as_deref(), Some("next"), "people see who has it");
    assert_eq!(queue(&b), ["last"]);
    let gone = spawn(&b.agent, request("gone", 240));
    eventually("it waits", || queue(&b).len() == 2).await;
    gone.abort();
    eventually("the queue is left", || queue(&b) == ["last"]).await;
    assert!(b.agent.lease(&lease.lease, b.now()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn grant_without_a_caller_is_released_at_once() {
    let (_, a, b) = two_pods();
    let (mut heard, mut unheard) = (0, 0);
    for yields in 0..60 {
        let lease = a.lease("r").await;
        let waiting = queued_waiter(&b, "b", 240).await;
        let releasing = a.agent.clone();
        let releasing = tokio::spawn(async move { releasing.release(&lease.lease).await });
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        // Granted first, or gone first: both happen.
        let answer = waiting.await;
        releasing.await.unwrap().unwrap();
        if let Ok(Ok(Acquired::Granted { lease, .. })) = answer {
            release(&b, &lease).await;
            heard += 1;
        } else {
            unheard += 1;
        }
        let since = b.now();
        eventually("the lock is free", || b.is_free("r")).await;
        assert!(b.now().since(since) < Duration::from_secs(1));
    }
    assert!(heard > 0 && unheard > 0, "{heard} heard, {unheard} did not");
}

#[tokio::test(start_paused = true)]
async fn eighty_two_waiters_are_all_served() {
    let store = MemoryStore::default();
    let mut served = Vec::new();
    for n in 0..82 {
        let pod = Pod::in_paused_time(&format!("p{n}"), &store);
        served.push(tokio::spawn(async move {
            let lease = granted(spawn(&pod.agent, request(&format!("o{n}"), 240))).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            release(&pod, &lease).await;
            lease.token
        }));
    }
    let tokens = futures::future::join_all(served).await;
    let tokens: std::collections::BTreeSet<_> = tokens.into_iter().map(Result::unwrap).collect();
    assert_eq!(tokens.len(), 82);
}

#[tokio::test(start_paused = true)]
async fn stopping_agent_refuses_its_waiters_and_leaves_the_queue() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let since = b.now();
    b.agent.shut_down(OnTerm::Wait).await;
    assert!(b.now().since(since) < Duration::from_secs(1));
    assert_eq!(waiting.await.unwrap(), Err(AcquireError::ShuttingDown));
    assert!(queue(&b).is_empty());
    assert!(
        store
            .sessions()
            .iter()
            .any(|session| session.revoked.is_some())
    );
}

#[tokio::test(start_paused = true)]
async fn refused_caller_begins_no_session() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let calls = store.calls();
    let answer = spawn(&b.agent, request("b", 0)).await.unwrap();
    assert!(matches!(answer, Ok(Acquired::Held { .. })));
    assert_eq!(store.sessions().len(), 1);
    assert_eq!(
        store.calls(),
        calls + 2,
        "the lock and its holder's session were read"
    );
}

//! An agent that is told to stop while an acquire is under way: whatever the store was about to
//! do, no grant is left that nobody would end, and the session is over.

use std::time::Duration;

use leasehold::agent::{AcquireError, Acquired, OnTerm};
use leasehold::protocol::session::RevokeReason;
use tokio::task::JoinHandle;

use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

/// Every call that a first acquire makes, before and after it is done.
const UNDER_WAY: [(Call, Half); 8] = [
    (Call::LookAtLock, Half::Request),
    (Call::LookAtLock, Half::Answer),
    (Call::CreateLock, Half::Request),
    (Call::CreateLock, Half::Answer),
    (Call::CreateSession, Half::Request),
    (Call::CreateSession, Half::Answer),
    (Call::UpdateLock, Half::Request),
    (Call::UpdateLock, Half::Answer),
];

type Acquiring = JoinHandle<Result<Acquired, AcquireError>>;

/// Begins an acquire and, once it has come as far as the gate, the stop.
async fn stop_under_an_acquire(
    store: &MemoryStore,
    (call, half): (Call, Half),
    on_term: OnTerm,
) -> (crate::memory_store::Gate, Acquiring, JoinHandle<()>) {
    let pod = Pod::new("a", store, |_| {});
    let gate = store.hold(call, half);
    let agent = pod.agent.clone();
    let acquiring = tokio::spawn(async move { pod.acquire("r").await });
    eventually("the acquire is under way", || gate.arrived() > 0).await;
    let stopped = agent.clone();
    let stopping = tokio::spawn(async move { stopped.shut_down(on_term).await });
    eventually("the agent is stopping", || agent.is_draining()).await;
    (gate, acquiring, stopping)
}

fn assert_sessions_ended(store: &MemoryStore, case: &str) {
    let sessions = store.sessions();
    // Who is stopped before its session began leaves none.
    assert!(sessions.len() <= 1, "{case}");
    for session in sessions {
        let ended = session.revoked.as_ref().map(|revoked| &revoked.reason);
        assert_eq!(ended, Some(&RevokeReason::Ended), "{case}");
    }
}

#[tokio::test]
async fn a_stop_under_an_acquire_leaves_no_grant_and_no_session() {
    for on_term in [OnTerm::Wait, OnTerm::ReleaseNow] {
        for under_way in UNDER_WAY {
            let case = format!("{on_term:?}, {under_way:?}");
            let store = MemoryStore::default();
            let (gate, acquiring, stopping) =
                stop_under_an_acquire(&store, under_way, on_term).await;
            tokio::task::yield_now().await;
            assert!(!stopping.is_finished(), "{case}: it waits for the acquire");
            gate.open();
            let answer = acquiring.await.unwrap();
            assert_eq!(answer, Err(AcquireError::ShuttingDown), "{case}");
            stopping.await.unwrap();
            let lock = store.lock("r");
            assert!(lock.is_none_or(|lock| lock.grant.is_none()), "{case}");
            assert_sessions_ended(&store, &case);
            let calls = store.calls();
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(store.calls(), calls, "{case}: a stopped agent is silent");
        }
    }
}

#[tokio::test]
async fn a_stop_that_waits_no_longer_for_the_store_leaves_what_another_may_take_at_once() {
    let stop = async |on_term| {
        let store = MemoryStore::default();
        let under_way = (Call::UpdateLock, Half::Answer);
        let (gate, acquiring, stopping) = stop_under_an_acquire(&store, under_way, on_term).await;
        let session = store.session_of("r");
        assert!(session.is_some(), "the grant has landed; nobody was told");
        stopping.await.unwrap();
        assert_sessions_ended(&store, &format!("{on_term:?}"));
        gate.open();
        assert!(acquiring.await.unwrap().is_err());
        let other = Pod::new("b", &store, |_| {});
        other.lease("r").await;
        assert_ne!(store.session_of("r"), session);
    };
    tokio::join!(stop(OnTerm::Wait), stop(OnTerm::ReleaseNow));
}

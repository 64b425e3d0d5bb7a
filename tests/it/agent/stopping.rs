//! An agent that is stopped. While an acquire is under way: whatever the store was about to do, no grant is left
//! behind, and the session is over. With `release-now`: only what no app was promised is released.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, Campaign, LeaseEvent, LeaseView, Life, OnTerm,
};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::ids::{OwnerId, Resource};
use leasehold::protocol::session::RevokeReason;
use tokio::task::JoinHandle;

use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

/// Every call that a first acquire makes, before and after it is done.
const UNDER_WAY: [(Call, Half); 8] = [
    (Call::GetLockWithRevision, Half::Request),
    (Call::GetLockWithRevision, Half::Answer),
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
    // An agent that is stopped before its session began leaves none.
    assert!(sessions.len() <= 1, "{case}");
    for session in sessions {
        let ended = session.revoked.as_ref().map(|revoked| &revoked.reason);
        assert_eq!(ended, Some(&RevokeReason::Ended), "{case}");
    }
}

#[tokio::test]
async fn stop_during_an_acquire_leaves_no_grant_and_no_session() {
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
async fn stop_without_an_answer_leaves_a_lock_free_to_take_over() {
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

fn request(life: Life) -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse("r").unwrap(),
        owner: OwnerId::from("app"),
        life,
        wait: Duration::ZERO,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

const DAY: Life = Life::Connection {
    max_hold: Duration::from_hours(24),
};

async fn granted(pod: &Pod, request: AcquireRequest) -> LeaseView {
    match pod.agent.acquire(request, pod.now()).await {
        Ok(Acquired::Granted { lease, .. }) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Stops the agent, which must take no time, and checks that no session was revoked.
async fn stop_and_leave(pod: &Pod) {
    let before = pod.now();
    pod.agent.shut_down(OnTerm::ReleaseNow).await;
    assert_eq!(pod.now(), before, "a Job would wait for it");
    let sessions = pod.store.sessions();
    let are_left = sessions.iter().all(|session| session.revoked.is_none());
    assert!(are_left, "a session was revoked under a promise");
}

#[tokio::test(start_paused = true)]
async fn release_now_leaves_a_promised_lease_to_its_session() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    let held = store.lock("r");
    stop_and_leave(&pod).await;
    assert_eq!(store.lock("r"), held);
    // Until the process ends, the app is answered as before.
    let told = pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    assert_eq!(told.valid_for, lease.valid_for, "no deadline moves");
    let calls = store.calls();
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(store.calls(), calls, "a stopped agent is silent");
}

#[tokio::test(start_paused = true)]
async fn release_now_releases_what_no_app_was_promised() {
    let store = MemoryStore::default();
    let other = Pod::in_paused_time("b", &store);
    for promised in [false, true] {
        let pod = Pod::in_paused_time("a", &store);
        // Its promise passes, and its own time does not.
        pod.lease("expired").await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let warm = granted(
            &pod,
            AcquireRequest {
                resource: Resource::parse("warm").unwrap(),
                keep: Duration::from_mins(10),
                ..request(Life::Ttl(Duration::from_mins(10)))
            },
        )
        .await;
        pod.agent.release(&warm.lease).await.unwrap();
        assert!(!pod.is_free("expired") && !pod.is_free("warm"));
        let busy = other.lease("busy").await;
        let waits = AcquireRequest {
            resource: Resource::parse("busy").unwrap(),
            wait: Duration::from_mins(10),
            ..request(Life::Ttl(Duration::from_mins(10)))
        };
        let (agent, arrived) = (pod.agent.clone(), pod.now());
        let waiting = tokio::spawn(async move { agent.acquire(waits, arrived).await });
        let queued = || {
            store
                .lock("busy")
                .is_some_and(|lock| lock.waiters.len() == 1)
        };
        eventually("it is queued", queued).await;
        let own = store.session_of("warm").unwrap();
        if promised {
            pod.lease("promised").await;
        }

        let before = pod.now();
        pod.agent.shut_down(OnTerm::ReleaseNow).await;
        assert_eq!(pod.now(), before, "it waits for nothing");
        assert_eq!(waiting.await.unwrap(), Err(AcquireError::ShuttingDown));
        assert!(pod.is_free("expired") && pod.is_free("warm"));
        assert!(!queued(), "its queue entry is gone");
        assert_eq!(pod.is_free("promised"), !promised);
        let session = store.session(&own).unwrap();
        assert_eq!(session.revoked.is_some(), !promised);
        other.agent.release(&busy.lease).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn release_now_keeps_holds_whose_connections_it_closes() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let mut hold = pod.agent.hold(request(DAY), pod.now()).await.unwrap();
    let acquired = hold.next().await;
    assert!(matches!(acquired, Some(LeaseEvent::Acquired(_))));
    stop_and_leave(&pod).await;
    let mut last = hold.next().await;
    while let Some(event) = last {
        assert!(!matches!(event, LeaseEvent::Lost(..)), "{event:?}");
        last = hold.next().await;
    }
    drop(hold);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!pod.is_free("r"), "its app may be there");
}

#[tokio::test(start_paused = true)]
async fn release_now_follows_a_hold_whose_connection_has_ended() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let mut hold = pod.agent.hold(request(DAY), pod.now()).await.unwrap();
    assert!(matches!(hold.next().await, Some(LeaseEvent::Acquired(_))));
    drop(hold);
    pod.agent.shut_down(OnTerm::ReleaseNow).await;
    assert!(pod.is_free("r"));
    assert_sessions_ended(&store, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn release_now_hands_on_a_lead_that_no_app_asked_about() {
    for is_asked in [false, true] {
        let store = MemoryStore::default();
        let pod = Pod::in_paused_time("a", &store);
        let election = ElectionName::parse("e").unwrap();
        pod.agent.run_for(Campaign {
            election: election.clone(),
            preferred: false,
        });
        eventually("it leads", || store.session_of("election:e").is_some()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        if is_asked {
            let view = pod.agent.election(&election, pod.now()).await.unwrap();
            assert!(view.lead.is_some());
            // The promise is over: the app may have been let in by it all the same (`gate-lock`).
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        pod.agent.shut_down(OnTerm::ReleaseNow).await;
        assert_eq!(pod.is_free("election:e"), !is_asked);
    }
}

#[tokio::test(start_paused = true)]
async fn release_now_ends_the_streams_of_what_it_leaves() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = granted(
        &pod,
        AcquireRequest {
            resource: Resource::parse("election:e").unwrap(),
            ..request(Life::Ttl(Duration::from_mins(10)))
        },
    )
    .await;
    let mut events = pod.agent.events(&lease.lease, pod.now()).unwrap();
    let election = ElectionName::parse("e").unwrap();
    let told = pod.agent.election_events(&election, pod.now()).await;
    let mut told = told.unwrap();
    assert!(told.next().await.is_some());
    stop_and_leave(&pod).await;
    let before = pod.now();
    // An open stream would keep the process running.
    while let Some(event) = events.next().await {
        assert!(!matches!(event, LeaseEvent::Lost(..)), "{event:?}");
    }
    while told.next().await.is_some() {}
    assert_eq!(pod.now(), before);
}

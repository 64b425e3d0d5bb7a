//! The agent on a store in memory and a manual clock: what it does when time passes, and what it leaves behind.

mod being_deleted;
mod defences;
mod elections;
mod events;
mod expired;
mod forced;
mod foreign;
mod long_ttl;
mod releases;
mod restored;
mod resume;
mod revoked;
mod same_seed;
mod sessions;
mod stopping;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, Agent, Config, LeaseError, LeaseView, Life, OnTerm,
    Released,
};
use leasehold::clock::{Clock, ManualClock};
use leasehold::protocol::ids::{OwnerId, Resource};
use leasehold::protocol::lease::Loss;
use leasehold::protocol::session::{PodRef, RevokeReason};
use leasehold::protocol::time::Moment;

use crate::memory_store::{Call, Half, MemoryStore};
use crate::paused_clock::PausedClock;

fn pod_ref(name: &str) -> PodRef {
    PodRef {
        name: name.into(),
        uid: format!("uid-of-{name}").into(),
        node: None,
    }
}

struct Pod {
    agent: Agent,
    store: MemoryStore,
    clock: ManualClock,
}

impl Pod {
    fn new(name: &str, store: &MemoryStore, adjust: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(pod_ref(name));
        adjust(&mut config);
        let clock = ManualClock::default();
        Self::with(config, store, clock.clone(), Arc::new(clock))
    }

    /// A pod on tokio's own clock: in a test with paused time, waiting takes no time.
    fn in_paused_time(name: &str, store: &MemoryStore) -> Self {
        let config = Config::new(pod_ref(name));
        Self::with(
            config,
            store,
            ManualClock::default(),
            Arc::new(PausedClock::start()),
        )
    }

    fn with(
        config: Config,
        store: &MemoryStore,
        clock: ManualClock,
        driving: Arc<dyn Clock>,
    ) -> Self {
        let store = store.over_a_connection();
        let (locks, sessions) = (Arc::new(store.clone()), Arc::new(store.clone()));
        Self {
            agent: Agent::new(config, locks, sessions, driving),
            store,
            clock,
        }
    }

    async fn acquire(&self, resource: &str) -> Result<Acquired, AcquireError> {
        self.acquire_as(resource, None).await
    }

    async fn acquire_as(
        &self,
        resource: &str,
        request_id: Option<&str>,
    ) -> Result<Acquired, AcquireError> {
        let request = AcquireRequest {
            resource: Resource::parse(resource).unwrap(),
            owner: OwnerId::from("app"),
            life: Life::Ttl(Duration::from_mins(10)),
            wait: Duration::ZERO,
            keep: Duration::ZERO,
            metadata: BTreeMap::new(),
            preferred: false,
            request_id: request_id.map(str::to_owned),
        };
        // By its own clock, which may be the test's to move, it might try for ever.
        let acquired = self.agent.acquire(request, self.now());
        let in_time = tokio::time::timeout(Duration::from_mins(1), acquired).await;
        in_time.unwrap_or_else(|_| panic!("the acquire of {resource} does not end"))
    }

    async fn lease(&self, resource: &str) -> LeaseView {
        match self.acquire(resource).await {
            Ok(Acquired::Granted { lease, .. }) => lease,
            other => panic!("{resource} was not granted: {other:?}"),
        }
    }

    fn now(&self) -> Moment {
        self.agent.now()
    }

    fn is_free(&self, resource: &str) -> bool {
        self.store
            .lock(resource)
            .is_none_or(|lock| lock.grant.is_none())
    }
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come true in 30 s");
}

#[tokio::test]
async fn agent_makes_no_request_before_the_first_acquire() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let _metrics = pod.agent.metrics().encode();
    tokio::task::yield_now().await;
    assert_eq!(store.calls(), 0);
}

#[tokio::test]
async fn known_lock_is_acquired_with_one_write_and_no_read() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let first = pod.lease("r").await;
    assert_eq!(pod.agent.release(&first.lease).await, Ok(Released::Done));
    let calls = store.calls();
    let second = pod.lease("r").await;
    assert_eq!(store.calls(), calls + 1);
    assert!(second.token > first.token);
}

#[tokio::test]
async fn renewing_and_reading_a_lease_make_no_request() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    let calls = store.calls();
    for _ in 0..100 {
        pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
        pod.agent.lease(&lease.lease, pod.now()).unwrap();
    }
    assert_eq!(store.calls(), calls);
}

#[tokio::test]
async fn machine_that_slept_past_the_deadline_wakes_without_a_lease() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    let session = store.session_of("r").unwrap();
    // The timers did not run, as on a machine that slept; only the clock knows.
    pod.clock.advance(Duration::from_secs(20));
    let lost = Err(LeaseError::Lost(Loss::SessionExpired));
    assert_eq!(pod.agent.renew(&lease.lease, None, pod.now()), lost);
    assert_eq!(pod.agent.lease(&lease.lease, pod.now()), lost);

    eventually("the lost session's lock is free", || pod.is_free("r")).await;
    let ended = store.session(&session).unwrap().revoked.unwrap();
    assert_eq!(ended.reason, RevokeReason::Ended);
    let again = pod.lease("r").await;
    assert!(again.token > lease.token);
    assert_ne!(
        store.session_of("r"),
        Some(session),
        "a lost session is never used again"
    );
}

#[tokio::test(start_paused = true)]
async fn unneeded_session_is_ended() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    let session = store.session_of("r").unwrap();
    pod.agent.release(&lease.lease).await.unwrap();
    tokio::time::sleep(Duration::from_mins(9)).await;
    let is_ended = || {
        let session = store.session(&session).unwrap();
        session.revoked.is_some()
    };
    assert!(!is_ended(), "it outlives nine idle minutes");
    tokio::time::sleep(Duration::from_secs(75)).await;
    assert!(
        is_ended(),
        "it is ended by the first renewal that is due after ten"
    );
    let calls = store.calls();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(store.calls(), calls, "an idle agent is silent");
}

#[tokio::test]
async fn stopping_agent_grants_nothing_and_waits_for_the_release() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    let told = pod.agent.lease(&lease.lease, pod.now()).unwrap();
    let agent = pod.agent.clone();
    let stopping = tokio::spawn(async move { agent.shut_down(OnTerm::Wait).await });
    eventually("the agent is stopping", || pod.agent.is_draining()).await;

    assert_eq!(pod.acquire("other").await, Err(AcquireError::ShuttingDown));
    let renewed = pod.agent.renew(&lease.lease, None, pod.now());
    let renewed = renewed.expect("nobody released it");
    assert_eq!(
        renewed.valid_for, told.valid_for,
        "no deadline moves any more"
    );
    assert!(!stopping.is_finished());
    pod.agent.release(&lease.lease).await.unwrap();
    stopping.await.unwrap();
    assert!(pod.is_free("r"));
}

#[tokio::test]
async fn apps_ended_frees_everything_at_once() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    for resource in ["r1", "r2", "r3"] {
        pod.lease(resource).await;
    }
    pod.agent.shut_down(OnTerm::AppsEnded).await;
    assert!(
        ["r1", "r2", "r3"]
            .iter()
            .all(|resource| pod.is_free(resource))
    );
}

#[tokio::test]
async fn expired_holder_is_taken_over_only_after_a_full_silence() {
    let store = MemoryStore::default();
    let dead = Pod::new("dead", &store, |_| {});
    let old = dead.lease("r").await;
    let session = store.session_of("r").unwrap();
    let other = Pod::new("other", &store, |_| {});

    let held = |answer| matches!(answer, Ok(Acquired::Held { .. }));
    assert!(
        held(other.acquire("r").await),
        "the count begins with the first sight"
    );
    other.clock.advance(Duration::from_millis(15_740));
    // The clock jumped past the challenger's own session too: it begins another, and still may not revoke.
    assert!(held(other.acquire("r").await), "taken over too early");
    assert!(store.session(&session).unwrap().revoked.is_none());
    other.clock.advance(Duration::from_millis(10));
    let taken = other.lease("r").await;
    assert!(taken.token > old.token);
    assert!(
        store.session(&session).unwrap().revoked.is_some(),
        "taken over without a revocation"
    );
    let lock = store.lock("r").unwrap();
    assert_eq!(lock.incidents.len(), 1);
    assert_eq!(&*lock.incidents[0].pod, "dead");
    assert_eq!(&*lock.incidents[0].actor, "other");
}

#[tokio::test]
async fn the_same_request_twice_at_once_gets_one_lease() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let (first, second) = tokio::join!(
        pod.acquire_as("r", Some("id-1")),
        pod.acquire_as("r", Some("id-1"))
    );
    let lease_of = |answer| match answer {
        Ok(Acquired::Granted { lease, replayed }) => (lease.lease, replayed),
        other => panic!("not granted: {other:?}"),
    };
    let ((first, first_replayed), (second, second_replayed)) = (lease_of(first), lease_of(second));
    assert_eq!(first, second);
    assert_ne!(first_replayed, second_replayed);
}

#[tokio::test]
async fn hang_up_does_not_release_the_lease_of_a_repeated_request() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    {
        let hung_up = pod.acquire_as("r", Some("id-1"));
        tokio::pin!(hung_up);
        assert!(futures::poll!(hung_up).is_pending());
    }
    let Ok(Acquired::Granted { lease, .. }) = pod.acquire_as("r", Some("id-1")).await else {
        panic!("the repetition was not granted");
    };
    // Whichever call got the lease first, it is not released under the call that returned it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    assert!(!pod.is_free("r"));
}

#[tokio::test]
async fn a_caller_that_hangs_up_leaves_no_grant() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let gate = store.hold(Call::UpdateLock, Half::Answer);
    {
        let hung_up = pod.acquire("r");
        tokio::pin!(hung_up);
        while gate.arrived() == 0 {
            assert!(futures::poll!(&mut hung_up).is_pending());
            tokio::task::yield_now().await;
        }
    }
    gate.open();
    eventually("the lock was taken and is free again", || {
        store
            .lock("r")
            .is_some_and(|lock| lock.transitions == 1 && lock.grant.is_none())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn undelivered_answer_is_kept_for_a_repeated_request() {
    for repeated_after in [0, 9, 11] {
        let store = MemoryStore::default();
        let pod = Pod::in_paused_time("a", &store);
        {
            let hung_up = pod.acquire_as("r", Some("id-1"));
            tokio::pin!(hung_up);
            assert!(futures::poll!(hung_up).is_pending());
        }
        eventually("the lock was taken", || !pod.is_free("r")).await;
        tokio::time::sleep(Duration::from_secs(repeated_after)).await;
        let is_kept = repeated_after < 10;
        assert_eq!(pod.is_free("r"), !is_kept, "after {repeated_after} s");
        let repeated = pod.acquire_as("r", Some("id-1")).await;
        let Ok(Acquired::Granted { replayed, .. }) = repeated else {
            panic!("after {repeated_after} s: {repeated:?}");
        };
        assert_eq!(replayed, is_kept, "after {repeated_after} s");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(
            !pod.is_free("r"),
            "it was repeated, so somebody believes in it"
        );
    }
}

#[tokio::test]
async fn store_that_went_back_grants_nothing_until_it_caught_up() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    store.go_back(2);
    assert!(pod.agent.locks("", 10, None).await.is_err());
    let lost = Err(LeaseError::Lost(Loss::StoreRestored));
    assert_eq!(pod.agent.lease(&lease.lease, pod.now()), lost);
    let refused = pod.acquire("other").await;
    assert!(
        matches!(refused, Err(AcquireError::StoreWentBack(_))),
        "{refused:?}"
    );
    store.go_forward(1_000_000_000);
    assert!(pod.lease("other").await.token > lease.token);
}

#[tokio::test]
async fn lease_is_lost_as_soon_as_its_lock_is_seen_deleted() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    store.delete_lock("r");
    let resource = Resource::parse("r").unwrap();
    pod.agent.verify(&resource, lease.token).await.unwrap();
    let lost = Err(LeaseError::Lost(Loss::GrantGone));
    assert_eq!(pod.agent.renew(&lease.lease, None, pod.now()), lost);
    assert!(pod.lease("r").await.token > lease.token);
}

#[tokio::test(start_paused = true)]
async fn late_grant_without_a_caller_is_released_and_not_served() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let other = pod.lease("other").await;
    let first = pod.lease("r").await;
    let grant = store.lock("r").unwrap().grant.unwrap();
    pod.agent.release(&first.lease).await.unwrap();
    // A write of this agent's that landed after all callers had left.
    store.edit_lock("r", |lock| {
        let late = leasehold::protocol::ids::GrantId::from("late");
        lock.grant = Some(leasehold::protocol::lock::Grant { id: late, ..grant });
        lock.token = leasehold::protocol::token::Token::from_raw(first.token.get() + 1_000);
    });
    let again = pod.lease("r").await;
    assert!(again.token.get() > first.token.get() + 1_999);
    assert!(!again.lease.as_str().starts_with("late"));
    pod.agent.renew(&other.lease, None, pod.now()).unwrap();
}

//! Tries at the lock of a crashed holder, by agents that have not observed its session before.

use leasehold::protocol::time::SessionTtl;

use super::waiting::queued_waiter;
use super::*;
use crate::memory_store::Call;

/// Pods with one clock for all, as machines whose wall clocks agree.
pub(super) struct Cluster {
    pub(super) store: MemoryStore,
    clock: Arc<PausedClock>,
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self {
            store: MemoryStore::default(),
            clock: Arc::new(PausedClock::start()),
        }
    }

    fn pod(&self, name: &str) -> Pod {
        self.pod_with_ttl(name, 15)
    }

    pub(super) fn pod_with_ttl(&self, name: &str, ttl: u64) -> Pod {
        let config = Config {
            session_ttl: SessionTtl::from_secs(ttl).unwrap(),
            ..Config::new(pod_ref(name))
        };
        let driving: Arc<dyn Clock> = self.clock.clone();
        Pod::with(config, &self.store, ManualClock::default(), driving)
    }
}

#[tokio::test(start_paused = true)]
async fn single_try_of_a_new_agent_takes_over_an_expired_lock() {
    let cluster = Cluster::new();
    let mut holder = cluster.pod("p0");
    let mut last = holder.lease("r").await;
    // Three in turn, as the pods of a CronJob. Each crashes with the lock; the first one had renewed its session
    // before.
    for number in 1..4 {
        tokio::time::sleep(Duration::from_secs(10 * (number - 1))).await;
        holder.store.cut_off();
        tokio::time::sleep(Duration::from_mins(60)).await;
        holder = cluster.pod(&format!("p{number}"));
        let since = holder.now();
        let tried = holder.acquire("r").await;
        let Ok(Acquired::Granted { lease, .. }) = tried else {
            panic!("p{number}: {tried:?}");
        };
        assert!(lease.token > last.token);
        last = lease;
        let took = holder.now().since(since);
        assert!(took <= Duration::from_millis(15_750), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn try_at_a_live_holders_lock_returns_at_once() {
    let cluster = Cluster::new();
    let a = cluster.pod("a");
    let lease = a.lease("r").await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    let b = cluster.pod("b");
    let since = b.now();
    assert!(matches!(b.acquire("r").await, Ok(Acquired::Held { .. })));
    assert_eq!(b.now(), since);
}

#[tokio::test(start_paused = true)]
async fn holder_with_a_late_wall_clock_is_not_expired() {
    let store = MemoryStore::default();
    // Its wall clock is an hour behind the other's, and it renews its session.
    let late = Arc::new(PausedClock::start());
    tokio::time::sleep(Duration::from_mins(60)).await;
    let pod = |name, driving| {
        Pod::with(
            Config::new(pod_ref(name)),
            &store,
            ManualClock::default(),
            driving,
        )
    };
    let a = Pod::in_paused_time("a", &store);
    a.lease("r").await;
    let session = store.session_of("r").unwrap();
    let b = pod("b", late as Arc<dyn Clock>);
    let since = b.now();
    assert!(matches!(b.acquire("r").await, Ok(Acquired::Held { .. })));
    let third = Duration::from_secs(5 + 2);
    assert!(b.now().since(since) <= third, "until it is renewed");
    let since = b.now();
    assert!(matches!(b.acquire("r").await, Ok(Acquired::Held { .. })));
    assert_eq!(b.now(), since, "it was seen alive");
    assert!(store.session(&session).unwrap().revoked.is_none());
}

/// In strict mode nothing that it could learn from a session would let it act.
#[tokio::test(start_paused = true)]
async fn agent_without_take_overs_reads_no_foreign_session() {
    let store = MemoryStore::default();
    let pod = |name: &str, takes_over| {
        let config = Config {
            takes_over,
            ..Config::new(pod_ref(name))
        };
        let driving: Arc<dyn Clock> = Arc::new(PausedClock::start());
        Pod::with(config, &store, ManualClock::default(), driving)
    };
    let holder = pod("holder", false);
    holder.lease("r").await;
    for (name, takes_over) in [("strict", false), ("auto", true)] {
        let waiter = pod(name, takes_over);
        let calls = waiter.store.record_calls();
        let _waiting = queued_waiter(&waiter, name, 240).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let tried = waiter.acquire("r").await;
        assert!(matches!(tried, Ok(Acquired::Held { .. })), "{tried:?}");
        let looked = calls.lock().unwrap().contains(&Call::GetSession);
        assert_eq!(looked, takes_over, "{name}");
    }
}

//! An agent whose process crashes and is started again, on the store in memory, with a state file on a disk and one
//! clock for both: what is resumed, what is not, and when.

mod elections;
mod ended;
mod file;
mod grants;
mod outages;
mod refusals;
mod stopped;

use std::fs;
use std::path::{Path, PathBuf};

use leasehold::agent::Memory;
use leasehold::protocol::lock::Grant;
use leasehold::protocol::token::Token;
use leasehold::state_file::StateFile;
use leasehold::store::StoreError;
use tempfile::TempDir;

use super::*;
use crate::memory_store::{Call, Half};

/// What the file is called.
const FILE: &str = "state";

/// A pod whose sidecar can be killed and started again.
struct Node {
    store: MemoryStore,
    clock: ManualClock,
    /// The clock that the agents have: that one, or tokio's.
    driving: Arc<dyn Clock>,
    /// One directory for each start: what a killed process held open is its own.
    directories: Vec<TempDir>,
}

impl Node {
    fn new() -> Self {
        let clock = ManualClock::default();
        // Not zero: nothing begins at boot.
        clock.advance(Duration::from_secs(1_000));
        Self {
            store: MemoryStore::default(),
            driving: Arc::new(clock.clone()),
            clock,
            directories: vec![tempfile::tempdir().unwrap()],
        }
    }

    /// In a test with paused time, where waiting takes no time.
    fn in_paused_time() -> Self {
        Self {
            driving: Arc::new(PausedClock::start()),
            ..Self::new()
        }
    }

    fn file(&self) -> PathBuf {
        self.directories.last().unwrap().path().join(FILE)
    }

    /// Starts the sidecar.
    fn start(&self) -> Pod {
        self.start_with(|_| {}, |_| {})
    }

    fn start_with(
        &self,
        adjust: impl FnOnce(&mut Config),
        change: impl FnOnce(&mut Memory),
    ) -> Pod {
        let directory = self.directories.last().unwrap().path();
        let mut memory = memory(directory).expect("nobody else has it");
        change(&mut memory);
        self.start_from(adjust, memory)
    }

    fn start_from(&self, adjust: impl FnOnce(&mut Config), memory: Memory) -> Pod {
        let mut config = Config::new(pod_ref("a"));
        adjust(&mut config);
        let store = self.store.over_a_connection();
        let (locks, sessions) = (Arc::new(store.clone()), Arc::new(store.clone()));
        let clock = self.driving.clone();
        Pod {
            agent: Agent::with_memory(config, locks, sessions, clock, memory),
            store,
            clock: self.clock.clone(),
        }
    }

    /// Kills the sidecar: nothing that it does from here on has an effect.
    fn kill(&mut self, pod: &Pod) {
        pod.store.cut_off();
        let next = tempfile::tempdir().unwrap();
        if self.file().exists() {
            fs::copy(self.file(), next.path().join(FILE)).unwrap();
        }
        self.directories.push(next);
    }

    fn kill_and_start(&mut self, pod: &Pod) -> Pod {
        self.kill(pod);
        self.start()
    }

    fn token(&self, resource: &str) -> Token {
        self.store.lock(resource).unwrap().token
    }
}

fn memory(directory: &Path) -> Option<Memory> {
    let mut file = StateFile::open(directory).unwrap()?;
    let past = file.read().unwrap();
    Some(Memory {
        journal: Box::new(file),
        past,
        boot_id: "boot".into(),
        namespace: "team-a".into(),
    })
}

/// The answer to a renewal, once it is known which leases continue.
async fn renewed(pod: &Pod, lease: &LeaseView) -> Result<LeaseView, LeaseError> {
    let known = || pod.agent.renew(&lease.lease, None, pod.now()) != Err(LeaseError::Resuming);
    eventually("it is known what goes on", known).await;
    pod.agent.renew(&lease.lease, None, pod.now())
}

fn lost(loss: Loss) -> Result<LeaseView, LeaseError> {
    Err(LeaseError::Lost(loss))
}

#[tokio::test]
async fn resumed_lease_keeps_its_id_token_and_session() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r");
    node.clock.advance(Duration::from_secs(5));
    let pod = node.kill_and_start(&pod);
    let again = renewed(&pod, &lease).await;
    let again = again.expect("the lease must go on");
    assert_eq!((&again.lease, again.token), (&lease.lease, lease.token));
    assert_eq!(
        (&again.resource, &again.owner),
        (&lease.resource, &lease.owner)
    );
    assert!(again.valid_for > Duration::from_secs(14), "{again:?}");
    assert_eq!(node.store.session_of("r"), session);
    // As if nothing had been: it is renewed, released, and the next token is larger.
    node.clock.advance(Duration::from_secs(10));
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
    assert!(pod.lease("r").await.token > lease.token);
}

#[tokio::test]
async fn lease_survives_many_crashes() {
    let mut node = Node::new();
    let mut pod = node.start();
    let lease = pod.lease("r").await;
    let mut sizes = Vec::new();
    for _ in 0..5 {
        node.clock.advance(Duration::from_secs(9));
        pod = node.kill_and_start(&pod);
        let again = renewed(&pod, &lease).await.unwrap();
        assert_eq!((&again.lease, again.token), (&lease.lease, lease.token));
        sizes.push(fs::metadata(node.file()).unwrap().len());
    }
    // But for the digits of its numbers.
    assert!(
        sizes[4] <= sizes[0] + 4,
        "it grows with each death: {sizes:?}"
    );
    assert_eq!(node.store.sessions().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lease_is_resumed_long_after_its_first_deadline() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let session = node.store.session_of("r").unwrap();
    // In paused time this takes none.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(node.store.session(&session).unwrap().renewals > 10);
    let pod = node.kill_and_start(&pod);
    let again = renewed(&pod, &lease).await.unwrap();
    assert_eq!((again.lease, again.token), (lease.lease, lease.token));
}

#[tokio::test]
async fn a_restart_costs_one_read_one_renewal_and_one_list() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    let (calls, writes) = (node.store.calls(), node.store.writes());
    let pod = node.start();
    renewed(&pod, &lease).await.unwrap();
    // With the watch.
    eventually("the watch is opened", || node.store.calls() == calls + 4).await;
    assert_eq!(node.store.writes(), writes + 1);
}

#[tokio::test]
async fn restarted_agent_without_leases_makes_no_request() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    pod.agent.release(&lease.lease).await.unwrap();
    pod.agent.shut_down(OnTerm::Wait).await;
    assert!(
        !node.file().exists(),
        "a stopped agent leaves nothing to go on with"
    );
    node.kill(&pod);
    let calls = node.store.calls();
    let pod = node.start();
    tokio::task::yield_now().await;
    assert_eq!(node.store.calls(), calls);
    let again = pod.lease("r").await;
    assert!(again.token > lease.token);
    assert_eq!(node.store.sessions().len(), 2);
}

#[tokio::test]
async fn repeated_request_gets_the_same_answer_after_a_restart() {
    let mut node = Node::new();
    let pod = node.start();
    let Ok(Acquired::Granted { lease, .. }) = pod.acquire_as("r", Some("id-1")).await else {
        panic!("not granted");
    };
    let Ok(Acquired::Granted { lease: over, .. }) = pod.acquire_as("s", Some("id-2")).await else {
        panic!("not granted");
    };
    pod.agent.release(&over.lease).await.unwrap();
    // Another TTL does not make it another request.
    let ttl = Duration::from_secs(77);
    pod.agent.renew(&lease.lease, Some(ttl), pod.now()).unwrap();
    let pod = node.kill_and_start(&pod);
    // An acquire waits until it is known which leases continue.
    let again = pod.acquire_as("r", Some("id-1")).await;
    let Ok(Acquired::Granted {
        lease: again,
        replayed: true,
    }) = again
    else {
        panic!("{again:?}");
    };
    assert_eq!((&again.lease, again.token), (&lease.lease, lease.token));
    let ended = pod.acquire_as("s", Some("id-2")).await;
    assert!(
        matches!(ended, Err(AcquireError::RequestEnded { .. })),
        "{ended:?}"
    );
    assert_eq!(pod.agent.release(&over.lease).await, Ok(Released::Done));
}

#[tokio::test]
async fn the_ttl_that_the_app_set_last_counts_from_the_restart() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let ttl = Duration::from_secs(8);
    pod.agent.renew(&lease.lease, Some(ttl), pod.now()).unwrap();
    node.clock.advance(Duration::from_secs(7));
    let pod = node.kill_and_start(&pod);
    eventually("it is known what goes on", || {
        pod.agent.lease(&lease.lease, pod.now()) != Err(LeaseError::Resuming)
    })
    .await;
    // It was promised time until the session's deadline at most, and cannot renew at a crashed process: its 8 s begin
    // now.
    node.clock.advance(Duration::from_millis(7_900));
    pod.agent.lease(&lease.lease, pod.now()).unwrap();
    node.clock.advance(Duration::from_millis(200));
    let silent = pod.agent.lease(&lease.lease, pod.now());
    assert_eq!(silent, lost(Loss::AppSilent));
    eventually("the silent app's lock is free", || pod.is_free("r")).await;
}

#[tokio::test]
async fn released_lease_stays_ended_and_its_release_is_resent() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    // Its release never arrives.
    node.store
        .fail(Call::UpdateLock, StoreError::Unavailable("away".into()));
    let released = pod.agent.release(&lease.lease).await;
    assert_eq!(released, Ok(Released::Pending));
    node.kill(&pod);
    node.store.heal();
    let pod = node.start();
    eventually("the lock is free", || pod.is_free("r")).await;
    assert_eq!(
        pod.agent.renew(&lease.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
    let done = || {
        let released = pod.agent.release(&lease.lease);
        futures::FutureExt::now_or_never(released) == Some(Ok(Released::Done))
    };
    eventually("the release is confirmed", done).await;
    assert_eq!(node.store.lock("r").unwrap().transitions, 1);
}

#[tokio::test]
async fn lock_removed_during_a_restart_is_lost_and_others_resume() {
    let mut node = Node::new();
    let pod = node.start();
    let (first, second) = (pod.lease("r").await, pod.lease("s").await);
    node.kill(&pod);
    node.store.edit_lock("r", |lock| lock.grant = None);
    let pod = node.start();
    assert_eq!(renewed(&pod, &first).await, lost(Loss::GrantGone));
    pod.agent.renew(&second.lease, None, pod.now()).unwrap();
    assert!(pod.lease("r").await.token > first.token);
}

#[tokio::test(start_paused = true)]
async fn hold_is_released_after_its_promise_and_not_before() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let arrived = pod.now();
    let mut hold = hold(&pod, "r").await;
    let Some(leasehold::agent::LeaseEvent::Acquired(lease)) = hold.next().await else {
        panic!("not acquired");
    };
    node.kill(&pod);
    drop(hold);
    let pod = node.start();
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::AgentRestarted));
    let told_until = arrived.after(lease.valid_for);
    assert_stays_held_until(&node, &pod, "r", told_until).await;
}

async fn hold(pod: &Pod, resource: &str) -> leasehold::agent::Hold {
    let request = AcquireRequest {
        life: Life::Connection {
            max_hold: Duration::from_mins(10),
        },
        wait: Duration::MAX,
        ..kept(resource, Duration::ZERO)
    };
    pod.agent.hold(request, pod.now()).await.unwrap()
}

/// A lock that is to be kept for its app after a release.
fn kept(resource: &str, keep: Duration) -> AcquireRequest {
    AcquireRequest {
        resource: Resource::parse(resource).unwrap(),
        owner: OwnerId::from("app"),
        life: Life::Ttl(Duration::from_mins(10)),
        wait: Duration::ZERO,
        keep,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: None,
    }
}

/// A lock that this agent does not know is not an orphan before its deadline.
async fn assert_stays_held_until(node: &Node, pod: &Pod, resource: &str, told_until: Moment) {
    let token = node.token(resource);
    // A caller of it, here or elsewhere, is refused, and causes no further reads.
    let other = Pod::in_paused_time("other", &node.store);
    while pod.now() < told_until {
        assert!(!pod.is_free(resource), "it was given up too early");
        let refused = other.acquire(resource).await;
        assert!(matches!(refused, Ok(Acquired::Held { .. })), "{refused:?}");
        pod.agent.locks("", 10, None).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1).min(told_until.since(pod.now()))).await;
    }
    eventually("the lock is free", || pod.is_free(resource)).await;
    assert!(pod.now().since(told_until) < Duration::from_secs(2));
    assert!(other.lease(resource).await.token > token);
}

/// The journal is an older copy of itself: a lease was given that it does not know.
#[tokio::test(start_paused = true)]
async fn unrecorded_grant_is_kept_until_its_promise_ends() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let gone = pod.lease("other").await;
    pod.agent.release(&gone.lease).await.unwrap();
    node.store.delete_lock("other");
    let older = fs::read(node.file()).unwrap();
    let arrived = pod.now();
    let lease = pod.lease("r").await;
    let told_until = arrived.after(lease.valid_for);
    let pod = {
        node.kill(&pod);
        fs::write(node.file(), older).unwrap();
        node.start()
    };
    let unknown = pod.agent.renew(&lease.lease, None, pod.now());
    assert_eq!(unknown, Err(LeaseError::Unknown));
    eventually("the session is taken up", || {
        node.store
            .sessions()
            .iter()
            .any(|session| session.renewals == 1)
    })
    .await;
    assert_stays_held_until(&node, &pod, "r", told_until).await;
}

/// The same once more: the release is under way, and the copy says that the lease continues.
#[tokio::test]
async fn unrecorded_release_ends_the_lease_when_it_lands() {
    let mut node = Node::new();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let older = fs::read(node.file()).unwrap();
    let grant = node.store.lock("r").unwrap().grant;
    node.store
        .fail(Call::UpdateLock, StoreError::Ambiguous("on its way".into()));
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    node.kill(&pod);
    node.store.heal();
    fs::write(node.file(), older).unwrap();
    let pod = node.start();
    renewed(&pod, &lease).await.unwrap();
    let is_this = |now: &Option<Grant>| now == &grant;
    assert!(is_this(&node.store.lock("r").unwrap().grant));
    node.store.edit_lock("r", |lock| lock.grant = None);
    eventually("the watch tells", || {
        pod.agent.renew(&lease.lease, None, pod.now()) == lost(Loss::GrantGone)
    })
    .await;
    assert!(pod.lease("r").await.token > lease.token);
}

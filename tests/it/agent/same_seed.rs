//! One seed gives one run: several agents on one store that fails now and then, with each call that they
//! make, and when, and each lease that they get.

use std::sync::Mutex;

use leasehold::protocol::time::SessionTtl;
use leasehold::protocol::token::Revision;
use leasehold::random::Random;
use leasehold::store::StoreError;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::faulty::{Call, Faults, FaultyStore};

use super::*;
use crate::seed::seed;

/// What happened, line by line.
type Trace = Arc<Mutex<Vec<String>>>;

/// Writes down one pod's calls, and fails some of them.
#[derive(Clone)]
struct Recorder {
    pod: usize,
    clock: Arc<PausedClock>,
    chance: Arc<Mutex<fastrand::Rng>>,
    trace: Trace,
}

impl Recorder {
    fn note(&self, what: &str) {
        let line = format!("{:?} pod {} {what}", self.clock.now(), self.pod);
        self.trace.lock().unwrap().push(line);
    }
}

impl Faults for Recorder {
    fn on_call(&self, call: Call) -> Option<StoreError> {
        let fails = self.chance.lock().unwrap().u8(..10) == 0;
        self.note(&format!("{call:?}{}", if fails { " fails" } else { "" }));
        fails.then(|| StoreError::Ambiguous("no answer".into()))
    }
}

/// An app that comes for one of two locks, again and again.
async fn app(agent: Agent, recorder: Recorder, mut chance: fastrand::Rng) {
    for round in 0..8 {
        let request = AcquireRequest {
            resource: Resource::parse(["r", "s"][round % 2]).unwrap(),
            owner: OwnerId::from("app"),
            life: Life::Ttl(Duration::from_secs(60)),
            wait: Duration::from_secs(chance.u64(..20)),
            keep: Duration::from_secs(chance.u64(..2)),
            metadata: BTreeMap::new(),
            preferred: false,
            request_id: None,
        };
        if let Ok(Acquired::Granted { lease, .. }) = agent.acquire(request, agent.now()).await {
            recorder.note(&format!("has {} {}", lease.lease, lease.token));
            tokio::time::sleep(Duration::from_millis(chance.u64(..1_000))).await;
            let _released = agent.release(&lease.lease).await;
        }
        tokio::time::sleep(Duration::from_millis(chance.u64(..500))).await;
    }
}

/// Four pods; each is given its own chances by `random`.
async fn run(seed: u64, random: impl Fn(u64) -> Random) -> Vec<String> {
    let store = EmbeddedStore::in_memory(Revision(1_000)).unwrap();
    let (clock, trace) = (Arc::new(PausedClock::start()), Trace::default());
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut pods = Vec::new();
    for pod in 0..4 {
        let recorder = Recorder {
            pod,
            clock: clock.clone(),
            chance: Arc::new(Mutex::new(chance.fork())),
            trace: trace.clone(),
        };
        let faulty = Arc::new(FaultyStore::new(store.clone(), recorder.clone()));
        let mut config = Config::new(pod_ref(&format!("pod-{pod}")));
        config.session_ttl = SessionTtl::clamped(3);
        config.random = random(chance.u64(..));
        let agent = Agent::new(config, faulty.clone(), faulty, clock.clone());
        pods.push(tokio::spawn(app(agent, recorder, chance.fork())));
    }
    for pod in pods {
        pod.await.unwrap();
    }
    let trace = trace.lock().unwrap();
    trace.clone()
}

/// Each run has a runtime of its own.
fn trace(seed: u64, random: impl Fn(u64) -> Random) -> Vec<String> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(seed, random))
}

#[test]
fn equal_seeds_give_equal_calls_and_leases() {
    let seed = seed();
    let first = trace(seed, Random::from_seed);
    let again = trace(seed, Random::from_seed);
    let differs = first.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!(differs, None, "seed {seed}");
    assert_eq!(first.len(), again.len(), "seed {seed}");
    for call in ["JoinQueue", "RenewSession", "fails", "has "] {
        let is_there = first.iter().any(|line| line.contains(call));
        assert!(is_there, "no {call} with seed {seed}");
    }
    assert_ne!(
        first,
        trace(seed ^ 1, Random::from_seed),
        "the seed decides"
    );
    let left_to_chance = trace(seed, |_| Random::system());
    assert_ne!(first, left_to_chance, "a difference would be seen");
}

//! An operator: a replica with its own agent, which elects it, on the same store as the pods.

mod ports;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use leasehold::agent::{Agent, Campaign, Config, OnTerm};
use leasehold::operator::{BindSidecars, Operator, Ports, Rules};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::session::PodRef;
use leasehold::random::Random;
use leasehold::store::embedded::NAMESPACE;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::ports::{Elected, Outside};
use crate::clock::MachineClock;
use crate::link::Link;
use crate::network::Network;
use crate::process_pause::ProcessPause;
use crate::world::World;

/// The election of the active replica.
const ELECTION: &str = "leasehold-operator";

/// A replica. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Replica(Arc<Inner>);

struct Inner {
    world: World,
    name: Arc<str>,
    clock: MachineClock,
    network: Network,
    random: Mutex<Rng>,
    process: Mutex<Option<Process>>,
}

/// A running process.
#[derive(Clone)]
pub(crate) struct Process {
    link: Link,
    agent: Agent,
    pub(crate) pauses: ProcessPause,
    /// Stops the process.
    stop: CancellationToken,
    /// Notified when it has stopped.
    stopped: CancellationToken,
}

impl Process {
    /// Runs until it is stopped, and shuts down like the shipped one.
    async fn run(self, operator: Operator) {
        let ran = operator.run(self.stop.clone()).await;
        ran.expect("no task of the operator dies");
        self.agent.shut_down(OnTerm::AppsEnded).await;
        self.stopped.cancel();
    }
}

impl Replica {
    pub(crate) fn new(world: &World, number: usize, gain: u64, random: &mut Rng) -> Self {
        let booted_before = Duration::from_millis(random.u64(1_000_000..2_000_000));
        Self(Arc::new(Inner {
            world: world.clone(),
            name: format!("operator-{number}").into(),
            clock: MachineClock::new(world.time(), booted_before, gain),
            network: Network::new(world, true),
            random: Mutex::new(random.fork()),
            process: Mutex::new(None),
        }))
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn network(&self) -> &Network {
        &self.0.network
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    /// Returns whether this process is the running one.
    fn is_running(&self, process: &Process) -> bool {
        let running = self.process();
        running.is_some_and(|running| running.link.is(&process.link))
    }

    pub(crate) fn process(&self) -> Option<Process> {
        self.place().clone()
    }

    fn place(&self) -> MutexGuard<'_, Option<Process>> {
        self.0
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn fork(&self) -> Rng {
        let mut random = self.0.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.fork()
    }

    /// Starts it, unless it runs.
    pub(crate) fn start(&self) {
        if self.process().is_some() {
            return;
        }
        let link = Link::of_an_operator(&self.0.world, self.name(), self.network(), self.fork());
        let pauses = ProcessPause::default();
        let random = Random::from_seed(self.fork().u64(..));
        let clock = Arc::new(self.0.clock.clone());
        let mut config = Config::new(PodRef {
            name: self.0.name.clone(),
            uid: format!("uid-of-{}", self.0.name).into(),
            node: None,
        });
        config.session_ttl = self.0.world.setup().ttl;
        config.random = random.clone();
        config.pause = Some(pauses.pause().clone());
        let stores = Arc::new(link.clone());
        let agent = Agent::new(config, stores.clone(), stores.clone(), clock.clone());
        let election = ElectionName::parse(ELECTION).expect("a name");
        let of = (&self.0.world, &self.0.name);
        let (stands, fit) = watch::channel(false);
        let outside = Arc::new(Outside::new(&self.0.world));
        let ports = Ports {
            fleet: stores,
            events: outside.clone(),
            labels: outside.clone(),
            candidates: outside.clone(),
            namespaces: outside.clone(),
            audit: outside,
            leadership: Arc::new(Elected::new(of, &agent, &election, stands)),
            clock,
            random,
            pause: Some(pauses.pause().clone()),
        };
        let operator = Operator::new(self.rules(), ports);
        agent.run_for_while(
            Campaign {
                election,
                preferred: false,
            },
            fit,
        );
        let process = Process {
            link,
            agent,
            pauses,
            stop: CancellationToken::new(),
            stopped: CancellationToken::new(),
        };
        tokio::spawn(process.pauses.pause().hold(process.clone().run(operator)));
        *self.place() = Some(process);
    }

    /// Crashes between two steps.
    pub(crate) fn kill(&self) {
        if let Some(process) = self.place().take() {
            process.pauses.crash();
            process.link.kill();
        }
    }

    /// Stops gracefully, and is killed if that takes longer than `grace`.
    pub(crate) async fn stop(&self, grace: Duration) {
        let Some(process) = self.process() else {
            return;
        };
        process.stop.cancel();
        let stopped = tokio::time::timeout(grace, process.stopped.cancelled()).await;
        if !self.is_running(&process) {
            return self.0.world.count("operator crashed while it stopped");
        }
        let what = match stopped {
            Ok(()) => "operator stopped in good order",
            Err(_elapsed) => "operator killed while it stopped",
        };
        self.0.world.count(what);
        self.0.world.note(self.name(), what);
        self.kill();
    }

    fn rules(&self) -> Rules {
        Rules {
            actor: self.0.name.clone(),
            token_floor: 0,
            retain: Duration::from_secs(20),
            keep_sessions: Duration::from_secs(20),
            long_held: self.0.world.setup().ttl.get(),
            leader_labels: false,
            unready_leader: Duration::from_secs(60),
            bind_sidecars: BindSidecars::None,
            report_uninjected: false,
            namespace: NAMESPACE.into(),
        }
    }
}

//! A pod: a machine's clock, a sidecar that may crash and restart, and apps that use it.

mod ending;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use leasehold::agent::{Agent, Config};
use leasehold::clock::Clock as _;
use leasehold::pause::Pause;
use leasehold::protocol::session::PodRef;
use leasehold::protocol::time::Moment;
use leasehold::random::Random;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::clock::MachineClock;
use crate::disk::Disk;
use crate::link::Link;
use crate::network::Network;
use crate::process_pause::ProcessPause;
use crate::world::World;

/// A pod. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Pod(Arc<Inner>);

struct Inner {
    world: World,
    name: Arc<str>,
    clock: MachineClock,
    random: Mutex<Rng>,
    /// Whether its sidecar keeps a state file.
    keeps_state: bool,
    disk: Disk,
    network: Network,
    parts: Mutex<Parts>,
}

/// Its running processes.
struct Parts {
    sidecar: Option<Sidecar>,
    /// The container of its apps, with their tasks.
    container: ProcessPause,
    apps: Vec<AbortHandle>,
    /// The number of sidecars so far.
    started: u64,
    is_over: bool,
}

/// A running sidecar.
#[derive(Clone)]
pub(crate) struct Sidecar {
    pub(crate) agent: Agent,
    pub(crate) link: Link,
    pub(crate) pauses: ProcessPause,
    /// Notified when the process crashes.
    pub(crate) crashed: CancellationToken,
}

impl Sidecar {
    /// Sends a request to the sidecar, which answers it as soon as it runs. Dropping the receiver
    /// disconnects.
    pub(crate) fn serve<T, F>(
        &self,
        call: impl FnOnce(Agent, Moment) -> F + Send + 'static,
    ) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (mut tell, told) = oneshot::channel();
        let agent = self.agent.clone();
        let served = async move {
            let arrived = agent.now();
            let answer = tokio::select! {
                biased;
                answer = call(agent, arrived) => answer,
                () = tell.closed() => return,
            };
            let _heard = tell.send(answer);
        };
        tokio::spawn(self.pauses.pause().hold(served));
        told
    }
}

impl Pod {
    pub(crate) fn new(world: &World, number: usize, random: &mut Rng) -> Self {
        let gain = world.setup().gains[number];
        let booted_before = Duration::from_millis(random.u64(1_000_000..2_000_000));
        let keeps_state = random.bool();
        let pod = Self(Arc::new(Inner {
            world: world.clone(),
            name: format!("pod-{number}").into(),
            clock: MachineClock::new(world.time(), booted_before, gain),
            random: Mutex::new(random.fork()),
            keeps_state,
            disk: Disk::default(),
            network: Network::new(world, false),
            parts: Mutex::new(Parts {
                sidecar: None,
                container: ProcessPause::default(),
                apps: Vec::new(),
                started: 0,
                is_over: false,
            }),
        }));
        world.note(
            pod.name(),
            format_args!("its clock gains {gain} ppm, keeps state: {keeps_state}"),
        );
        pod
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn clock(&self) -> &MachineClock {
        &self.0.clock
    }

    pub(crate) fn now(&self) -> Moment {
        self.0.clock.now()
    }

    pub(crate) fn world(&self) -> &World {
        &self.0.world
    }

    pub(crate) fn network(&self) -> &Network {
        &self.0.network
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.0.disk
    }

    pub(crate) fn keeps_state(&self) -> bool {
        self.0.keeps_state
    }

    pub(crate) fn fork(&self) -> Rng {
        let mut random = self.0.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.fork()
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        self.0.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the running sidecar, if any.
    pub(crate) fn sidecar(&self) -> Option<Sidecar> {
        self.parts().sidecar.clone()
    }

    /// Returns the number of sidecars so far.
    pub(crate) fn started(&self) -> u64 {
        self.parts().started
    }

    /// Changes whenever its sidecar may have forgotten leases.
    pub(crate) fn memory(&self) -> u64 {
        if self.0.keeps_state {
            self.0.disk.forgot()
        } else {
            self.started()
        }
    }

    /// Returns whether it ended permanently.
    pub(crate) fn is_over(&self) -> bool {
        self.parts().is_over
    }

    /// Starts the container of its apps, unless it runs.
    pub(crate) fn start_apps(&self) {
        if self.is_over() || !self.parts().apps.is_empty() {
            return;
        }
        let container = ProcessPause::default();
        let apps = (0..self.world().setup().apps_per_pod).map(|number| {
            let app = App::new(self, number).work();
            tokio::spawn(container.pause().hold(app)).abort_handle()
        });
        let apps = apps.collect();
        let mut parts = self.parts();
        parts.container = container;
        parts.apps = apps;
    }

    /// Starts a sidecar, unless one runs. It resumes from its state file, if it keeps one.
    pub(crate) fn start_sidecar(&self) {
        if self.sidecar().is_some() || self.is_over() {
            return;
        }
        let link = Link::new(&self.0.world, self.name(), &self.0.network, self.fork());
        let (locks, sessions) = (Arc::new(link.clone()), Arc::new(link.clone()));
        let clock = Arc::new(self.0.clock.clone());
        let pauses = ProcessPause::default();
        let config = self.config(pauses.pause());
        let agent = if self.0.keeps_state {
            let memory = self.0.disk.open(&format!("boot-of-{}", self.0.name));
            Agent::with_memory(config, locks, sessions, clock, memory)
        } else {
            Agent::new(config, locks, sessions, clock)
        };
        let sidecar = Sidecar {
            agent,
            link,
            pauses,
            crashed: CancellationToken::new(),
        };
        let mut parts = self.parts();
        parts.sidecar = Some(sidecar);
        parts.started += 1;
    }

    /// Returns the pause of the apps' processes.
    pub(crate) fn container(&self) -> ProcessPause {
        self.parts().container.clone()
    }

    fn config(&self, pause: &Pause) -> Config {
        let mut config = Config::new(PodRef {
            name: self.0.name.clone(),
            uid: format!("uid-of-{}", self.0.name).into(),
            node: None,
        });
        config.session_ttl = self.0.world.setup().ttl;
        config.random = Random::from_seed(self.fork().u64(..));
        config.pause = Some(pause.clone());
        config
    }
}

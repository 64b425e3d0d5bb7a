//! The engine inside a sidecar: at most one session, its grants and their leases.
//!
//! It drives `protocol` against the ports of `store` and knows neither HTTP nor Kubernetes. What
//! it deliberately does not do: it never judges by wall-clock time, never repeats a write whose
//! outcome it does not know without reading first, and never believes in a lease that the clock
//! has ended, whatever its timers did.
//!
//! One std mutex guards the state and is never held over an await.

mod acquire;
mod core;
mod driver;
mod election;
mod events;
mod faults;
mod hold;
mod journal;
mod leases;
mod metrics;
mod observe;
mod query;
mod resume;
mod state;
mod stop;
mod types;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use election::{Campaign, ElectionError, ElectionEvent, ElectionEvents, ElectionView, Lead};
pub use events::{EventsError, LeaseEvent, LeaseEvents, Request};
pub use hold::Hold;
pub use journal::{Journal, Memory, Past};
pub use metrics::Metrics;
pub use types::{
    AcquireError, AcquireRequest, Acquired, HolderView, LeaseError, LeaseView, Life, LockPage,
    LockView, QueryError, Released, TooManyStreams, Verified,
};

use self::core::acquiring::AcquireConfig;
use self::core::effect::Input;
use self::core::session::SessionConfig;
use self::core::{CALL_LIMIT, Core, CoreConfig};
use crate::clock::Clock;
use crate::pause::Pause;
use crate::protocol::session::PodRef;
use crate::protocol::time::{Moment, SessionTtl};
use crate::random::Random;
use crate::store::{LockStore, SessionStore};
use metrics::Gauges;
use state::State;

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The pod (or process) that it speaks for.
    pub pod: PodRef,
    /// The TTL of its sessions.
    pub session_ttl: SessionTtl,
    /// Added to every token base; the same in the whole installation.
    pub token_floor: u64,
    /// Whether it takes over expired sessions' locks, where the admission policies allow that. Otherwise only
    /// the operator does, and the agent reads no other pod's session.
    pub takes_over: bool,
    /// How many leases it serves at once.
    pub max_leases: usize,
    /// How many callers wait at once.
    pub max_waiting: usize,
    /// How many streams of events are open at once.
    pub max_streams: usize,
    /// After how long without a lease the session is ended.
    pub idle_after: Duration,
    /// Resource prefixes with a contention metric of their own, at most 50.
    pub metrics_prefixes: BTreeSet<String>,
    /// Where names and jitter come from.
    pub random: Random,
    /// What stops all its tasks, in a simulation; a call's own is its caller's to hold.
    pub pause: Option<Pause>,
}

impl Config {
    /// The defaults for a pod: a TTL of 15 s, no floor, take-overs, 10,000 leases, 512 callers that
    /// wait, 512 streams of events, 10 idle minutes.
    #[must_use]
    pub fn new(pod: PodRef) -> Self {
        Self {
            pod,
            session_ttl: SessionTtl::clamped(15),
            token_floor: 0,
            takes_over: true,
            max_leases: 10_000,
            max_waiting: 512,
            max_streams: 512,
            idle_after: Duration::from_secs(600),
            metrics_prefixes: BTreeSet::new(),
            random: Random::system(),
            pause: None,
        }
    }
}

/// What becomes of held leases when the agent is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    /// Wait until each was released or its promise has passed.
    Wait,
    /// Release at once what no app was promised, and leave promised leases to their session: for the
    /// agent's next process, or for others once the pod has ended or the session has expired.
    ReleaseNow,
    /// Release everything at once: the caller knows that the apps have ended.
    AppsEnded,
}

/// The agent. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Agent(Arc<Shared>);

struct Shared {
    config: Config,
    locks: Arc<dyn LockStore>,
    sessions: Arc<dyn SessionStore>,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    state: Mutex<State>,
    /// Wakes the timer when the core's next moment may be nearer than the one it sleeps for.
    deadlines_changed: tokio::sync::Notify,
    /// Notified when a lease, a claim or a release ended.
    something_ended: tokio::sync::Notify,
    /// Told when streams of events have something to say that no timer tells them of.
    streams_changed: tokio::sync::Notify,
    /// Told when more is known of a lock that callers wait for.
    outlook_changed: tokio::sync::Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Agent {
    /// Makes an agent. It asks nothing of the stores before the first acquire. Must be called
    /// inside a tokio runtime.
    #[must_use]
    pub fn new(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let core = Core::new(CoreConfig {
            session: SessionConfig {
                pod: config.pod.clone(),
                ttl: config.session_ttl,
                idle_after: config.idle_after,
            },
            token_floor: config.token_floor,
            acquire: AcquireConfig {
                takes_over: config.takes_over,
                max_leases: config.max_leases,
                max_waiting: config.max_waiting,
            },
        });
        let agent = Self(Arc::new(Shared {
            metrics: Metrics::new(&config.metrics_prefixes),
            config,
            locks,
            sessions,
            clock,
            state: Mutex::new(State::new(core)),
            deadlines_changed: tokio::sync::Notify::new(),
            something_ended: tokio::sync::Notify::new(),
            streams_changed: tokio::sync::Notify::new(),
            outlook_changed: tokio::sync::Notify::new(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }));
        agent.spawn_timer();
        agent
    }

    /// The local clock. Take the arrival of a request from here, before its body is read.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.0.clock.now()
    }

    fn random(&self) -> &Random {
        &self.0.config.random
    }

    /// The pod that the agent speaks for.
    #[must_use]
    pub fn pod(&self) -> &PodRef {
        &self.0.config.pod
    }

    /// The TTL of its sessions.
    #[must_use]
    pub fn session_ttl(&self) -> Duration {
        self.0.config.session_ttl.get()
    }

    /// The metrics, with the gauges brought up to date.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        let now = self.now();
        let gauges = {
            let state = self.state();
            let remaining = state.session().map(|live| live.remaining(now));
            Gauges {
                session_remaining: remaining.unwrap_or_default(),
                leases: state.core.own.len(),
                waiters: state.core.acquiring.waiting(),
                streams: state.streams.open,
                kept: state.core.own.warm_len(),
                has_journal: state.journal.is_on(),
            }
        };
        self.0.metrics.set_gauges(&gauges);
        &self.0.metrics
    }

    /// Whether the agent takes new leases; a local fact that an outage of the store leaves alone.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.state().is_draining()
    }

    /// Stops: no new leases, then ends the held ones as `on_term` says. The session ends too, and what
    /// is on file, unless promised leases are left to them.
    pub async fn shut_down(&self, on_term: OnTerm) {
        self.drain();
        self.resume_before_the_end(on_term).await;
        // What waits for an old promise is known only now.
        if on_term == OnTerm::AppsEnded {
            self.with_core(Core::release_held_back);
        }
        // Nobody comes back for them.
        self.with_core(|core, cx| core.leases(cx).release_all_warm());
        if on_term == OnTerm::Wait {
            self.wait_for_leases_to_end().await;
        }
        self.release_at_the_end(on_term).await;
        if on_term == OnTerm::ReleaseNow && self.leave_promised() {
            self.stop_renewing().await;
        } else {
            self.request(Input::EndSession).await;
            self.forget_for_good();
            self.0.stop.cancel();
        }
        self.0.tasks.close();
    }

    /// Whether it has stopped and left promised leases to their session.
    fn has_left(&self) -> bool {
        self.state().has_left
    }

    /// Refuses new leases from now on.
    fn drain(&self) {
        self.feed(Input::Drain);
        {
            let state = self.state();
            state.elections.wake_streams();
        }
        self.0.streams_changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned state is still guarded by the clock: every belief has a deadline in it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until a moment on the agent's clock. The timer may be late (a machine that slept)
    /// or early; whoever wakes looks at the clock again.
    async fn sleep_until(&self, moment: Moment) {
        tokio::time::sleep(moment.since(self.now())).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_joined(task);
    }

    /// The one place where tasks of the agent begin.
    fn spawn_joined(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        match &self.0.config.pause {
            None => self.0.tasks.spawn(task),
            Some(pause) => self.0.tasks.spawn(pause.hold(task)),
        }
    }
}

//! The operator: takes over from expired and ended holders, performs force releases, and records
//! incidents.
//!
//! Safety never depends on it. It keeps no state that the objects do not have, so it may be killed
//! at any time and another replica continues. Every replica watches; only the one that holds the
//! lead by its own deadline acts. If two act at once, the writes of one of them fail.
//!
//! `view` holds the observations, `plan` decides about one object, `state` decides what is planned
//! and when; none of them does I/O. `apply` writes, `recorder` writes the audit log and Events. This
//! file passes inputs to `state` and starts the tasks that it asks for. It decides nothing.

mod action;
mod apply;
mod audit;
mod backoff;
mod done;
mod errors;
mod feeds;
mod key;
pub mod metrics;
mod observation;
mod own_pod;
mod plan;
mod ports;
mod queue;
mod recorder;
mod records;
mod rules;
mod state;
mod store_check;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::Now;
use crate::protocol::token::{Revision, Seen};
use crate::store::StoreError;

use action::Action;
use apply::Applied;
use done::record_done;
use feeds::Feeds;
use key::Key;
use metrics::{Metrics, Outcome};
use state::State;

pub use own_pod::OwnPod;
pub use ports::{AuditLog, Leadership, Ports};
pub use rules::{BindSidecars, Rules};

/// The maximum number of concurrent actions. A healthy API server gains nothing from more writers.
const IN_FLIGHT_MAX: usize = 32;
/// The longest sleep. Timers do not advance while the machine is suspended, but the clock does.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// The operator. A clone is another handle to the same operator.
#[derive(Clone)]
pub struct Operator(Arc<Shared>);

struct Shared {
    rules: Arc<Rules>,
    metrics: Arc<Metrics>,
    ports: Ports,
    state: Mutex<State>,
}

/// The result of a finished task.
enum Finished {
    Acted {
        key: Key,
        action: Action,
        applied: Box<Applied>,
        took: Duration,
    },
    Revision {
        answer: Result<Revision, StoreError>,
        before: Option<Seen>,
    },
    Recorded(recorder::Finished),
}

impl Operator {
    /// Creates an operator. It sends no request before it runs.
    #[must_use]
    pub fn new(rules: Rules, ports: Ports) -> Self {
        let (rules, metrics) = (Arc::new(rules), Arc::new(Metrics::new()));
        let state = State::new(rules.clone(), metrics.clone(), ports.clock.now());
        Self(Arc::new(Shared {
            rules,
            metrics,
            ports,
            state: Mutex::new(state),
        }))
    }

    /// Returns whether everything was listed once and can still be watched. A later outage does not
    /// change the result, but a removed permission does.
    ///
    /// # Errors
    /// What cannot be listed or watched, and why.
    pub fn ready(&self) -> Result<(), String> {
        let now = self.0.ports.clock.now();
        let reason = self.state().not_ready_reason(now);
        reason.map_or(Ok(()), Err)
    }

    /// Returns the metrics in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.state().metrics(self.0.ports.leadership.leads())
    }

    /// Runs until `stop` is cancelled. Actions in flight are then abandoned: the objects show their
    /// result.
    ///
    /// # Errors
    /// If one of the operator's tasks panicked. What it left undone is unknown, so a new process
    /// has to start.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), JoinError> {
        let (rules, ports) = (&self.0.rules, &self.0.ports);
        let mut feeds = Feeds::open(rules, ports);
        let mut tasks = JoinSet::new();
        while !stop.is_cancelled() {
            if self.state().store.take_needs_relist() {
                feeds = Feeds::open(rules, ports);
            }
            let is_eligible = self.state().is_eligible(ports.clock.now());
            ports.leadership.set_eligible(is_eligible);
            self.start_due_work(&mut tasks);
            let sleep = tokio::time::sleep(self.until_due());
            tokio::select! {
                // The last branches only wake the loop: each round checks the leadership and the
                // due keys.
                biased;
                () = stop.cancelled() => {}
                (finished, observation) = feeds.next_with(&mut tasks) => {
                    if let Some(finished) = finished {
                        self.handle_finished(finished?);
                    }
                    if let Some(observation) = observation {
                        let now = self.now();
                        self.state().observe_feed(observation, now);
                    }
                }
                () = ports.leadership.changed() => {}
                () = sleep => {}
            }
        }
        tasks.shutdown().await;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned state is harmless: every write is a compare-and-swap.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        Now {
            moment: self.0.ports.clock.now(),
            wall: self.0.ports.clock.wall(),
        }
    }

    fn until_due(&self) -> Duration {
        let due = self.state().next_due();
        let now = self.0.ports.clock.now();
        due.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    /// Starts the work that is due, if this replica is the active one.
    fn start_due_work(&self, tasks: &mut JoinSet<Finished>) {
        let now = self.now();
        let ports = &self.0.ports;
        let leads = ports.leadership.leads();
        let mut state = self.state();
        state.set_leadership(leads, now);
        if state.store.is_due(now.moment) {
            let before = state.start_store_check();
            let fleet = ports.fleet.clone();
            self.spawn(tasks, async move {
                let answer = fleet.revision().await;
                Finished::Revision { answer, before }
            });
        }
        if !state.may_act() {
            return;
        }
        state.begin_round(now);
        state.recorder.start(ports, |future| {
            self.spawn(tasks, async move { Finished::Recorded(future.await) });
        });
        while tasks.len() < IN_FLIGHT_MAX
            && let Some((key, action)) = state.next_action(now)
        {
            self.spawn(tasks, self.clone().act(key, action));
        }
    }

    /// The only function that starts tasks.
    fn spawn(
        &self,
        tasks: &mut JoinSet<Finished>,
        task: impl Future<Output = Finished> + Send + 'static,
    ) {
        match &self.0.ports.pause {
            None => tasks.spawn(task),
            Some(pause) => tasks.spawn(pause.hold(task)),
        };
    }

    async fn act(self, key: Key, action: Action) -> Finished {
        let ports = &self.0.ports;
        let began = ports.clock.now();
        let applied = apply::apply(ports, action.clone()).await;
        Finished::Acted {
            key,
            action,
            applied: Box::new(applied),
            took: ports.clock.now().since(began),
        }
    }

    fn handle_finished(&self, finished: Finished) {
        let now = self.now();
        match finished {
            Finished::Acted {
                key,
                action,
                applied,
                took,
            } => {
                let (metrics, random) = (&self.0.metrics, &self.0.ports.random);
                metrics.record_action(key.kind(), applied.outcome, took);
                if applied.outcome == Outcome::Done {
                    record_done(&action, metrics, now.moment);
                }
                self.state()
                    .finish_action(&key, &action, *applied, now, random);
            }
            Finished::Revision { answer, before } => {
                self.state().finish_store_check(answer, before, now);
            }
            Finished::Recorded(recorded) => self.state().finish_record(recorded),
        }
    }
}

#[cfg(test)]
mod tests;

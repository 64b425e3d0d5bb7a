//! The operator: takes over from expired and ended holders, performs force releases, and records
//! incidents.
//!
//! Safety never depends on it. It keeps no state that the objects do not have, so it may be killed
//! at any time and another replica continues. Every replica watches; only the one that holds the
//! lead by its own deadline acts. If two act at once, the writes of one of them fail.
//!
//! `view` holds the observations, `plan` decides (pure), `apply` writes, `recorder` writes the
//! audit log and Events. This file wires them.

mod apply;
pub mod audit;
mod binding;
mod errors;
mod feeds;
pub mod label;
pub mod metrics;
mod own_pod;
pub mod plan;
pub mod pod;
mod queue;
mod recorder;
mod state;
mod uninjected;
mod unready_leader;
pub mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::pause::Pause;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, Seen};
use crate::random::Random;
use crate::store::StoreError;
use crate::store::cluster::{Candidates, EventStore, PodLabels};
use crate::store::fleet::FleetStore;
use crate::store::namespaces::Namespaces;

use apply::Applied;
use errors::ErrorTopic;
use feeds::Feeds;
use metrics::{Gauges, Metrics, Outcome};
use plan::{Action, Now, Rules, WriteReason};
use state::{State, StoreStatus};
use view::Key;

pub use binding::BindSidecars;
pub use own_pod::OwnPod;
pub use recorder::AuditLog;

/// The maximum number of concurrent actions. A healthy API server gains nothing from more writers.
const IN_FLIGHT_MAX: usize = 32;
/// The longest sleep. Timers do not advance while the machine is suspended, but the clock does.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// The longest backoff after a failed action.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How often a store that lost writes is checked for another restore.
const WENT_BACK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How often the store's revision is read even if no watch was interrupted: a proxy may silently
/// move a watch to another API server.
const REVISION_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Whether this replica is the active one.
#[async_trait]
pub trait Leadership: Send + Sync + 'static {
    /// Returns whether this replica leads now, by its own deadline.
    fn leads(&self) -> bool;

    /// Completes when the result of [`Self::leads`] may have changed.
    async fn changed(&self);

    /// Sets whether this replica can be the active one. If it cannot, it does not run for the lead,
    /// or releases it.
    fn set_eligible(&self, is_fit: bool);
}

/// The ports of the operator.
pub struct Ports {
    /// All locks and sessions.
    pub fleet: Arc<dyn FleetStore>,
    /// The Events.
    pub events: Arc<dyn EventStore>,
    /// The labels of pods.
    pub labels: Arc<dyn PodLabels>,
    /// The pods that are election candidates.
    pub candidates: Arc<dyn Candidates>,
    /// The labelled namespaces.
    pub namespaces: Arc<dyn Namespaces>,
    /// The audit log.
    pub audit: Arc<dyn AuditLog>,
    /// Whether this replica leads.
    pub leadership: Arc<dyn Leadership>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of jitter.
    pub random: Random,
    /// Suspends all tasks of the operator in a simulation. The caller suspends [`Operator::run`]
    /// itself.
    pub pause: Option<Pause>,
}

/// The operator. A clone is another handle to the same operator.
#[derive(Clone)]
pub struct Operator(Arc<Shared>);

struct Shared {
    rules: Rules,
    ports: Ports,
    metrics: Metrics,
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
        let mut state = State::default();
        state.mark_store_unverified(ports.clock.now());
        Self(Arc::new(Shared {
            rules,
            ports,
            metrics: Metrics::new(),
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
        let reason = self.state().not_ready_reason(&self.0.rules, now);
        reason.map_or(Ok(()), Err)
    }

    /// Returns the metrics in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let state = self.state();
        let gauges = Gauges {
            queue_depth: state.queue.len(),
            leads: state.leads && self.0.ports.leadership.leads(),
            is_synced: state.view.is_listed_all(|kind| self.0.rules.watches(kind)),
            store_went_back: state.store == StoreStatus::WentBack,
        };
        self.0.metrics.set_gauges(&state.view, &gauges);
        self.0.metrics.encode()
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
            if std::mem::take(&mut self.state().needs_relist) {
                feeds = Feeds::open(rules, ports);
            }
            self.update_eligibility();
            self.start_due_work(&mut tasks);
            let sleep = tokio::time::sleep(self.until_due());
            tokio::select! {
                // The last branches only wake the loop: each round checks the leadership and the
                // due keys.
                biased;
                () = stop.cancelled() => {}
                (finished, item) = feeds.next_with(&mut tasks) => {
                    if let Some(finished) = finished {
                        self.handle_finished(finished?);
                    }
                    if let Some(item) = item {
                        self.handle_feed_item(item);
                    }
                }
                () = self.0.ports.leadership.changed() => {}
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

    fn update_eligibility(&self) {
        let is_fit = self.state().is_fit(self.0.ports.clock.now());
        self.0.ports.leadership.set_eligible(is_fit);
    }

    fn until_due(&self) -> Duration {
        let state = self.state();
        let now = self.0.ports.clock.now();
        // A replica that does not act has nothing due in its queue.
        let due = state.queue.next_due().filter(|_| state.may_act());
        let next = [due, state.next_check()];
        let next = next.into_iter().flatten().min();
        next.map_or(SLEEP_MAX, |at| at.since(now).min(SLEEP_MAX))
    }

    /// Starts the work that is due, if this replica is the active one.
    fn start_due_work(&self, tasks: &mut JoinSet<Finished>) {
        let now = self.now();
        let leads = self.0.ports.leadership.leads();
        let mut state = self.state();
        state.set_leadership(leads, &self.0.rules, now);
        if state.next_check().is_some_and(|at| at <= now.moment) {
            let fleet = self.0.ports.fleet.clone();
            let before = state.start_revision_check();
            self.spawn(tasks, async move {
                let answer = fleet.revision().await;
                Finished::Revision { answer, before }
            });
        }
        if !state.may_act() {
            return;
        }
        state.replay_records(&self.0.rules, now);
        let (recorder, ports) = (&mut state.recorder, &self.0.ports);
        recorder.start(ports, |future| {
            self.spawn(tasks, async move { Finished::Recorded(future.await) });
        });
        for key in state.queue.take_due(now.moment) {
            let priority = state.priority(&key);
            state.queue.push(key, priority);
        }
        while tasks.len() < IN_FLIGHT_MAX && state.store == StoreStatus::Verified {
            let Some(key) = state.queue.pop() else { break };
            let plan = plan::plan(&state.view, &self.0.rules, &key, now);
            if plan.action.is_none() && plan.requeue_at.is_none() {
                state.queue.forget(&key);
            }
            if let Some(at) = plan.requeue_at {
                state.queue.requeue_at(key.clone(), at);
            }
            if let Some(action) = plan.action {
                state.queue.start(key.clone());
                self.spawn(tasks, self.clone().act(key, action));
            }
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
            } => self.handle_acted(&key, &action, *applied, took, now),
            Finished::Revision { answer, before } => {
                let rules = &self.0.rules;
                self.state()
                    .finish_revision_check(answer, before, rules, now);
            }
            Finished::Recorded(recorded) => {
                if let Some(is_written) = recorded.is_written() {
                    let outcome = if is_written {
                        Outcome::Done
                    } else {
                        Outcome::Failed
                    };
                    self.0
                        .metrics
                        .record_action("incident", outcome, recorded.took());
                }
                self.state().recorder.finish(recorded);
            }
        }
    }

    fn handle_acted(&self, key: &Key, action: &Action, applied: Applied, took: Duration, now: Now) {
        let kind = key.kind();
        self.0.metrics.record_action(kind, applied.outcome, took);
        if applied.outcome == Outcome::Done {
            self.log_action(action, now.moment);
        }
        let mut state = self.state();
        if let Some(observation) = applied.observation {
            state.apply_observation(observation, now);
        }
        // The other write is not visible yet: deciding again at once would give the same result.
        let is_unresolved_conflict =
            applied.outcome == Outcome::Conflict && state.is_unchanged_since(key, action);
        let error = applied
            .error
            .or(is_unresolved_conflict.then_some(StoreError::Conflict));
        if let (Action::ReadPod(session), Some(_)) = (action, &error) {
            // The session's silence leads to the same result, only later.
            let version = session.stored.version;
            state.view.mark_pod_checked(&session.object_ref, version);
        }
        if !state.leads {
            // The active replica decides about it.
            state.queue.finish(key);
        } else if let Some(error) = error {
            let failures = state.queue.count_failure(key);
            let advice = applied.advice;
            let is_logged = if advice.is_some() {
                // The same permission is missing for every action of this kind.
                let about = ErrorTopic::Action(std::mem::discriminant(action));
                state.errors.should_log(about, now.moment)
            } else {
                failures == 0 || failures.is_power_of_two()
            };
            if is_logged {
                let object = key.object();
                tracing::warn!(kind, %object, %error, failures, advice, "reconcile failed; requeued");
            }
            let pause = backoff(failures, &self.0.ports.random);
            state.queue.finish(key);
            state.queue.requeue_at(key.clone(), now.moment.after(pause));
        } else {
            // Removing a label is the first half of the work; the second half may keep failing.
            if !matches!(action, Action::RemoveLabel { .. }) {
                state.queue.reset_failures(key);
            }
            // Planned again with the new observations: more may be due, or a later time.
            let priority = state.priority(key);
            state.queue.finish(key);
            state.queue.push(key.clone(), priority);
        }
        state.enqueue_changes(&self.0.rules, now);
    }

    fn log_action(&self, action: &Action, now: Moment) {
        match action {
            Action::Revoke { current, next } => {
                let reason = next
                    .revoked
                    .as_ref()
                    .map(|revoked| format!("{:?}", revoked.reason));
                tracing::info!(session = %current.object_ref, reason, "session revoked");
            }
            Action::Write {
                current,
                next,
                why: WriteReason::Reclaim { kind, last_seen },
            } => {
                let next = next.grant.as_ref().map(|grant| &*grant.holder.pod.name);
                let reason = kind.name();
                tracing::info!(lock = %current.object_ref, reason, nextPod = next, "reclaimed lock from expired holder");
                self.0
                    .metrics
                    .record_reclaimed(*kind, now.since(*last_seen));
            }
            Action::Write {
                current,
                why: WriteReason::Force,
                ..
            } => {
                tracing::warn!(lock = %current.object_ref, "force-released lock");
                self.0.metrics.record_force_release();
            }
            Action::Write {
                current,
                why: WriteReason::LongHeld,
                ..
            } => tracing::info!(lock = %current.object_ref, "updated condition LongHeld"),
            Action::DeleteLock(lock) => {
                tracing::info!(lock = %lock.object_ref, "deleted idle lock");
            }
            Action::DeleteSession(session) => {
                tracing::debug!(session = %session.object_ref, "deleted ended session");
            }
            Action::AddLabel { election, pod, .. } => {
                tracing::info!(%election, pod = %pod.object_ref.name, "labelled leader pod");
            }
            Action::CreateBinding { namespace, .. } => {
                tracing::info!(%namespace, "created sidecar RoleBinding");
            }
            Action::UpdateBinding { current, .. } => {
                let namespace = &*current.object_ref.namespace;
                tracing::info!(namespace, "updated sidecar RoleBinding");
            }
            Action::DeleteBinding(current) => {
                let namespace = &*current.object_ref.namespace;
                tracing::info!(namespace, "deleted sidecar RoleBinding");
            }
            Action::ReadPod(_)
            | Action::ReadSession(_)
            | Action::FindSidecars(_)
            | Action::CheckLeader { .. }
            | Action::RemoveLabel { .. } => {}
        }
    }
}

/// Returns a backoff with jitter that grows with the number of failures.
fn backoff(failures: u32, random: &Random) -> Duration {
    let bound = Duration::from_millis(100).saturating_mul(1 << failures.min(10));
    bound
        .min(BACKOFF_MAX)
        .mul_f64(0.1 + 0.9 * random.fraction())
}

//! The operator: clears what the dead leave behind, carries out what people force, and keeps the
//! record.
//!
//! Nothing depends on it for safety, and it keeps nothing that the objects do not say: it may be
//! killed at any moment, and another one goes on. Every replica watches; one acts, while it is
//! sure to lead. Two that act at once would only make each other's writes fail.
//!
//! `view` is what was seen, `plan` decides (pure), `apply` does, `scribe` tells people. This file
//! wires them.

mod apply;
pub mod audit;
mod binding;
mod feeds;
pub mod label;
pub mod metrics;
mod missing;
mod own_pod;
pub mod plan;
pub mod pod;
mod queue;
mod scribe;
mod state;
mod trouble;
mod unready;
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
use feeds::Feeds;
use metrics::{Gauges, Metrics, Outcome};
use plan::{Action, Now, Rules, Why};
use state::{Standing, State};
use trouble::About;
use view::Key;

pub use binding::BindSidecars;
pub use own_pod::OwnPod;
pub use scribe::AuditLog;

/// How many actions are under way at once: as many writers as a healthy API server has use for.
const UNDER_WAY: usize = 32;
/// The longest sleep: timers stand still while a machine does, and the clock does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);
/// The longest pause before something that failed is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How often a store that went back is asked whether it was restored again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How often a store is asked how far it is when nothing gives rise to it: a proxy may move a watch
/// to another API server without a word.
const ASK_ANYWAY: Duration = Duration::from_secs(60);

/// Whether this replica is the one that acts.
#[async_trait]
pub trait Leadership: Send + Sync + 'static {
    /// Whether it leads, by its own deadline and now.
    fn leads(&self) -> bool;

    /// Answers when that may have changed.
    async fn changed(&self);

    /// Whether this replica is of use as the active one. One that is not does not take the lead, and
    /// gives it up.
    fn set_eligible(&self, is_fit: bool);
}

/// What the operator works with.
pub struct Ports {
    /// All locks and sessions.
    pub fleet: Arc<dyn FleetStore>,
    /// What people are told of a lock.
    pub events: Arc<dyn EventStore>,
    /// The labels of pods.
    pub labels: Arc<dyn PodLabels>,
    /// The pods that run for elections.
    pub candidates: Arc<dyn Candidates>,
    /// The labelled namespaces.
    pub namespaces: Arc<dyn Namespaces>,
    /// The audit log.
    pub audit: Arc<dyn AuditLog>,
    /// Whether it leads.
    pub leadership: Arc<dyn Leadership>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Where jitter comes from.
    pub random: Random,
    /// What stops all tasks that it begins, in a simulation; [`Operator::run`] is its caller's.
    pub pause: Option<Pause>,
}

/// The operator. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Operator(Arc<Shared>);

struct Shared {
    rules: Rules,
    ports: Ports,
    metrics: Metrics,
    state: Mutex<State>,
}

/// What a task came to.
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
    FeedEvent(scribe::Finished),
}

impl Operator {
    /// Makes an operator. It asks nothing of the cluster before it runs.
    #[must_use]
    pub fn new(rules: Rules, ports: Ports) -> Self {
        let mut state = State::default();
        state.doubt(ports.clock.now());
        Self(Arc::new(Shared {
            rules,
            ports,
            metrics: Metrics::new(),
            state: Mutex::new(state),
        }))
    }

    /// Whether everything that there is was listed once, and may still be seen. An outage later does not
    /// change it; rights that were taken away do.
    ///
    /// # Errors
    /// What it does not see, and why, for people.
    pub fn ready(&self) -> Result<(), String> {
        let now = self.0.ports.clock.now();
        let why_not = self.state().why_not_ready(&self.0.rules, now);
        why_not.map_or(Ok(()), Err)
    }

    /// The metrics in the text format of Prometheus.
    #[must_use]
    pub fn metrics(&self) -> String {
        let state = self.state();
        let gauges = Gauges {
            queue_depth: state.queue.len(),
            leads: state.leads && self.0.ports.leadership.leads(),
            is_synced: state.view.is_complete(|kind| self.0.rules.watches(kind)),
            store_went_back: state.store == Standing::WentBack,
        };
        self.0.metrics.set_gauges(&state.view, &gauges);
        self.0.metrics.encode()
    }

    /// Runs until it is told to stop. What is under way then is left as it is: whatever became of
    /// it, the objects say.
    ///
    /// # Errors
    /// When one of its tasks died. Nobody knows what it left undone; another process begins anew.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), JoinError> {
        let (rules, ports) = (&self.0.rules, &self.0.ports);
        let mut feeds = Feeds::open(rules, ports);
        let mut tasks = JoinSet::new();
        while !stop.is_cancelled() {
            if std::mem::take(&mut self.state().must_list_anew) {
                feeds = Feeds::open(rules, ports);
            }
            self.stand();
            self.start_what_is_due(&mut tasks);
            let sleep = tokio::time::sleep(self.until_due());
            tokio::select! {
                // What comes last only wakes: each round looks who leads and what is due.
                biased;
                () = stop.cancelled() => {}
                (finished, heard) = feeds.next_beside(&mut tasks) => {
                    if let Some(finished) = finished {
                        self.note_finished(finished?);
                    }
                    if let Some(heard) = heard {
                        self.note_heard(heard);
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
        // Whatever a poisoned state says, it is written by compare-and-swap.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now {
        Now {
            moment: self.0.ports.clock.now(),
            wall: self.0.ports.clock.wall(),
        }
    }

    fn stand(&self) {
        let is_fit = self.state().is_fit(self.0.ports.clock.now());
        self.0.ports.leadership.set_eligible(is_fit);
    }

    fn until_due(&self) -> Duration {
        let state = self.state();
        let now = self.0.ports.clock.now();
        // Nothing in the queue is due for who does nothing.
        let due = state.queue.next_due().filter(|_| state.may_act());
        let next = [due, state.next_question()];
        let next = next.into_iter().flatten().min();
        next.map_or(LONGEST_SLEEP, |at| at.since(now).min(LONGEST_SLEEP))
    }

    /// Starts what there is to do, if this replica is the one that does it.
    fn start_what_is_due(&self, tasks: &mut JoinSet<Finished>) {
        let now = self.now();
        let leads = self.0.ports.leadership.leads();
        let mut state = self.state();
        state.note_leadership(leads, &self.0.rules, now);
        if state.next_question().is_some_and(|at| at <= now.moment) {
            let fleet = self.0.ports.fleet.clone();
            let before = state.begin_question();
            self.spawn(tasks, async move {
                let answer = fleet.revision().await;
                Finished::Revision { answer, before }
            });
        }
        if !state.may_act() {
            return;
        }
        state.go_over_the_record(&self.0.rules, now);
        let (scribe, ports) = (&mut state.scribe, &self.0.ports);
        scribe.start(ports, |future| {
            self.spawn(tasks, async move { Finished::FeedEvent(future.await) });
        });
        for key in state.queue.take_due(now.moment) {
            let urgency = state.urgency(&key);
            state.queue.push(key, urgency);
        }
        while tasks.len() < UNDER_WAY && state.store == Standing::Sound {
            let Some(key) = state.queue.pop() else { break };
            let step = plan::step(&state.view, &self.0.rules, &key, now);
            if step.action.is_none() && step.again.is_none() {
                state.queue.forget(&key);
            }
            if let Some(at) = step.again {
                state.queue.look_again(key.clone(), at);
            }
            if let Some(action) = step.action {
                state.queue.begin(key.clone());
                self.spawn(tasks, self.clone().act(key, action));
            }
        }
    }

    /// The one place where its tasks begin.
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

    fn note_finished(&self, finished: Finished) {
        let now = self.now();
        match finished {
            Finished::Acted {
                key,
                action,
                applied,
                took,
            } => self.note_acted(&key, &action, *applied, took, now),
            Finished::Revision { answer, before } => {
                let rules = &self.0.rules;
                self.state().note_revision(answer, before, rules, now);
            }
            Finished::FeedEvent(told) => {
                if let Some(is_written) = told.is_written() {
                    let outcome = if is_written {
                        Outcome::Done
                    } else {
                        Outcome::Failed
                    };
                    self.0.metrics.note_done("incident", outcome, told.took());
                }
                self.state().scribe.note_finished(told);
            }
        }
    }

    fn note_acted(&self, key: &Key, action: &Action, applied: Applied, took: Duration, now: Now) {
        let kind = match key {
            Key::Session(_) => "session",
            Key::Lock(_) => "lock",
            Key::Label(_) => "label",
            Key::Leader(_) => "leader",
            Key::Binding(_) => "binding",
            Key::UninjectedPod(_) => "asking_pod",
        };
        self.0.metrics.note_done(kind, applied.outcome, took);
        if applied.outcome == Outcome::Done {
            self.report(action, now.moment);
        }
        let mut state = self.state();
        if let Some(shown) = applied.shown {
            state.note_shown(shown, now);
        }
        // Whoever wrote before is not to be seen: to decide the same at once would come to the same.
        let refused = applied.outcome == Outcome::Conflict && state.still_has(key, action);
        let error = applied.error.or(refused.then_some(StoreError::Conflict));
        if let (Action::LookAtPod(session), Some(_)) = (action, &error) {
            // Its silence tells the same, later.
            let version = session.stored.version;
            state.view.note_pod_looked_at(&session.object_ref, version);
        }
        if !state.leads {
            // Whoever leads decides about it.
            state.queue.finish(key);
        } else if let Some(error) = error {
            let failures = state.queue.note_failure(key);
            let advice = applied.advice;
            let is_said = if advice.is_some() {
                // The same right is missing for all of its kind.
                let about = About::Action(std::mem::discriminant(action));
                state.troubles.may_say(about, now.moment)
            } else {
                failures == 0 || failures.is_power_of_two()
            };
            if is_said {
                tracing::warn!(?key, %error, failures, advice, "reconcile failed; requeued");
            }
            let pause = pause_after(failures, &self.0.ports.random);
            state.queue.finish(key);
            state.queue.look_again(key.clone(), now.moment.after(pause));
        } else {
            // Taking a label is half of it: the other half may fail again and again.
            if !matches!(action, Action::TakeLabel { .. }) {
                state.queue.note_success(key);
            }
            // Decided anew by what is known now: there may be more to do, or a time to wait for.
            let urgency = state.urgency(key);
            state.queue.finish(key);
            state.queue.push(key.clone(), urgency);
        }
        state.look_at_changes(&self.0.rules, now);
    }

    fn report(&self, action: &Action, now: Moment) {
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
                why: Why::Reclaim { kind, last_seen },
            } => {
                let next = next.grant.as_ref().map(|grant| &*grant.holder.pod.name);
                let reason = kind.name();
                tracing::info!(lock = %current.object_ref, reason, nextPod = next, "reclaimed lock from expired holder");
                self.0.metrics.note_reclaimed(*kind, now.since(*last_seen));
            }
            Action::Write {
                current,
                why: Why::Force,
                ..
            } => {
                tracing::warn!(lock = %current.object_ref, "force-released lock");
                self.0.metrics.note_forced();
            }
            Action::Write {
                current,
                why: Why::LongHeld,
                ..
            } => tracing::info!(lock = %current.object_ref, "updated condition LongHeld"),
            Action::DeleteLock(lock) => {
                tracing::info!(lock = %lock.object_ref, "deleted idle lock")
            }
            Action::DeleteSession(session) => {
                tracing::debug!(session = %session.object_ref, "deleted ended session");
            }
            Action::GiveLabel { election, pod, .. } => {
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
            Action::LookAtPod(_)
            | Action::LookForSession(_)
            | Action::LookForSidecars(_)
            | Action::CheckLeader { .. }
            | Action::TakeLabel { .. } => {}
        }
    }
}

/// With full jitter, growing to the longest.
fn pause_after(failures: u32, random: &Random) -> Duration {
    let bound = Duration::from_millis(100).saturating_mul(1 << failures.min(10));
    bound
        .min(LONGEST_PAUSE)
        .mul_f64(0.1 + 0.9 * random.fraction())
}

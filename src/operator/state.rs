//! The state of the operator, and how each input changes it: observations, results of actions, the
//! leadership and the time. It does no I/O.

use std::sync::Arc;

use crate::clock::Now;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, Seen};
use crate::random::Random;
use crate::store::StoreError;
use crate::store::fleet::{FeedEvent, Object};

use super::action::Action;
use super::apply::Applied;
use super::backoff::backoff;
use super::errors::{ErrorLog, ErrorTopic, with_advice};
use super::key::Key;
use super::metrics::{Gauges, Metrics, Outcome};
use super::observation::{FeedKind, Observation};
use super::plan::plan;
use super::queue::{Priority, Queue};
use super::recorder::{self, Recorder};
use super::records;
use super::rules::Rules;
use super::store_check::{StoreCheck, StoreStatus};
use super::view::View;

/// What to do about a store that lost writes.
const RESTORE_ADVICE: &str = "the store was restored without raising its revision, so fencing tokens would \
                             repeat; restore it again with `etcdutl snapshot restore --bump-revision \
                             1000000000 --mark-compacted`";

pub(super) struct State {
    rules: Arc<Rules>,
    view: View,
    queue: Queue,
    pub(super) recorder: Recorder,
    errors: ErrorLog,
    pub(super) store: StoreCheck,
    /// Whether this replica is the active one.
    leads: bool,
    /// When this replica last became active.
    active_since: Moment,
    metrics: Arc<Metrics>,
}

impl State {
    pub(super) fn new(rules: Arc<Rules>, metrics: Arc<Metrics>, now: Moment) -> Self {
        let mut store = StoreCheck::default();
        store.mark_unverified(now);
        Self {
            rules,
            view: View::default(),
            queue: Queue::default(),
            recorder: Recorder::default(),
            errors: ErrorLog::default(),
            store,
            leads: false,
            active_since: Moment::default(),
            metrics,
        }
    }

    /// Returns whether this replica can be the active one. The feed of pods is not needed: silence
    /// leads to the same results.
    pub(super) fn is_eligible(&self, now: Moment) -> bool {
        let is_refused = |kind| self.errors.refused(kind, now).is_some();
        self.view.may_act() && !is_refused(FeedKind::Lock) && !is_refused(FeedKind::Session)
    }

    /// Returns whether this replica may act.
    pub(super) const fn may_act(&self) -> bool {
        self.leads && self.view.may_act()
    }

    /// Returns what is not listed or cannot be watched, if anything.
    pub(super) fn not_ready_reason(&self, now: Moment) -> Option<String> {
        let mut needed = self.rules.watched().filter(|kind| !kind.is_optional());
        needed.find_map(|kind| {
            let name = kind.name();
            if !self.view.is_listed(kind) {
                let so_far = format!("not all {name}s were listed yet");
                let error = self.errors.last_error(kind);
                let error = error.map(|error| with_advice(kind, error));
                return Some(error.map_or(so_far.clone(), |error| format!("{so_far}: {error}")));
            }
            // Pods work without the other feeds; an unready webhook would block their creation.
            if !kind.is_needed_throughout() {
                return None;
            }
            let error = self.errors.refused(kind, now)?;
            Some(format!(
                "{name}s can no longer be watched: {}",
                with_advice(kind, error)
            ))
        })
    }

    /// Returns the metrics in the text format of Prometheus. `leads` is whether this replica leads
    /// by its own deadline.
    pub(super) fn metrics(&self, leads: bool) -> String {
        let gauges = Gauges {
            queue_depth: self.queue.len(),
            leads: self.leads && leads,
            is_synced: self
                .view
                .is_all_listed(self.rules.watched().filter(|kind| !kind.is_optional())),
            store_went_back: self.store.status() == StoreStatus::WentBack,
        };
        self.metrics.set_gauges(&self.view, &gauges);
        self.metrics.encode()
    }

    /// Returns when something is due. A replica that does not act has nothing due in its queue.
    pub(super) fn next_due(&self) -> Option<Moment> {
        let due = self.queue.next_due().filter(|_| self.may_act());
        due.into_iter().chain(self.store.due()).min()
    }

    pub(super) fn set_leadership(&mut self, leads: bool, now: Now) {
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        self.active_since = now.moment;
        self.queue.clear();
        self.recorder.reset();
        if leads {
            tracing::info!("became the active replica");
            self.view.forget_labels();
            self.enqueue_all(now);
        } else {
            tracing::warn!("no longer the active replica");
        }
    }

    /// Starts a read of the store's revision. Returns the highest observed revision before it.
    pub(super) fn start_store_check(&mut self) -> Option<Seen> {
        self.store.start();
        self.view.seen()
    }

    /// Finishes a read of the store's revision. `before` is the highest revision that was observed
    /// when it started.
    pub(super) fn finish_store_check(
        &mut self,
        answer: Result<Revision, StoreError>,
        before: Option<Seen>,
        now: Now,
    ) {
        let listed = match answer {
            Ok(listed) => listed,
            Err(error) => {
                if self.errors.should_log(ErrorTopic::Revision, now.moment) {
                    let error = with_advice(FeedKind::Lock, &error);
                    tracing::warn!(error, "reading the store revision failed; retrying");
                }
                return self.store.finish_without_answer(now.moment);
            }
        };
        let is_first = self.view.seen().is_none();
        let went_back = !self.view.observe_revision(listed, before);
        let has_changed = self.store.finish(went_back, now.moment);
        if went_back && has_changed {
            tracing::error!(
                revision = %listed, advice = RESTORE_ADVICE, "store older than observed; granting suspended"
            );
        }
        let is_restored = has_changed && !went_back;
        if self.leads && (is_first || is_restored) {
            self.enqueue_all(now);
        }
    }

    /// Queues what is due, and passes all current records to the recorder, if it needs them.
    pub(super) fn begin_round(&mut self, now: Now) {
        if self.recorder.needs_replay() {
            let records = records::all(&self.view, &self.rules, self.active_since, now);
            self.recorder.replay(records);
        }
        for key in self.queue.take_due(now.moment) {
            let priority = self.priority(&key);
            self.queue.push(key, priority);
        }
    }

    /// Plans the queued keys up to the first action, and starts it.
    pub(super) fn next_action(&mut self, now: Now) -> Option<(Key, Action)> {
        while self.store.status() == StoreStatus::Verified {
            let key = self.queue.pop()?;
            let plan = plan(&self.view, &self.rules, &key, now);
            if plan.action.is_none() && plan.requeue_at.is_none() {
                self.queue.forget(&key);
            }
            if let Some(at) = plan.requeue_at {
                self.queue.requeue_at(key.clone(), at);
            }
            if let Some(action) = plan.action {
                self.queue.start(key.clone());
                return Some((key, action));
            }
        }
        None
    }

    /// Observes the result of an action.
    pub(super) fn finish_action(
        &mut self,
        key: &Key,
        action: &Action,
        applied: Applied,
        now: Now,
        random: &Random,
    ) {
        if let Some(observation) = applied.observation {
            if let Observation::Lock(FeedEvent::Applied(lock)) = &observation {
                self.record_ignored_request(lock, now);
            }
            self.view.observe(observation, now);
        }
        // The other write is not visible yet: deciding again at once would give the same result.
        let is_unresolved_conflict =
            applied.outcome == Outcome::Conflict && self.is_unchanged_since(action);
        let error = applied
            .error
            .or(is_unresolved_conflict.then_some(StoreError::Conflict));
        if let (Action::ReadPod(session), Some(_)) = (action, &error) {
            // The session's silence leads to the same result, only later.
            let version = session.stored.version;
            self.view.mark_pod_checked(&session.object_ref, version);
        }
        if !self.leads {
            // The active replica decides about it.
            self.queue.finish(key);
        } else if let Some(error) = error {
            let failures = self.queue.count_failure(key);
            self.log_failure(key, action, &error, applied.advice, failures, now.moment);
            let pause = backoff(failures, random);
            self.queue.finish(key);
            self.queue.requeue_at(key.clone(), now.moment.after(pause));
        } else {
            // Removing a label is the first half of the work; the second half may keep failing.
            if !matches!(action, Action::RemoveLabel { .. }) {
                self.queue.reset_failures(key);
            }
            // Planned again with the new observations: more may be due, or a later time.
            let priority = self.priority(key);
            self.queue.finish(key);
            self.queue.push(key.clone(), priority);
        }
        self.enqueue_changes(now);
    }

    /// Observes the end of a task of the recorder.
    pub(super) fn finish_record(&mut self, finished: recorder::Finished) {
        if let recorder::Finished::Written { is_written, took } = finished {
            let outcome = if is_written {
                Outcome::Done
            } else {
                Outcome::Failed
            };
            self.metrics.record_action("incident", outcome, took);
        }
        self.recorder.finish(finished);
    }

    fn log_failure(
        &mut self,
        key: &Key,
        action: &Action,
        error: &StoreError,
        advice: Option<&str>,
        failures: u32,
        now: Moment,
    ) {
        let is_logged = if advice.is_some() {
            // The same permission is missing for every action of this kind.
            let about = ErrorTopic::Action(std::mem::discriminant(action));
            self.errors.should_log(about, now)
        } else {
            failures == 0 || failures.is_power_of_two()
        };
        if is_logged {
            let (kind, object) = (key.kind(), key.object());
            tracing::warn!(kind, %object, %error, failures, advice, "reconcile failed; requeued");
        }
    }

    /// Returns whether an action would be planned on the same version again.
    fn is_unchanged_since(&self, action: &Action) -> bool {
        let lock = |object_ref| self.view.lock(object_ref).map(|seen| seen.version);
        let binding = |namespace| self.view.labelled().binding_of(namespace);
        match action {
            Action::Write { current, .. } | Action::CheckLeader { current, .. } => {
                lock(&current.object_ref) == Some(current.stored.version)
            }
            Action::DeleteLock(current) => lock(&current.object_ref) == Some(current.version),
            Action::Revoke { current, .. } | Action::DeleteSession(current) => {
                let seen = self.view.session(&current.object_ref);
                seen.is_some_and(|seen| seen.session.stored.version == current.stored.version)
            }
            Action::CreateBinding { namespace, .. } => binding(namespace).is_none(),
            Action::UpdateBinding { current, .. } | Action::DeleteBinding(current) => {
                let found = binding(&current.object_ref.namespace);
                found.is_some_and(|found| found.stored.version == current.stored.version)
            }
            Action::ReadPod(_)
            | Action::ReadSession(_)
            | Action::FindSidecars(_)
            | Action::RemoveLabel { .. }
            | Action::AddLabel { .. } => false,
        }
    }

    /// Observes an event of a feed.
    pub(super) fn observe_feed(&mut self, observation: Observation, now: Now) {
        let at = now.moment;
        match &observation {
            Observation::Lock(event) => {
                self.observe_errors(FeedKind::Lock, event, at);
                self.log_unreadable(FeedKind::Lock, event, at);
                self.before_lock_event(event, now);
            }
            Observation::Session(event) => {
                self.observe_errors(FeedKind::Session, event, at);
                self.log_unreadable(FeedKind::Session, event, at);
            }
            Observation::Pod(event) => self.observe_errors(FeedKind::Pod, event, at),
            Observation::Node(event) => self.observe_errors(FeedKind::Node, event, at),
            Observation::Namespace(event) => self.observe_errors(FeedKind::Namespace, event, at),
            Observation::Account(event) => self.observe_errors(FeedKind::Account, event, at),
            Observation::Binding(event) => self.observe_errors(FeedKind::Binding, event, at),
            Observation::UninjectedPod(event) => {
                self.observe_errors(FeedKind::UninjectedPod, event, at);
            }
            // Only actions observe these.
            Observation::PodOfSession { .. }
            | Observation::LabelRemoved { .. }
            | Observation::LabelAdded { .. }
            | Observation::LabelUnknown(_)
            | Observation::Leader { .. }
            | Observation::Sidecars(..) => {}
        }
        let unreadable = match &observation {
            Observation::Lock(FeedEvent::Unreadable { object_ref, .. }) if self.leads => {
                Some(object_ref.clone())
            }
            _ => None,
        };
        self.view.observe(observation, now);
        if let Some(record) =
            unreadable.and_then(|lock| records::unreadable_lock(&self.view, &lock, now))
        {
            self.recorder.record(record);
        }
        self.enqueue_changes(now);
    }

    fn before_lock_event(&mut self, event: &FeedEvent<Object<Lock>>, now: Now) {
        match event {
            FeedEvent::Interrupted(_) | FeedEvent::ListStarted => {
                self.store.mark_unverified(now.moment);
            }
            FeedEvent::Applied(lock) => {
                self.record_ignored_request(lock, now);
                let before = self.view.lock(&lock.object_ref);
                if lock.is_deleted && !before.is_some_and(|before| before.is_deleted) {
                    tracing::info!(lock = %lock.object_ref, "lock deleted; finalizer remains");
                }
            }
            FeedEvent::Unreadable { .. } | FeedEvent::Deleted(_) | FeedEvent::ListDone => {}
        }
    }

    /// Logs and counts an interruption.
    fn observe_errors<T>(&mut self, kind: FeedKind, event: &FeedEvent<T>, now: Moment) {
        let about = self.errors.observe(kind, event, now);
        let FeedEvent::Interrupted(error) = event else {
            return;
        };
        self.metrics.record_interruption(kind.name());
        let (kind, error) = (kind.name(), with_advice(kind, error));
        match about {
            Some(ErrorTopic::Refused(refused)) if refused.is_optional() => {
                tracing::warn!(kind, error, "list/watch forbidden; continuing without it");
            }
            Some(ErrorTopic::Refused(_)) => {
                tracing::error!(kind, error, "list/watch forbidden; retrying");
            }
            Some(_) => tracing::warn!(kind, error, "watch interrupted; retrying"),
            None => {}
        }
    }

    /// Logs an unreadable object. A namespace can have any number of them, and edit each at any
    /// rate, so the log is bounded; the metric counts all.
    fn log_unreadable<T>(&mut self, kind: FeedKind, event: &FeedEvent<T>, now: Moment) {
        let FeedEvent::Unreadable {
            object_ref, why, ..
        } = event
        else {
            return;
        };
        if self.errors.should_log(ErrorTopic::Unreadable(kind), now) {
            let others = self.view.unreadable_locks().len() + self.view.unreadable_sessions().len();
            let kind = kind.name();
            tracing::warn!(kind, object = %object_ref, reason = why, others, "object unreadable; left alone while held");
        }
    }

    fn record_ignored_request(&mut self, lock: &Object<Lock>, now: Now) {
        if !self.leads {
            return;
        }
        if let Some(record) = records::ignored_request(&self.view, lock, now) {
            self.recorder.record(record);
        }
    }

    /// Queues the changed keys. An inactive replica drops them: the active one acts on them.
    fn enqueue_changes(&mut self, now: Now) {
        let changed = self.view.take_changed();
        if !self.leads {
            return;
        }
        for key in changed {
            self.enqueue(key, now);
        }
    }

    fn enqueue_all(&mut self, now: Now) {
        for record in records::unreadable(&self.view, now) {
            self.recorder.record(record);
        }
        let keys: Vec<Key> = self.view.keys().collect();
        for key in keys {
            self.enqueue(key, now);
        }
    }

    fn enqueue(&mut self, key: Key, now: Now) {
        for record in records::of_key(&self.view, &self.rules, &key, self.active_since, now) {
            let object = record.event.object_ref.clone();
            if self.recorder.record(record) && matches!(key, Key::Binding(_)) {
                tracing::warn!(
                    binding = %object,
                    "RoleBinding not created by Leasehold; left unchanged"
                );
            }
        }
        // It is only reported.
        if !matches!(key, Key::UninjectedPod(_)) {
            let priority = self.priority(&key);
            self.queue.push(key, priority);
        }
    }

    fn priority(&self, key: &Key) -> Priority {
        match key {
            // Locks wait for it.
            Key::Session(session) if self.view.is_referenced(session) => Priority::Session,
            Key::Session(_)
            | Key::Label(_)
            | Key::Leader(_)
            | Key::Binding(_)
            | Key::UninjectedPod(_) => Priority::Other,
            Key::Lock(lock) => match self.view.lock(lock).and_then(|seen| seen.lock.as_ref()) {
                Some(lock) if !lock.stored.value.waiters.is_empty() => Priority::Contended,
                _ => Priority::Other,
            },
        }
    }
}

#[cfg(test)]
mod tests;

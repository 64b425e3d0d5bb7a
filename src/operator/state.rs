//! The state of the operator: the view, the queue, and whether this replica is the active one.

use std::sync::Arc;

use crate::protocol::lock::{Grant, Lock};
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Seen};
use crate::store::StoreError;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

use super::apply::Observation;
use super::errors::{ErrorLog, ErrorTopic, FeedKind, with_advice};
use super::plan::{Action, Now, Rules};
use super::queue::{Priority, Queue};
use super::recorder::Recorder;
use super::unready_leader::LeaderCheck;
use super::view::{Key, LockObservation, Unreadable, View};
use super::{
    REVISION_CHECK_INTERVAL, SLEEP_MAX, WENT_BACK_CHECK_INTERVAL, audit, binding, uninjected,
};

/// The maximum number of unreadable locks with an Event in each namespace.
const UNREADABLE_EVENTS_MAX: usize = 10;

/// What to do about a store that lost writes.
const RESTORE_ADVICE: &str = "the store was restored without raising its revision, so fencing tokens would \
                             repeat; restore it again with `etcdutl snapshot restore --bump-revision \
                             1000000000 --mark-compacted`";

/// What is known about the store behind the feeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreStatus {
    /// It may not be the observed store: nothing is done before its revision was read.
    #[default]
    Unverified,
    /// It has everything that was observed.
    Verified,
    /// It is older than what was observed: nothing may be granted.
    WentBack,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) queue: Queue,
    pub(super) recorder: Recorder,
    pub(super) errors: ErrorLog,
    pub(super) leads: bool,
    /// When this replica last became active.
    active_since: Moment,
    pub(super) store: StoreStatus,
    /// When to read the store's revision.
    check_revision_at: Option<Moment>,
    /// Whether a read is in flight. One at a time, so that no answer counts for a later read.
    is_checking_revision: bool,
    /// Whether the feeds have to list again: they may continue at a revision that this store never
    /// had.
    pub(super) needs_relist: bool,
}

impl State {
    /// Records that a watch of locks was interrupted or restarted. Another store may be behind it
    /// now. A store that went back does not show it: a watch from a future revision is open and
    /// silent.
    pub(super) fn mark_store_unverified(&mut self, now: Moment) {
        if self.store == StoreStatus::Verified {
            self.store = StoreStatus::Unverified;
        }
        self.check_revision_at = Some(now);
    }

    /// Returns when to read the store's revision.
    pub(super) fn next_check(&self) -> Option<Moment> {
        self.check_revision_at
            .filter(|_| !self.is_checking_revision)
    }

    /// Starts a read of the revision. Returns the highest observed revision before it.
    pub(super) fn start_revision_check(&mut self) -> Option<Seen> {
        self.check_revision_at = None;
        self.is_checking_revision = true;
        self.view.seen()
    }

    pub(super) fn set_leadership(&mut self, leads: bool, rules: &Rules, now: Now) {
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        self.active_since = now.moment;
        self.queue.clear();
        self.recorder.reset();
        if leads {
            tracing::info!("became the active replica");
            self.view.elections_mut().forget_all();
            self.enqueue_all(rules, now);
        } else {
            tracing::warn!("no longer the active replica");
        }
    }

    /// Returns whether this replica can be the active one. The feed of pods is not needed: silence
    /// leads to the same results.
    pub(super) fn is_fit(&self, now: Moment) -> bool {
        let is_refused = |kind| self.errors.refused(kind, now).is_some();
        self.view.may_act() && !is_refused(FeedKind::Lock) && !is_refused(FeedKind::Session)
    }

    /// Returns what is not listed or cannot be watched, if anything.
    pub(super) fn not_ready_reason(&self, rules: &Rules, now: Moment) -> Option<String> {
        let kinds = FeedKind::ALL.into_iter();
        let mut watched = kinds.filter(|kind| rules.watches(*kind));
        watched.find_map(|kind| {
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

    /// Returns whether this replica may act.
    pub(super) fn may_act(&self) -> bool {
        self.leads && self.view.may_act()
    }

    /// Queues the changed keys. An inactive replica drops them: the active one acts on them.
    pub(super) fn enqueue_changes(&mut self, rules: &Rules, now: Now) {
        let changed = self.view.take_changed();
        if !self.leads {
            return;
        }
        for key in changed {
            self.enqueue(key, rules, now);
        }
    }

    /// Passes all current records to the recorder, if it needs them.
    pub(super) fn replay_records(&mut self, rules: &Rules, now: Now) {
        if !self.recorder.needs_replay() {
            return;
        }
        let unreadable = unreadable_records(&self.view, now);
        let locks = self.view.locks();
        let incidents = locks.flat_map(|(object_ref, observation)| {
            audit::records_of(object_ref, observation, self.active_since)
        });
        let foreign = binding::foreign(&self.view, rules);
        let foreign = foreign.map(|found| audit::foreign_binding(found, now.wall));
        let uninjected = self.view.labelled().all_without_sidecar();
        let uninjected = uninjected.filter(|pod| uninjected::should_report(&self.view, rules, pod));
        let uninjected = uninjected.map(|pod| audit::not_injected(pod, now.wall));
        let beside = foreign.chain(uninjected);
        self.recorder
            .replay(unreadable.chain(incidents).chain(beside));
    }

    pub(super) fn enqueue_all(&mut self, rules: &Rules, now: Now) {
        for record in unreadable_records(&self.view, now) {
            self.recorder.record(record);
        }
        let keys: Vec<Key> = self.view.keys().collect();
        for key in keys {
            self.enqueue(key, rules, now);
        }
    }

    pub(super) fn enqueue(&mut self, key: Key, rules: &Rules, now: Now) {
        if let Key::Lock(object_ref) = &key
            && let Some(observation) = self.view.lock(object_ref)
        {
            for record in audit::records_of(object_ref, observation, self.active_since) {
                self.recorder.record(record);
            }
        }
        match &key {
            Key::Binding(namespace) => self.record_foreign_binding(namespace, rules, now),
            Key::UninjectedPod(object_ref) => {
                return self.record_uninjected(object_ref, rules, now);
            }
            _ => {}
        }
        let priority = self.priority(&key);
        self.queue.push(key, priority);
    }

    /// Logs an unreadable object. A namespace can have any number of them, and edit each at any
    /// rate, so the log is bounded; the metric counts all.
    pub(super) fn log_unreadable(
        &mut self,
        kind: FeedKind,
        object_ref: &ObjectRef,
        why: &str,
        now: Moment,
    ) {
        if self.errors.should_log(ErrorTopic::Unreadable(kind), now) {
            let (kind, others) = (kind.name(), self.view.unreadable().len());
            tracing::warn!(kind, object = %object_ref, reason = why, others, "object unreadable; left alone while held");
        }
    }

    /// Records an unreadable lock, unless its namespace has too many.
    pub(super) fn record_unreadable(&mut self, object_ref: &ObjectRef, now: Now) {
        let there = self.view.unreadable_locks_in(&object_ref.namespace);
        let there: Vec<_> = there.take(UNREADABLE_EVENTS_MAX + 1).collect();
        let found = there.iter().find(|(of, _)| *of == object_ref);
        if let Some(found) = found.filter(|_| there.len() <= UNREADABLE_EVENTS_MAX) {
            self.recorder.record(unreadable_record(*found, now));
        }
    }

    /// Records a binding that another user created under the operator's name.
    fn record_foreign_binding(&mut self, namespace: &Arc<str>, rules: &Rules, now: Now) {
        if let Some(found) = binding::foreign_in(&self.view, rules, namespace)
            && self
                .recorder
                .record(audit::foreign_binding(found, now.wall))
        {
            tracing::warn!(
                binding = %found.object_ref,
                "RoleBinding not created by Leasehold; left unchanged"
            );
        }
    }

    /// Records a pod that requests a sidecar and has none.
    fn record_uninjected(&mut self, object_ref: &ObjectRef, rules: &Rules, now: Now) {
        let pod = self.view.labelled().without_sidecar(object_ref);
        if let Some(pod) = pod.filter(|pod| uninjected::should_report(&self.view, rules, pod)) {
            self.recorder.record(audit::not_injected(pod, now.wall));
        }
    }

    pub(super) fn priority(&self, key: &Key) -> Priority {
        match key {
            // Locks wait for it.
            Key::Session(session) if self.view.is_referenced(session) => Priority::Session,
            Key::Session(_)
            | Key::Label(_)
            | Key::Leader(_)
            | Key::Binding(_)
            | Key::UninjectedPod(_) => Priority::Other,
            Key::Lock(lock) => match self.view.lock(lock).and_then(LockObservation::full) {
                Some(seen) if !seen.lock.stored.value.waiters.is_empty() => Priority::Contended,
                _ => Priority::Other,
            },
        }
    }

    /// Records a new release request that names no grant of the lock.
    pub(super) fn record_ignored_request(&mut self, lock: &Object<Lock>, now: WallTime) {
        let value = &lock.stored.value;
        let Some(request) = &value.settings.release_request else {
            return;
        };
        let before = self.view.lock(&lock.object_ref);
        let is_new = match before {
            Some(before) => before.release_request() != Some(request),
            // The lock was created with it. A request in a list may be old.
            None => value.transitions == 0 && !self.view.is_listing_locks(),
        };
        let names = |grant: Option<&Grant>| grant.is_some_and(|grant| request.names(&grant.id));
        let held_before = before.and_then(LockObservation::grant);
        // The named grant may have ended just before.
        if self.leads && is_new && !names(value.grant.as_ref()) && !names(held_before) {
            self.recorder
                .record(audit::ignored_request(lock, request, now));
        }
    }

    pub(super) fn apply_observation(&mut self, observation: Observation, now: Now) {
        let received = now.moment;
        match observation {
            Observation::Lock(lock) => {
                self.record_ignored_request(&lock, now.wall);
                self.view.observe_lock(FeedEvent::Applied(lock), now);
            }
            Observation::NoLock(gone) => self.view.observe_lock(FeedEvent::Deleted(gone), now),
            Observation::Session(session) => self
                .view
                .observe_session(FeedEvent::Applied(session), received),
            Observation::NoSession(gone) => self.view.observe_session_missing(&gone, received),
            Observation::Pod {
                session,
                version,
                report,
            } => {
                self.view.mark_pod_checked(&session, version);
                if let Some(report) = report {
                    self.view.observe_pod_report(&report);
                }
            }
            Observation::LabelRemoved {
                election,
                grant,
                is_labelled,
            } => {
                let elections = self.view.elections_mut();
                elections.record_removed(&election, grant, is_labelled, received);
            }
            Observation::LabelAdded { election, grant } => {
                self.view.elections_mut().record_added(&election, &grant);
            }
            Observation::Leader {
                election,
                grant,
                pod,
            } => {
                let elections = self.view.elections_mut();
                elections.record_check(&election, LeaderCheck::new(grant, pod, received));
            }
            Observation::Sidecars(namespace, are_there) => {
                let labelled = self.view.labelled_mut();
                labelled.set_sidecars(namespace, are_there, received);
            }
            Observation::Binding(found) => self.view.observe_binding(FeedEvent::Applied(found)),
            Observation::NoBinding(gone) => self.view.observe_binding(FeedEvent::Deleted(gone)),
            Observation::LabelUnknown(election) => self.view.elections_mut().forget_pods(&election),
        }
    }

    /// Returns whether an action would be planned on the same version again.
    pub(super) fn is_unchanged_since(&self, key: &Key, action: &Action) -> bool {
        let known = match key {
            Key::Session(object_ref) => {
                let seen = self.view.session(object_ref);
                seen.map(|seen| seen.session.stored.version)
            }
            Key::Lock(object_ref) => self.view.lock(object_ref).map(LockObservation::version),
            Key::Binding(namespace) => {
                let found = self.view.labelled().binding_of(namespace);
                if let Action::CreateBinding { .. } = action {
                    return found.is_none();
                }
                found.map(|found| found.stored.version)
            }
            Key::Leader(_) => match action {
                Action::CheckLeader { current, .. } => self
                    .view
                    .lock(&current.object_ref)
                    .map(LockObservation::version),
                _ => None,
            },
            Key::Label(_) | Key::UninjectedPod(_) => None,
        };
        known.is_some() && known == action.version()
    }

    /// Finishes a read of the store's revision. `before` is the highest revision that was observed
    /// when it started.
    pub(super) fn finish_revision_check(
        &mut self,
        answer: Result<Revision, StoreError>,
        before: Option<Seen>,
        rules: &Rules,
        now: Now,
    ) {
        self.is_checking_revision = false;
        let listed = match answer {
            Ok(listed) => listed,
            Err(error) => {
                if self.errors.should_log(ErrorTopic::Revision, now.moment) {
                    let error = with_advice(FeedKind::Lock, &error);
                    tracing::warn!(error, "reading the store revision failed; retrying");
                }
                let again = now.moment.after(SLEEP_MAX);
                self.check_revision_at.get_or_insert(again);
                return;
            }
        };
        let is_first = self.view.seen().is_none();
        let went_back = !self.view.observe_revision(listed, before);
        let had_gone_back = self.store == StoreStatus::WentBack;
        self.needs_relist |= went_back != had_gone_back;
        let again = if went_back {
            WENT_BACK_CHECK_INTERVAL
        } else {
            REVISION_CHECK_INTERVAL
        };
        let is_unverified_again = self.check_revision_at.is_some();
        self.check_revision_at
            .get_or_insert(now.moment.after(again));
        // An interruption during this read needs another read.
        self.store = if went_back {
            StoreStatus::WentBack
        } else if is_unverified_again {
            StoreStatus::Unverified
        } else {
            StoreStatus::Verified
        };
        if went_back && !had_gone_back {
            tracing::error!(
                revision = %listed, advice = RESTORE_ADVICE, "store older than observed; granting suspended"
            );
        }
        let is_restored = had_gone_back && !went_back;
        if self.leads && (is_first || is_restored) {
            self.enqueue_all(rules, now);
        }
    }
}

/// Returns records of the first few unreadable locks of each namespace.
fn unreadable_records(view: &View, now: Now) -> impl Iterator<Item = audit::AuditRecord> {
    let mut namespace = None;
    let mut count = 0;
    let first = view.unreadable_locks().filter(move |(object_ref, _)| {
        if namespace.as_ref() != Some(&object_ref.namespace) {
            namespace = Some(object_ref.namespace.clone());
            count = 0;
        }
        count += 1;
        count <= UNREADABLE_EVENTS_MAX
    });
    first.map(move |found| unreadable_record(found, now))
}

fn unreadable_record((lock, found): (&ObjectRef, &Unreadable), now: Now) -> audit::AuditRecord {
    audit::unreadable(lock, &found.uid, &found.why, now.wall)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::operator::plan::tests::rules;

    fn now(seconds: u64) -> Now {
        Now {
            moment: Moment::since_boot(Duration::from_secs(seconds)),
            wall: WallTime(0),
        }
    }

    /// Reads the store's revision, which the store answers with `revision`.
    fn ask(state: &mut State, revision: u64, now: Now) {
        let before = state.start_revision_check();
        state.finish_revision_check(Ok(Revision(revision)), before, &rules(), now);
    }

    #[test]
    fn feeds_relist_after_the_store_went_back_and_after_its_repair() {
        let mut state = State::default();
        for (revision, expected) in [
            (100, false),
            (40, true),
            (41, false),
            (101, true),
            (102, false),
        ] {
            ask(&mut state, revision, now(1));
            let relists = std::mem::take(&mut state.needs_relist);
            assert_eq!(relists, expected, "at {revision}");
            let is_old = (40..100).contains(&revision);
            assert_eq!(state.store == StoreStatus::WentBack, is_old);
        }
    }

    #[test]
    fn doubt_about_the_store_is_settled_only_by_a_later_read() {
        let mut state = State::default();
        state.mark_store_unverified(now(1).moment);
        assert_eq!(state.store, StoreStatus::Unverified);
        let before = state.start_revision_check();
        state.mark_store_unverified(now(2).moment);
        assert_eq!(state.next_check(), None, "one at a time");
        state.finish_revision_check(Ok(Revision(7)), before, &rules(), now(3));
        assert_eq!(state.store, StoreStatus::Unverified);
        assert_eq!(state.next_check(), Some(now(2).moment));
        ask(&mut state, 8, now(4));
        assert_eq!(state.store, StoreStatus::Verified);
        assert_eq!(
            state.next_check(),
            Some(now(4).moment.after(REVISION_CHECK_INTERVAL))
        );
    }

    #[test]
    fn unanswered_read_leaves_the_store_doubtful_and_is_retried() {
        let mut state = State::default();
        state.mark_store_unverified(now(1).moment);
        let before = state.start_revision_check();
        let down = StoreError::Unavailable("down".to_owned());
        state.finish_revision_check(Err(down), before, &rules(), now(2));
        assert_eq!(state.store, StoreStatus::Unverified);
        assert_eq!(state.next_check(), Some(now(2).moment.after(SLEEP_MAX)));
    }
}

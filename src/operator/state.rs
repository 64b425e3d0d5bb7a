//! What the operator knows and has before it: the view, the queue, and whether it is the one to act.

use std::sync::Arc;

use crate::protocol::lock::{Grant, Lock};
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{Revision, Seen};
use crate::store::StoreError;
use crate::store::fleet::{Place, Placed, Told};

use super::apply::Shown;
use super::plan::{Action, Now, Rules};
use super::queue::{Queue, Urgency};
use super::scribe::Scribe;
use super::trouble::{About, Kind, Troubles, with_advice};
use super::unready::LeaderCheck;
use super::view::{KeptLock, Key, Unreadable, View};
use super::{ASK_AGAIN, ASK_ANYWAY, LONGEST_SLEEP, audit, binding, missing};

/// Of how many locks that cannot be read there is an Event in each namespace.
const TOLD_OF: usize = 10;

/// What to do about a store that is older than what was observed of it.
const RESTORE_AGAIN: &str = "the store was restored without raising its revision, so fencing tokens would \
                             repeat; restore it again with `etcdutl snapshot restore --bump-revision \
                             1000000000 --mark-compacted`";

/// What is known of the store behind the feeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may be another one than was seen: nothing is done before it was asked.
    #[default]
    Doubtful,
    /// It has all that was seen of it.
    Sound,
    /// It is older than what was seen of it: nothing may be granted.
    WentBack,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) queue: Queue,
    pub(super) scribe: Scribe,
    pub(super) troubles: Troubles,
    pub(super) leads: bool,
    /// When it became the active one last.
    active_since: Moment,
    pub(super) store: Standing,
    /// When the store's revision is to be asked for.
    ask_revision_at: Option<Moment>,
    /// It is asked for; one question at a time, so that no answer is taken for a later one.
    is_asking: bool,
    /// The feeds may go on from where this store has never been, and tell nothing of what it has.
    pub(super) must_list_anew: bool,
}

impl State {
    /// A watch of locks was interrupted, or lists anew. Behind it may be another store now, and one
    /// that went back says nothing about it: a watch from a revision that is still to come is open
    /// and silent.
    pub(super) fn doubt(&mut self, now: Moment) {
        if self.store == Standing::Sound {
            self.store = Standing::Doubtful;
        }
        self.ask_revision_at = Some(now);
    }

    /// When the store is to be asked how far it is.
    pub(super) fn next_question(&self) -> Option<Moment> {
        self.ask_revision_at.filter(|_| !self.is_asking)
    }

    /// It is asked now; gives what was seen of it before.
    pub(super) fn begin_question(&mut self) -> Option<Seen> {
        self.ask_revision_at = None;
        self.is_asking = true;
        self.view.seen()
    }

    pub(super) fn note_leadership(&mut self, leads: bool, rules: &Rules, now: Now) {
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        self.active_since = now.moment;
        self.queue.clear();
        self.scribe.forget();
        if leads {
            tracing::info!("became the active replica");
            self.view.elections_mut().forget_all();
            self.look_at_everything(rules, now);
        } else {
            tracing::warn!("no longer the active replica");
        }
    }

    /// Whether this replica is of use as the active one. What a pod's end would tell, silence tells.
    pub(super) fn is_fit(&self, now: Moment) -> bool {
        let is_refused = |kind| self.troubles.refused(kind, now).is_some();
        self.view.may_act() && !is_refused(Kind::Lock) && !is_refused(Kind::Session)
    }

    /// Why it does not see everything, if it does not.
    pub(super) fn why_not_ready(&self, rules: &Rules, now: Moment) -> Option<String> {
        let mut watched = Kind::ALL.into_iter().filter(|kind| rules.watches(*kind));
        watched.find_map(|kind| {
            let name = kind.name();
            if !self.view.has_all(kind) {
                let so_far = format!("not all {name}s were listed yet");
                let error = self.troubles.last(kind);
                let error = error.map(|error| with_advice(kind, error));
                return Some(error.map_or(so_far.clone(), |error| format!("{so_far}: {error}")));
            }
            // Pods are made without the rest, too; a webhook that is away stops them.
            if !kind.is_needed_throughout() {
                return None;
            }
            let error = self.troubles.refused(kind, now)?;
            Some(format!(
                "{name}s can no longer be watched: {}",
                with_advice(kind, error)
            ))
        })
    }

    /// Whether there is anything to do for this replica.
    pub(super) fn may_act(&self) -> bool {
        self.leads && self.view.may_act()
    }

    /// What one replica does, another one has done already, or will.
    pub(super) fn look_at_changes(&mut self, rules: &Rules, now: Now) {
        let changed = self.view.take_changed();
        if !self.leads {
            return;
        }
        for key in changed {
            self.look_at(key, rules, now);
        }
    }

    /// Lets the scribe see all that there is to tell, where it has to.
    pub(super) fn go_over_the_record(&mut self, rules: &Rules, now: Now) {
        if !self.scribe.must_go_over() {
            return;
        }
        let unreadable = unreadable_locks(&self.view, now);
        let locks = self.view.locks();
        let incidents =
            locks.flat_map(|(place, kept)| audit::news_of(place, kept, self.active_since));
        let foreign = binding::foreign(&self.view, rules);
        let foreign = foreign.map(|found| audit::foreign_binding(found, now.wall));
        let missing = self.view.labelled().all_without_sidecar();
        let missing = missing.filter(|pod| missing::is_to_be_told(&self.view, rules, pod));
        let missing = missing.map(|pod| audit::not_injected(pod, now.wall));
        let beside = foreign.chain(missing);
        self.scribe
            .go_over(unreadable.chain(incidents).chain(beside));
    }

    pub(super) fn look_at_everything(&mut self, rules: &Rules, now: Now) {
        for news in unreadable_locks(&self.view, now) {
            self.scribe.tell(news);
        }
        let keys: Vec<Key> = self.view.keys().collect();
        for key in keys {
            self.look_at(key, rules, now);
        }
    }

    pub(super) fn look_at(&mut self, key: Key, rules: &Rules, now: Now) {
        if let Key::Lock(place) = &key
            && let Some(kept) = self.view.lock(place)
        {
            for news in audit::news_of(place, kept, self.active_since) {
                self.scribe.tell(news);
            }
        }
        match &key {
            Key::Binding(namespace) => self.tell_of_foreign(namespace, rules, now),
            Key::AskingPod(place) => return self.tell_of_missing(place, rules, now),
            _ => {}
        }
        let urgency = self.urgency(&key);
        self.queue.push(key, urgency);
    }

    /// Logs that an object cannot be read. One namespace can make any number of them, and edit each as
    /// often as it likes: the metric has them all.
    pub(super) fn log_unreadable(&mut self, kind: Kind, place: &Place, why: &str, now: Moment) {
        if self.troubles.may_say(About::Unreadable(kind), now) {
            let (kind, others) = (kind.name(), self.view.unreadable().len());
            tracing::warn!(kind, object = %place, reason = why, others, "object unreadable; left alone while held");
        }
    }

    /// Tells of a lock that cannot be read, unless there are many in its namespace.
    pub(super) fn tell_of_unreadable(&mut self, place: &Place, now: Now) {
        let there = self.view.unreadable_locks_in(&place.namespace);
        let there: Vec<_> = there.take(TOLD_OF + 1).collect();
        let found = there.iter().find(|(of, _)| *of == place);
        if let Some(found) = found.filter(|_| there.len() <= TOLD_OF) {
            let news = unreadable(*found, now);
            self.scribe.tell(news);
        }
    }

    /// Says that a binding is in the way of ours.
    fn tell_of_foreign(&mut self, namespace: &Arc<str>, rules: &Rules, now: Now) {
        if let Some(found) = binding::foreign_in(&self.view, rules, namespace)
            && self.scribe.tell(audit::foreign_binding(found, now.wall))
        {
            tracing::warn!(
                binding = %found.place,
                "RoleBinding not created by Leasehold; left unchanged"
            );
        }
    }

    /// Says that a pod has no sidecar, although it asks for one.
    fn tell_of_missing(&mut self, place: &Place, rules: &Rules, now: Now) {
        let pod = self.view.labelled().without_sidecar(place);
        if let Some(pod) = pod.filter(|pod| missing::is_to_be_told(&self.view, rules, pod)) {
            self.scribe.tell(audit::not_injected(pod, now.wall));
        }
    }

    pub(super) fn urgency(&self, key: &Key) -> Urgency {
        match key {
            // Locks wait for it.
            Key::Session(place) if self.view.is_named(place) => Urgency::Session,
            Key::Session(_)
            | Key::Label(_)
            | Key::Leader(_)
            | Key::Binding(_)
            | Key::AskingPod(_) => Urgency::Other,
            Key::Lock(place) => match self.view.lock(place).and_then(KeptLock::full) {
                Some(seen) if !seen.lock.stored.value.waiters.is_empty() => Urgency::Contended,
                _ => Urgency::Other,
            },
        }
    }

    /// Says once that a request which has just been written is about no grant that there is.
    pub(super) fn note_ignored_request(&mut self, lock: &Placed<Lock>, now: WallTime) {
        let value = &lock.stored.value;
        let Some(request) = &value.settings.release_request else {
            return;
        };
        let before = self.view.lock(&lock.place);
        let is_new = match before {
            Some(before) => before.release_request() != Some(request),
            // It was made with it. What a listing shows may have been asked long ago.
            None => value.transitions == 0 && !self.view.is_listing_locks(),
        };
        let names = |grant: Option<&Grant>| grant.is_some_and(|grant| request.names(&grant.id));
        let held_before = before.and_then(KeptLock::grant);
        // What it named may have ended in the moment before.
        if self.leads && is_new && !names(value.grant.as_ref()) && !names(held_before) {
            self.scribe.tell(audit::ignored_request(lock, request, now));
        }
    }

    pub(super) fn note_shown(&mut self, shown: Shown, now: Now) {
        let received = now.moment;
        match shown {
            Shown::Lock(lock) => {
                self.note_ignored_request(&lock, now.wall);
                self.view.note_lock(Told::There(lock), now);
            }
            Shown::NoLock(place) => self.view.note_lock(Told::Gone(place), now),
            Shown::Session(session) => self.view.note_session(Told::There(session), received),
            Shown::NoSession(place) => self.view.note_no_session(&place, received),
            Shown::Pod {
                session,
                version,
                report,
            } => {
                self.view.note_pod_looked_at(&session, version);
                if let Some(report) = report {
                    self.view.note_pod_report(&report);
                }
            }
            Shown::LabelTaken {
                election,
                grant,
                is_given,
            } => {
                let elections = self.view.elections_mut();
                elections.note_taken(&election, grant, is_given, received);
            }
            Shown::LabelGiven { election, grant } => {
                self.view.elections_mut().note_given(&election, &grant);
            }
            Shown::Leader {
                election,
                grant,
                pod,
            } => {
                let elections = self.view.elections_mut();
                elections.note_leader(&election, LeaderCheck::new(grant, pod, received));
            }
            Shown::Sidecars(namespace, are_there) => {
                let labelled = self.view.labelled_mut();
                labelled.note_sidecars(namespace, are_there, received);
            }
            Shown::Binding(found) => self.view.note_binding(Told::There(found)),
            Shown::NoBinding(place) => self.view.note_binding(Told::Gone(place)),
            Shown::LabelUnclear(election) => self.view.elections_mut().forget(&election),
        }
    }

    /// Whether an action would be decided on the same version again.
    pub(super) fn still_has(&self, key: &Key, action: &Action) -> bool {
        let known = match key {
            Key::Session(place) => {
                let seen = self.view.session(place);
                seen.map(|seen| seen.session.stored.version)
            }
            Key::Lock(place) => self.view.lock(place).map(KeptLock::version),
            Key::Binding(namespace) => {
                let found = self.view.labelled().binding_of(namespace);
                if let Action::CreateBinding { .. } = action {
                    return found.is_none();
                }
                found.map(|found| found.stored.version)
            }
            Key::Leader(_) => match action {
                Action::CheckLeader { current, .. } => {
                    self.view.lock(&current.place).map(KeptLock::version)
                }
                _ => None,
            },
            Key::Label(_) | Key::AskingPod(_) => None,
        };
        known.is_some() && known == action.version()
    }

    /// The store said how far it is; `before` is what was seen of it when it was asked.
    pub(super) fn note_revision(
        &mut self,
        answer: Result<Revision, StoreError>,
        before: Option<Seen>,
        rules: &Rules,
        now: Now,
    ) {
        self.is_asking = false;
        let listed = match answer {
            Ok(listed) => listed,
            Err(error) => {
                if self.troubles.may_say(About::Revision, now.moment) {
                    let error = with_advice(Kind::Lock, &error);
                    tracing::warn!(error, "reading the store revision failed; retrying");
                }
                let again = now.moment.after(LONGEST_SLEEP);
                self.ask_revision_at.get_or_insert(again);
                return;
            }
        };
        let is_first = self.view.seen().is_none();
        let went_back = !self.view.note_revision(listed, before);
        let had_gone_back = self.store == Standing::WentBack;
        self.must_list_anew |= went_back != had_gone_back;
        let again = if went_back { ASK_AGAIN } else { ASK_ANYWAY };
        let is_doubted_anew = self.ask_revision_at.is_some();
        self.ask_revision_at.get_or_insert(now.moment.after(again));
        // A doubt that came while this was asked is not settled by it.
        self.store = if went_back {
            Standing::WentBack
        } else if is_doubted_anew {
            Standing::Doubtful
        } else {
            Standing::Sound
        };
        if went_back && !had_gone_back {
            tracing::error!(
                revision = %listed, advice = RESTORE_AGAIN, "store older than observed; granting suspended"
            );
        }
        let is_mended = had_gone_back && !went_back;
        if self.leads && (is_first || is_mended) {
            self.look_at_everything(rules, now);
        }
    }
}

/// The first few of each namespace.
fn unreadable_locks(view: &View, now: Now) -> impl Iterator<Item = audit::News> {
    let mut namespace = None;
    let mut told = 0;
    let first = view.unreadable_locks().filter(move |(place, _)| {
        if namespace.as_ref() != Some(&place.namespace) {
            namespace = Some(place.namespace.clone());
            told = 0;
        }
        told += 1;
        told <= TOLD_OF
    });
    first.map(move |found| unreadable(found, now))
}

fn unreadable((place, found): (&Place, &Unreadable), now: Now) -> audit::News {
    audit::unreadable(place, &found.uid, &found.why, now.wall)
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

    /// The store is asked, and answers with a revision.
    fn ask(state: &mut State, revision: u64, now: Now) {
        let before = state.begin_question();
        state.note_revision(Ok(Revision(revision)), before, &rules(), now);
    }

    #[test]
    fn feeds_relist_after_the_store_went_back_and_after_its_repair() {
        let mut state = State::default();
        for (revision, anew) in [
            (100, false),
            (40, true),
            (41, false),
            (101, true),
            (102, false),
        ] {
            ask(&mut state, revision, now(1));
            let told = std::mem::take(&mut state.must_list_anew);
            assert_eq!(told, anew, "at {revision}");
            let is_old = (40..100).contains(&revision);
            assert_eq!(state.store == Standing::WentBack, is_old);
        }
    }

    #[test]
    fn doubt_about_the_store_is_settled_only_by_a_later_read() {
        let mut state = State::default();
        state.doubt(now(1).moment);
        assert_eq!(state.store, Standing::Doubtful);
        let before = state.begin_question();
        state.doubt(now(2).moment);
        assert_eq!(state.next_question(), None, "one at a time");
        state.note_revision(Ok(Revision(7)), before, &rules(), now(3));
        assert_eq!(state.store, Standing::Doubtful);
        assert_eq!(state.next_question(), Some(now(2).moment));
        ask(&mut state, 8, now(4));
        assert_eq!(state.store, Standing::Sound);
        assert_eq!(state.next_question(), Some(now(4).moment.after(ASK_ANYWAY)));
    }

    #[test]
    fn unanswered_read_leaves_the_store_doubtful_and_is_retried() {
        let mut state = State::default();
        state.doubt(now(1).moment);
        let before = state.begin_question();
        let down = StoreError::Unavailable("down".to_owned());
        state.note_revision(Err(down), before, &rules(), now(2));
        assert_eq!(state.store, Standing::Doubtful);
        assert_eq!(
            state.next_question(),
            Some(now(2).moment.after(LONGEST_SLEEP))
        );
    }
}

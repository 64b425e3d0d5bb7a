//! What the operator knows and has before it: the view, the queue, and whether it is the one to act.

use crate::protocol::lock::Lock;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Revision;
use crate::store::StoreError;
use crate::store::fleet::{Placed, Told};

use super::apply::Shown;
use super::plan::Now;
use super::queue::{Queue, Urgency};
use super::scribe::Scribe;
use super::view::{Key, View};
use super::{ASK_AGAIN, LONGEST_SLEEP, audit};

#[derive(Default)]
pub(super) struct State {
    pub(super) view: View,
    pub(super) queue: Queue,
    pub(super) scribe: Scribe,
    pub(super) leads: bool,
    /// The store is older than what was seen of it: nothing may be granted.
    pub(super) store_went_back: bool,
    /// When the store's revision is to be asked for; none while it is, or need not be.
    pub(super) ask_revision_at: Option<Moment>,
}

impl State {
    pub(super) fn note_leadership(&mut self, leads: bool, now: Now) {
        if leads == self.leads {
            return;
        }
        self.leads = leads;
        self.queue.clear();
        self.scribe.forget();
        if leads {
            tracing::info!("this replica is the active one now");
            self.view.elections_mut().forget_all();
            self.look_at_everything(now);
        } else {
            tracing::warn!("this replica is not the active one any more");
        }
    }

    /// What one replica does, another one has done already, or will.
    pub(super) fn look_at_changes(&mut self, now: Now) {
        let changed = self.view.take_changed();
        if !self.leads {
            return;
        }
        for key in changed {
            self.look_at(key, now);
        }
    }

    pub(super) fn look_at_everything(&mut self, now: Now) {
        let keys: Vec<Key> = self.view.keys().collect();
        for key in keys {
            self.look_at(key, now);
        }
    }

    pub(super) fn look_at(&mut self, key: Key, now: Now) {
        if let Key::Lock(place) = &key
            && let Some(seen) = self.view.lock(place)
        {
            for news in audit::news_of(&seen.lock, now.wall) {
                self.scribe.tell(news);
            }
        }
        let urgency = self.urgency(&key);
        self.queue.push(key, urgency);
    }

    pub(super) fn urgency(&self, key: &Key) -> Urgency {
        match key {
            Key::Session(_) => Urgency::Session,
            Key::Label(_) => Urgency::Other,
            Key::Lock(place) => match self.view.lock(place) {
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
        let before = self
            .view
            .lock(&lock.place)
            .map(|seen| &seen.lock.stored.value);
        let is_new = before.is_some_and(|b| b.settings.release_request.as_ref() != Some(request));
        let names = |lock: &Lock| lock.grant.as_ref().is_some_and(|g| request.names(&g.id));
        // What it named may have ended in the moment before.
        if self.leads && is_new && !names(value) && !before.is_some_and(names) {
            self.scribe.tell(audit::ignored_request(lock, request, now));
        }
    }

    pub(super) fn note_shown(&mut self, shown: Shown, received: Moment) {
        match shown {
            Shown::Lock(lock) => self.view.note_lock(Told::There(lock), received),
            Shown::NoLock(place) => self.view.note_lock(Told::Gone(place), received),
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
            Shown::LabelUnclear(election) => self.view.elections_mut().forget(&election),
        }
    }

    pub(super) fn note_revision(&mut self, answer: Result<Revision, StoreError>, now: Now) {
        let listed = match answer {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(%error, "the store does not say how far it is; asking again");
                self.ask_revision_at = Some(now.moment.after(ASK_AGAIN.min(LONGEST_SLEEP)));
                return;
            }
        };
        let is_first = self.view.seen().is_none();
        let went_back = !self.view.note_revision(listed);
        if went_back {
            self.ask_revision_at = Some(now.moment.after(ASK_AGAIN));
        }
        if went_back && !self.store_went_back {
            tracing::error!(
                %listed, "the store is older than what was seen of it: it was restored without \
                 raising its revision, so fencing tokens would repeat. Nothing is granted; restore \
                 it again with `etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted`"
            );
        }
        let is_mended = self.store_went_back && !went_back;
        self.store_went_back = went_back;
        if self.leads && (is_first || is_mended) {
            self.look_at_everything(now);
        }
    }
}

//! The one watch of an agent: what becomes of the locks that its session holds. A grant that was
//! handed over is heard of here, and so is one that somebody took away.
//!
//! It only makes things fast. What it tells is older than what it is told in, so both a grant and a
//! loss are checked against the revisions that the agent knows; whoever waits reads the lock again
//! from time to time as if there were no watch.
//!
//! It also reports the sessions that join a held lock's queue, so that a release needs no read.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::{LockEvent, LockWatch, Page, StoreError, Stored, within};

use super::gone::Found;
use super::{Agent, CALL_LIMIT};

/// The longest pause before the watch is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A watch that says nothing for so long, not even a bookmark or its end, is dead and does not
/// know it: the API server ends each after five minutes.
const LONGEST_SILENCE: Duration = Duration::from_secs(330);

/// How often a watch may break at one revision before the locks are listed: one event may break each.
const BREAKS_AT_ONE_PLACE: u32 = 4;

/// Why a watch is not open any more.
enum Closed {
    /// It ended, broke or was silent too long: a watch from this revision delivers the rest.
    After(Revision, Option<StoreError>),
    /// The missed events cannot be watched: list first.
    Missed(Option<StoreError>),
}

impl Closed {
    fn by(error: StoreError, after: Revision) -> Self {
        if error.is_transient() {
            Self::After(after, Some(error))
        } else {
            Self::Missed(Some(error))
        }
    }
}

impl Agent {
    /// Watches the locks of a session from after a revision on, until the session is over.
    pub(super) fn spawn_watch(&self, session: SessionId, after: Revision, over: CancellationToken) {
        let agent = self.clone();
        self.spawn_supervised("the watch", move || {
            let (agent, session, over) = (agent.clone(), session.clone(), over.clone());
            async move {
                tokio::select! {
                    biased;
                    () = agent.0.stop.cancelled() => {}
                    () = over.cancelled() => {}
                    () = agent.watch_on(&session, after) => {}
                }
            }
        });
    }

    async fn watch_on(&self, session: &SessionId, mut after: Revision) {
        let (mut failures, mut breaks) = (0, 0);
        loop {
            let opened_at = self.now();
            let closed = match within(CALL_LIMIT, self.0.locks.watch(session, after)).await {
                Ok(events) => match self.follow(events, after).await {
                    Closed::After(revision, Some(error)) if revision == after => {
                        breaks += 1;
                        if breaks % BREAKS_AT_ONE_PLACE == 0 {
                            Closed::Missed(Some(error))
                        } else {
                            Closed::After(after, Some(error))
                        }
                    }
                    closed => {
                        breaks = 0;
                        closed
                    }
                },
                Err(error) => Closed::by(error, after),
            };
            if let Closed::After(_, Some(error)) | Closed::Missed(Some(error)) = &closed {
                tracing::debug!(%session, %error, "watch interrupted; retrying");
            }
            self.pause_watch(opened_at, &mut failures).await;
            after = match closed {
                Closed::After(revision, _) => revision,
                Closed::Missed(why) => {
                    if why.is_some() {
                        // All agents get this error at once; the pause spreads their lists.
                        let spread = self.0.config.session_ttl.get() / 10;
                        tokio::time::sleep(self.jittered(spread)).await;
                    }
                    self.list_after_gap(session, after).await
                }
            };
        }
    }

    /// A watch that lived for a while is opened again at once, others after a growing pause.
    async fn pause_watch(&self, opened_at: Moment, failures: &mut u32) {
        if self.now().since(opened_at) >= LONGEST_PAUSE {
            *failures = 0;
        }
        tokio::time::sleep(self.pause_after(*failures, LONGEST_PAUSE)).await;
        *failures = (*failures + 1).min(16);
    }

    async fn follow(&self, mut events: LockWatch, mut after: Revision) -> Closed {
        let mut late = self.0.watch_is_late.subscribe();
        loop {
            let event = tokio::select! {
                // First, because a watch that is late may go on telling old events for long. One that has
                // told as much since, or was opened behind it, is not late.
                biased;
                Ok(_) = late.wait_for(|missed| *missed > after) => return Closed::Missed(None),
                event = tokio::time::timeout(LONGEST_SILENCE, events.next()) => event,
            };
            let Ok(event) = event else {
                return Closed::After(after, None);
            };
            match event {
                Some(Ok(event)) => after = after.max(self.note_event(event)),
                Some(Err(error)) => return Closed::by(error, after),
                None => return Closed::After(after, None),
            }
        }
    }

    fn note_event(&self, event: LockEvent) -> Revision {
        let revision = match &event {
            LockEvent::Held(stored) => stored.version,
            LockEvent::Gone { at, .. } | LockEvent::Bookmark(at) => *at,
        };
        // First: after a restore all leases are lost by that, and not each by what is told of it.
        self.note_revision(revision);
        match event {
            LockEvent::Held(stored) => self.note_held(*stored),
            LockEvent::Gone { resource, at } => {
                self.note_not_held(&resource, at, &Found::Unread);
            }
            LockEvent::Bookmark(_) => {}
        }
        revision
    }

    /// Our session holds this lock: a line's, a lease's, an attempt's under way, or nobody's.
    fn note_held(&self, stored: Stored<Lock>) {
        let Some(key) = stored.value.grant.as_ref().map(Grant::key) else {
            return;
        };
        let resource = stored.value.resource.clone();
        if self.is_of_another_pod(&stored) {
            let found = Found::Read(Some(&stored.value));
            return self.note_not_held(&resource, stored.version, &found);
        }
        let grant = key.id.clone();
        if let Some((_, served, _)) = self.served_grant(&resource)
            && served != key
        {
            // Somebody ended the one that is served, and this one came after it or before.
            let found = Found::Read(Some(&stored.value));
            self.note_not_held(&resource, stored.version, &found);
        }
        let now = self.now();
        {
            // Under one lock: a lease may end, and its grant be kept, at any time.
            let mut state = self.state();
            match state.note_kept(&stored, now) {
                Some(true) => {
                    drop(state);
                    return self.give_back_kept(&resource);
                }
                Some(false) => return,
                None => state.forget_kept_before(&resource, stored.version, now),
            }
            if let Some(is_asked_anew) = state.note_served(&stored, now) {
                drop(state);
                if is_asked_anew {
                    self.pass_on_request(&resource);
                }
                return;
            }
            if let Some(line) = state.lines.get_mut(&resource)
                && line.grant.as_ref() == Some(&grant)
            {
                line.told = Some(stored);
                line.changed.notify_one();
                return;
            }
            if let Some(told) = state.returning.get_mut(&grant) {
                *told = Some(stored);
                return;
            }
            if state.claimed.contains(&grant) {
                return;
            }
        }
        // It came for nobody, or what is told here is over already; the lock says which.
        self.spawn_settle(resource, key, None);
    }

    /// At this revision our session did not hold this lock. A lease that is served from an older
    /// grant is over, and a grant that is kept is gone: somebody else ended it. What is under way hears of it when its lease
    /// is made.
    fn note_not_held(&self, resource: &Resource, at: Revision, found: &Found<'_>) {
        let now = self.now();
        let served = {
            let mut state = self.state();
            if let Some(under_way) = state.under_way.get_mut(resource) {
                under_way.gone_at = under_way.gone_at.max(Some(at));
            }
            state.forget_kept_before(resource, at, now);
            state.served_grant(resource)
        };
        let Some((lease, _, seen_at)) = served else {
            return;
        };
        if seen_at < at {
            self.lose_gone(&lease, found);
        }
    }

    /// Lists what the session holds, to learn what no watch tells any more. Tries until it
    /// has an answer; the session's own end cuts it off.
    async fn list_after_gap(&self, session: &SessionId, after: Revision) -> Revision {
        let mut failures = 0;
        loop {
            let before = self.seen_before_list();
            let listed = within(CALL_LIMIT, self.0.locks.list_held_by(session)).await;
            match listed {
                Ok(page) => {
                    if self.note_list(before, page.revision).is_err() {
                        // The session is lost with it.
                        return after;
                    }
                    let revision = page.revision;
                    self.note_listed(session, page);
                    return revision;
                }
                Err(error) => {
                    tracing::debug!(%session, %error, "listing the session's locks failed; retrying");
                    tokio::time::sleep(self.pause_after(failures, LONGEST_PAUSE)).await;
                    failures = (failures + 1).min(16);
                }
            }
        }
    }

    /// What the session holds, as the store lists it.
    pub(super) fn note_listed(&self, session: &SessionId, page: Page<Lock>) {
        if page.unreadable.is_empty() {
            self.note_missing(session, &page.items, page.revision);
        } else {
            // What is missing may be what somebody made unreadable.
            tracing::warn!(%session, locks = ?page.unreadable, "unreadable locks");
        }
        for stored in page.items {
            self.note_held(stored);
        }
    }

    /// Locks that leases are served from, or attempts under way at, and that a listing of what the
    /// session holds does not have.
    fn note_missing(&self, session: &SessionId, listed: &[Stored<Lock>], at: Revision) {
        let own = listed.iter().filter(|lock| !self.is_of_another_pod(lock));
        let listed: BTreeSet<&Resource> = own.map(|lock| &lock.value.resource).collect();
        let missing: Vec<Resource> = {
            let state = self.state();
            let held = state
                .held
                .iter()
                .filter(|(_, held)| held.session.id == *session);
            let held = held.map(|(resource, _)| resource);
            let missing = held.chain(state.kept.keys()).chain(state.under_way.keys());
            missing.filter(|r| !listed.contains(r)).cloned().collect()
        };
        for resource in missing {
            self.note_not_held(&resource, at, &Found::Unread);
        }
    }
}

//! The observations of sessions.

use std::sync::Arc;

use super::session_references::SessionReference;
use super::{Key, SessionObservation, Unreadable, View, pod_of, replaces};
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

impl View {
    /// Observes a session, from a feed or an answer.
    pub fn observe_session(&mut self, event: FeedEvent<Object<Session>>, received: Moment) {
        match event {
            FeedEvent::ListStarted => {
                let there = self.sessions.keys().cloned();
                self.unlisted_sessions = Some(there.chain(self.unreadable_sessions()).collect());
            }
            FeedEvent::Applied(session) => {
                if let Some(old) = &mut self.unlisted_sessions {
                    old.remove(&session.object_ref);
                }
                self.put_session(*session, received);
            }
            // Its locks are planned as if it was not observed: the read of it fails.
            FeedEvent::Unreadable {
                object_ref,
                uid,
                why,
                ..
            } => {
                if let Some(old) = &mut self.unlisted_sessions {
                    old.remove(&object_ref);
                }
                self.forget_session(&object_ref);
                let unreadable = Unreadable { uid, why };
                self.unreadable.insert(Key::Session(object_ref), unreadable);
            }
            FeedEvent::Deleted(object_ref) => self.observe_session_missing(&object_ref, received),
            FeedEvent::ListDone => {
                for object_ref in self.unlisted_sessions.take().unwrap_or_default() {
                    self.observe_session_missing(&object_ref, received);
                }
                self.complete[1] = true;
            }
            FeedEvent::Interrupted(_) => {}
        }
    }

    fn put_session(&mut self, session: Object<Session>, received: Moment) {
        let object_ref = session.object_ref.clone();
        let before = self.sessions.get(&object_ref);
        let known = before.map(|before| before.session.stored.version);
        if !replaces(
            known,
            session.stored.version,
            self.unlisted_sessions.is_some(),
        ) {
            return;
        }
        let is_revoked = session.stored.value.revoked.is_some();
        let sight = if is_revoked {
            Sight::Revoked
        } else {
            Sight::Version(session.stored.version)
        };
        let alive_at = before.filter(|_| is_revoked).map(|before| before.alive_at);
        let observed = Observed::join(before.map(|before| before.observed), sight, received);
        let pod_checked_at = before.and_then(|before| before.pod_checked_at);
        let referenced_until = before.map_or(received, |before| before.referenced_until);
        let was_alive = before.is_some_and(|seen| seen.session.stored.value.revoked.is_none());
        self.unreadable.remove(&Key::Session(object_ref.clone()));
        let own = SessionReference::own(&session);
        let is_another = before.is_none_or(|before| SessionReference::own(&before.session) != own);
        self.missing.remove(&own);
        self.by_pod
            .entry(pod_of(&session))
            .or_default()
            .insert(object_ref.clone());
        let seen = SessionObservation {
            session: Arc::new(session),
            observed,
            alive_at: alive_at.unwrap_or(received),
            referenced_until,
            pod_checked_at,
        };
        if self.sessions.insert(object_ref.clone(), seen).is_none() {
            self.count_session(&object_ref.namespace);
        }
        self.changed.push(Key::Session(object_ref.clone()));
        if is_another {
            self.mark_foreign_references_to(&object_ref, received);
        }
        if is_revoked || !was_alive || is_another {
            self.requeue_locks_of(&object_ref);
        }
    }

    /// Observes that a session does not exist. Names are never reused, so it will not come back.
    pub fn observe_session_missing(&mut self, object_ref: &ObjectRef, received: Moment) {
        self.forget_session(object_ref);
        if self.session_index.is_referenced(object_ref) {
            self.mark_references_missing(object_ref, received);
            self.requeue_locks_of(object_ref);
        }
    }

    fn forget_session(&mut self, object_ref: &ObjectRef) {
        let unreadable = self.unreadable.remove(&Key::Session(object_ref.clone()));
        let gone = self.sessions.remove(object_ref);
        if gone.is_some() {
            self.count_session_gone(&object_ref.namespace);
        }
        if gone.is_some() || unreadable.is_some() {
            self.requeue_binding_of(&object_ref.namespace);
        }
        let Some(seen) = gone else {
            return;
        };
        let pod = pod_of(&seen.session);
        if let Some(sessions) = self.by_pod.get_mut(&pod) {
            sessions.remove(object_ref);
            if sessions.is_empty() {
                self.by_pod.remove(&pod);
            }
        }
    }

    fn requeue_locks_of(&mut self, session: &ObjectRef) {
        let naming = self.session_index.locks_of(session);
        self.changed.extend(naming.cloned().map(Key::Lock));
    }
}

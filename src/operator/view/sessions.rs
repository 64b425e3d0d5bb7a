//! What is known of sessions.

use std::sync::Arc;

use super::claims::Claim;
use super::{Key, SeenSession, Unreadable, View, is_news, pod_of};
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::store::fleet::{FeedEvent, Object, ObjectRef};

impl View {
    /// Takes note of a session that a feed or an answer told of.
    pub fn note_session(&mut self, told: FeedEvent<Object<Session>>, received: Moment) {
        match told {
            FeedEvent::ListStarted => {
                let there = self.sessions.keys().cloned();
                self.old_sessions = Some(there.chain(self.unreadable_sessions()).collect());
            }
            FeedEvent::Applied(session) => {
                if let Some(old) = &mut self.old_sessions {
                    old.remove(&session.object_ref);
                }
                self.put_session(*session, received);
            }
            // Its locks are judged as if it were not told of: by a look at it, which fails.
            FeedEvent::Unreadable {
                object_ref,
                uid,
                why,
                ..
            } => {
                if let Some(old) = &mut self.old_sessions {
                    old.remove(&object_ref);
                }
                self.forget_session(&object_ref);
                let unreadable = Unreadable { uid, why };
                self.unreadable.insert(Key::Session(object_ref), unreadable);
            }
            FeedEvent::Deleted(object_ref) => self.note_no_session(&object_ref, received),
            FeedEvent::ListDone => {
                for object_ref in self.old_sessions.take().unwrap_or_default() {
                    self.note_no_session(&object_ref, received);
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
        if !is_news(known, session.stored.version, self.old_sessions.is_some()) {
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
        let pod_looked_at = before.and_then(|before| before.pod_looked_at);
        let named_until = before.map_or(received, |before| before.named_until);
        let was_alive = before.is_some_and(|seen| seen.session.stored.value.revoked.is_none());
        self.unreadable.remove(&Key::Session(object_ref.clone()));
        let own = Claim::own(&session);
        let is_another = before.is_none_or(|before| Claim::own(&before.session) != own);
        self.missing.remove(&own);
        self.by_pod
            .entry(pod_of(&session))
            .or_default()
            .insert(object_ref.clone());
        let seen = SeenSession {
            session: Arc::new(session),
            observed,
            alive_at: alive_at.unwrap_or(received),
            named_until,
            pod_looked_at,
        };
        if self.sessions.insert(object_ref.clone(), seen).is_none() {
            self.count_session(&object_ref.namespace);
        }
        self.changed.push(Key::Session(object_ref.clone()));
        if is_another {
            self.miss_session_of_strangers(&object_ref, received);
        }
        if is_revoked || !was_alive || is_another {
            self.look_again_at_locks_of(&object_ref);
        }
    }

    /// There is no such session, as the store said just now. Names are never used twice, so it
    /// will not come back.
    pub fn note_no_session(&mut self, object_ref: &ObjectRef, received: Moment) {
        self.forget_session(object_ref);
        if self.naming.is_named(object_ref) {
            self.miss_session(object_ref, received);
            self.look_again_at_locks_of(object_ref);
        }
    }

    fn forget_session(&mut self, object_ref: &ObjectRef) {
        let unreadable = self.unreadable.remove(&Key::Session(object_ref.clone()));
        let gone = self.sessions.remove(object_ref);
        if gone.is_some() {
            self.count_session_gone(&object_ref.namespace);
        }
        if gone.is_some() || unreadable.is_some() {
            self.look_again_at_binding_of(&object_ref.namespace);
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

    fn look_again_at_locks_of(&mut self, session: &ObjectRef) {
        let naming = self.naming.locks_of(session);
        self.changed.extend(naming.cloned().map(Key::Lock));
    }
}

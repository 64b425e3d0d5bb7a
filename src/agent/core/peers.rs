//! The sessions of other pods, as this agent observed them.
//!
//! Observations are bounded, and a forgotten one costs time only: the silence of that session
//! counts again from its next read.

use std::collections::BTreeMap;

use crate::protocol::key::SessionKey;
use crate::protocol::observed::{Observed, Sight};
use crate::protocol::time::Moment;

/// How many other sessions are observed at once.
const OBSERVED_MAX: usize = 1_000;

/// What was observed of other sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::agent) struct Peers {
    observed: BTreeMap<SessionKey, Peer>,
    /// Until when a denied take-over is taken as the policies' answer to the next one, too.
    pub(in crate::agent) strict_until: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Peer {
    observed: Observed,
    read_at: Moment,
    /// Whether it changed since it was first observed.
    has_changed: bool,
}

impl Peers {
    /// Adds a read of another session to what was observed of it before.
    pub(in crate::agent) fn observe(
        &mut self,
        session: &SessionKey,
        sight: Sight,
        received: Moment,
    ) -> Observed {
        if self.observed.len() >= OBSERVED_MAX && !self.observed.contains_key(session) {
            self.forget_one();
        }
        let before = self.observed(session);
        let observed = Observed::join(before, sight, received);
        let has_changed = self.has_changed(session) || before.is_some_and(|one| one != observed);
        let peer = Peer {
            observed,
            read_at: received,
            has_changed,
        };
        self.observed.insert(session.clone(), peer);
        observed
    }

    /// Returns what was observed of another session.
    pub(in crate::agent) fn observed(&self, session: &SessionKey) -> Option<Observed> {
        self.observed.get(session).map(|peer| peer.observed)
    }

    /// Returns whether another session was seen to change, as only a running agent changes it.
    pub(in crate::agent) fn has_changed(&self, session: &SessionKey) -> bool {
        self.observed
            .get(session)
            .is_some_and(|peer| peer.has_changed)
    }

    /// Forgets all observations: after a restore an old version may be read again, and must not
    /// count as silent all the time.
    pub(in crate::agent) fn forget_all(&mut self) {
        self.observed.clear();
    }

    /// Forgets the session that was read the longest time ago. Not the one that was silent for
    /// longest: that is the expired one.
    fn forget_one(&mut self) {
        let oldest = self.observed.iter().min_by_key(|(_, peer)| peer.read_at);
        if let Some(oldest) = oldest.map(|(session, _)| session.clone()) {
            self.observed.remove(&oldest);
        }
    }
}

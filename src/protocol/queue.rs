//! The queue inside a lock: oldest first, at most 32 entries, one per session.
//!
//! It only orders; who is dead and who is handed the lock is decided in `lock`.

use super::ids::{GrantId, SessionId};
use super::session::Claimant;
use super::time::WallTime;

/// How many waiters one lock object can carry.
pub const QUEUE_MAX: usize = 32;

/// An entry in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The id that the grant will have when its turn comes.
    pub grant: GrantId,
    /// Who waits.
    pub claimant: Claimant,
    /// Since when, for people; the order is the list's.
    pub queued_at: WallTime,
}

/// The waiters of a lock, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue(Vec<Waiter>);

/// What joining the queue came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// The queue with the newcomer at its end.
    Joined(Queue),
    /// The session has an entry already: an earlier write whose answer was lost, or another
    /// local caller's.
    Present(GrantId),
    /// There is no room; try again later, with full jitter.
    Full,
}

impl Queue {
    /// A queue as an object carries it, oldest first.
    #[must_use]
    pub const fn from_entries(entries: Vec<Waiter>) -> Self {
        Self(entries)
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Waiter] {
        &self.0
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The queue with one more waiter.
    #[must_use]
    pub fn join(&self, waiter: Waiter) -> Join {
        if let Some(present) = self.entry_of(&waiter.claimant.session) {
            return Join::Present(present.grant.clone());
        }
        if self.0.len() >= QUEUE_MAX {
            return Join::Full;
        }
        let mut entries = self.0.clone();
        entries.push(waiter);
        Join::Joined(Self(entries))
    }

    /// The queue without one waiter; none when it was not there.
    #[must_use]
    pub fn without(&self, grant: &GrantId) -> Option<Self> {
        let rest: Vec<_> = self
            .0
            .iter()
            .filter(|w| w.grant != *grant)
            .cloned()
            .collect();
        (rest.len() < self.0.len()).then_some(Self(rest))
    }

    /// The entry of a session.
    #[must_use]
    pub fn entry_of(&self, session: &SessionId) -> Option<&Waiter> {
        self.0
            .iter()
            .find(|waiter| waiter.claimant.session == *session)
    }

    /// The head and the rest.
    #[must_use]
    pub fn split_head(&self) -> Option<(Waiter, Self)> {
        let (head, rest) = self.0.split_first()?;
        Some((head.clone(), Self(rest.to_vec())))
    }

    /// The queue without the waiters whose session is dead. They are dropped all together: one
    /// at a time, each would cost the living behind it a TTL.
    #[must_use]
    pub fn without_dead(&self, is_dead: impl Fn(&SessionId) -> bool) -> Self {
        Self(
            self.0
                .iter()
                .filter(|w| !is_dead(&w.claimant.session))
                .cloned()
                .collect(),
        )
    }
}

//! The queue inside a lock: oldest first, at most 32 entries, one per session. In an election the
//! preferred candidates are before all others, the oldest first.
//!
//! It only orders entries. `lock` decides which waiter gets the lock.

use super::ids::GrantId;
use super::key::{GrantKey, SessionKey};
use super::session::Claimant;
use super::time::WallTime;

/// The maximum number of waiters of one lock object.
pub const QUEUE_MAX: usize = 32;

/// An entry in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter {
    /// The id that the grant will have once the waiter becomes the holder.
    pub grant: GrantId,
    /// The waiter's pod and session.
    pub claimant: Claimant,
    /// When it joined. Informational: the list gives the order.
    pub queued_at: WallTime,
    /// Whether it is queued before entries that are not preferred.
    pub preferred: bool,
}

/// The waiters of a lock, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Queue(Vec<Waiter>);

/// The outcome of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Join {
    /// The queue with the new entry.
    Joined(Queue),
    /// The session has an entry already: an earlier write whose answer was lost, another local
    /// caller's, or one that another pod made in the session's name.
    Present(GrantKey),
    /// The queue has no room; try again later, with full jitter.
    Full,
}

impl Queue {
    /// Creates a queue from the entries of an object, oldest first.
    #[must_use]
    pub const fn from_entries(entries: Vec<Waiter>) -> Self {
        Self(entries)
    }

    /// Returns the entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[Waiter] {
        &self.0
    }

    /// Returns the number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the queue has no room for another waiter.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.0.len() >= QUEUE_MAX
    }

    /// Adds a waiter to the queue: at its end, or before the first that is not preferred.
    #[must_use]
    pub fn join(&self, waiter: Waiter) -> Join {
        // Only the name is compared: no store accepts two entries of one name, even of different
        // pods.
        let mut entries = self.0.iter();
        let session = &waiter.claimant.session;
        if let Some(present) = entries.find(|other| other.claimant.session == *session) {
            return Join::Present(present.key());
        }
        if self.is_full() {
            return Join::Full;
        }
        let mut entries = self.0.clone();
        let mut goes_before = entries
            .iter()
            .map(|other| waiter.preferred && !other.preferred);
        let place = goes_before.position(|goes_before| goes_before);
        entries.insert(place.unwrap_or(entries.len()), waiter);
        Join::Joined(Self(entries))
    }

    /// Returns the queue without one waiter; `None` if it is not queued.
    #[must_use]
    pub fn without(&self, grant: &GrantKey) -> Option<Self> {
        let rest: Vec<_> = self
            .0
            .iter()
            .filter(|w| w.key() != *grant)
            .cloned()
            .collect();
        (rest.len() < self.0.len()).then_some(Self(rest))
    }

    /// Returns the entries before a session's own, or all entries if it has none: those that would
    /// get the lock before it.
    #[must_use]
    pub fn ahead_of(&self, session: &SessionKey) -> &[Waiter] {
        let own = self.0.iter().position(|w| w.claimant.key() == *session);
        &self.0[..own.unwrap_or(self.0.len())]
    }

    /// Returns the entry of a session, made by its own pod.
    #[must_use]
    pub fn entry_of(&self, session: &SessionKey) -> Option<&Waiter> {
        self.0
            .iter()
            .find(|waiter| waiter.claimant.key() == *session)
    }

    /// Returns the head and the rest; `None` if the queue is empty. A second entry with the head's
    /// grant id, which only a manual edit can create, is in neither: no store accepts a lock whose
    /// grant waits for the same lock, so the lock could never be handed over.
    #[must_use]
    pub fn split_head(&self) -> Option<(Waiter, Self)> {
        let (head, rest) = self.0.split_first()?;
        let rest = rest.iter().filter(|other| other.grant != head.grant);
        Some((head.clone(), Self(rest.cloned().collect())))
    }

    /// Returns the queue without the waiters whose sessions have expired. They are dropped all at
    /// once: one at a time, each would delay the waiters behind it by a TTL.
    #[must_use]
    pub fn without_dead(&self, is_dead: impl Fn(&Claimant) -> bool) -> Self {
        Self(
            self.0
                .iter()
                .filter(|w| !is_dead(&w.claimant))
                .cloned()
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::{OwnerId, SessionId};
    use crate::protocol::session::PodRef;
    use crate::protocol::time::SessionTtl;

    fn waiter(n: usize) -> Waiter {
        Waiter {
            grant: GrantId::from(format!("g{n}")),
            claimant: Claimant {
                owner: OwnerId::from("o"),
                pod: PodRef {
                    name: "p".into(),
                    uid: "u".into(),
                    node: None,
                },
                session: SessionId::from(format!("s{n}")),
                session_ttl: SessionTtl::clamped(15),
            },
            queued_at: WallTime(0),
            preferred: false,
        }
    }

    fn key(n: usize) -> SessionKey {
        waiter(n).claimant.key()
    }

    fn preferred(n: usize) -> Waiter {
        Waiter {
            preferred: true,
            ..waiter(n)
        }
    }

    fn line(waiters: impl IntoIterator<Item = usize>) -> Queue {
        Queue::from_entries(waiters.into_iter().map(waiter).collect())
    }

    #[test]
    fn a_newcomer_goes_to_the_end_and_the_oldest_is_the_head() {
        let Join::Joined(joined) = line([1, 2]).join(waiter(3)) else {
            panic!("there is room");
        };
        assert_eq!(joined, line([1, 2, 3]));
        assert_eq!(joined.split_head(), Some((waiter(1), line([2, 3]))));
        assert_eq!(Queue::default().split_head(), None);
    }

    #[test]
    fn first_waiter_leaves_the_queue_under_every_grant_id() {
        let twice = Waiter {
            grant: GrantId::from("g1"),
            ..waiter(2)
        };
        let queue = Queue::from_entries(vec![waiter(1), twice, waiter(3)]);
        assert_eq!(queue.split_head(), Some((waiter(1), line([3]))));
    }

    #[test]
    fn preferred_waiter_joins_behind_the_last_preferred_one() {
        type Places<'a> = &'a [(usize, bool)];
        let entry = |(n, preferred): &(usize, bool)| Waiter {
            preferred: *preferred,
            ..waiter(*n)
        };
        let queue = |places: Places| Queue::from_entries(places.iter().map(entry).collect());
        let table: [(Places, usize); 5] = [
            (&[], 0),
            (&[(1, false), (2, false)], 0),
            (&[(1, true), (2, false)], 1),
            (&[(1, true), (2, true)], 2),
            // A manual edit; the entry is still queued before those that are not preferred.
            (&[(1, false), (2, true)], 0),
        ];
        for (places, place) in table {
            let Join::Joined(joined) = queue(places).join(preferred(9)) else {
                panic!("there is room");
            };
            let mut expected = places.to_vec();
            expected.insert(place, (9, true));
            assert_eq!(joined, queue(&expected));
            let Join::Joined(joined) = queue(places).join(waiter(9)) else {
                panic!("there is room");
            };
            assert_eq!(joined.entries().last(), Some(&waiter(9)));
        }
    }

    #[test]
    fn a_session_has_one_entry_also_under_another_grant_id() {
        let again = Waiter {
            grant: GrantId::from("other"),
            ..waiter(2)
        };
        assert_eq!(line([1, 2]).join(again), Join::Present(waiter(2).key()));
    }

    #[test]
    fn entry_of_another_pod_is_not_the_sessions() {
        let mut foreign = waiter(2);
        foreign.claimant.pod.uid = "m".into();
        let queue = Queue::from_entries(vec![waiter(1), foreign.clone()]);
        assert_eq!(queue.entry_of(&key(2)), None);
        assert_eq!(queue.ahead_of(&key(2)), queue.entries());
        assert_eq!(queue.without(&waiter(2).key()), None);
        // No store would accept a second entry of that name.
        assert_eq!(queue.join(waiter(2)), Join::Present(foreign.key()));
    }

    #[test]
    fn full_queue_recognises_its_own_waiters() {
        let full = line(0..QUEUE_MAX);
        assert_eq!(full.join(waiter(99)), Join::Full);
        assert_eq!(full.join(waiter(5)), Join::Present(waiter(5).key()));
    }

    #[test]
    fn entries_ahead_are_served_first() {
        assert_eq!(line([1, 2, 3]).ahead_of(&key(3)), line([1, 2]).entries());
        assert_eq!(line([1, 2]).ahead_of(&key(1)), line([]).entries());
        assert_eq!(line([1, 2]).ahead_of(&key(9)), line([1, 2]).entries());
    }

    #[test]
    fn removed_entry_leaves_the_order_of_the_others() {
        assert_eq!(
            line([1, 2, 3]).without(&waiter(2).key()),
            Some(line([1, 3]))
        );
        assert_eq!(line([1, 3]).without(&waiter(2).key()), None);
        let dead = |who: &Claimant| ["s1", "s3"].contains(&who.session.as_str());
        assert_eq!(line([1, 2, 3, 4]).without_dead(dead), line([2, 4]));
    }
}

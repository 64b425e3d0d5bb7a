//! What is to be looked at, in which order, and what is to be looked at later.
//!
//! A key stands in it once, and nothing is done about a key while something is under way for it.
//! Sessions go first, because a lock is only taken over after its session is revoked; then locks
//! that somebody waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::protocol::time::Moment;

use super::view::Key;

/// How soon a key is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    Session,
    Contended,
    Other,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: [VecDeque<Key>; 3],
    queued: BTreeSet<Key>,
    under_way: BTreeSet<Key>,
    /// Changed while something was under way for it.
    changed: BTreeMap<Key, Urgency>,
    later: BTreeSet<(Moment, Key)>,
    due: BTreeMap<Key, Moment>,
    failures: BTreeMap<Key, u32>,
}

impl Queue {
    /// How many are to be looked at now, or are under way.
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.under_way.len()
    }

    /// This one is to be looked at now. What it waited for does not matter any more.
    pub(super) fn push(&mut self, key: Key, urgency: Urgency) {
        self.forget_due(&key);
        if self.under_way.contains(&key) {
            self.changed.insert(key, urgency);
        } else if self.queued.insert(key.clone()) {
            self.ready[urgency as usize].push_back(key);
        }
    }

    /// The next one to look at.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let key = self.ready.iter_mut().find_map(VecDeque::pop_front)?;
        self.queued.remove(&key);
        Some(key)
    }

    /// Nothing else is to be done about this one until [`Self::finish`].
    pub(super) fn begin(&mut self, key: Key) {
        self.under_way.insert(key);
    }

    /// What was under way for it is over.
    pub(super) fn finish(&mut self, key: &Key) {
        self.under_way.remove(key);
        if let Some(urgency) = self.changed.remove(key) {
            self.push(key.clone(), urgency);
        }
    }

    /// It worked: the next failure is the first one.
    pub(super) fn note_success(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// It did not: how often in a row, before this one.
    pub(super) fn note_failure(&mut self, key: &Key) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        let before = *failures;
        *failures = before.saturating_add(1);
        before
    }

    /// This one is to be looked at later, if nothing changes before.
    pub(super) fn look_again(&mut self, key: Key, at: Moment) {
        if self.queued.contains(&key) || self.changed.contains_key(&key) {
            return;
        }
        self.forget_due(&key);
        self.due.insert(key.clone(), at);
        self.later.insert((at, key));
    }

    /// The keys that are due by now.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((_, key)) = self.later.pop_first()
        {
            self.due.remove(&key);
            keys.push(key);
        }
        keys
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.later.first().map(|(at, _)| *at)
    }

    /// There is no such thing any more.
    pub(super) fn forget(&mut self, key: &Key) {
        self.failures.remove(key);
        self.forget_due(key);
    }

    /// Forgets everything but what is under way.
    pub(super) fn clear(&mut self) {
        *self = Self {
            under_way: std::mem::take(&mut self.under_way),
            ..Self::default()
        };
    }

    fn forget_due(&mut self, key: &Key) {
        if let Some(at) = self.due.remove(key) {
            self.later.remove(&(at, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::fleet::Place;

    fn place(name: &str) -> Place {
        Place {
            namespace: "n".into(),
            name: name.into(),
        }
    }

    fn lock(name: &str) -> Key {
        Key::Lock(place(name))
    }

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn sessions_come_first_and_then_contended_locks() {
        let mut queue = Queue::default();
        let session = Key::Session(place("s"));
        queue.push(lock("a"), Urgency::Other);
        queue.push(lock("b"), Urgency::Contended);
        queue.push(session.clone(), Urgency::Session);
        queue.push(lock("a"), Urgency::Other);
        let order: Vec<Key> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [session, lock("b"), lock("a")]);
    }

    #[test]
    fn change_during_a_reconcile_is_requeued_after_it() {
        let mut queue = Queue::default();
        queue.begin(lock("a"));
        queue.push(lock("a"), Urgency::Other);
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.len(), 1);
        queue.finish(&lock("a"));
        assert_eq!(queue.pop(), Some(lock("a")));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn change_replaces_a_timer() {
        let mut queue = Queue::default();
        queue.look_again(lock("a"), at(5));
        queue.look_again(lock("b"), at(9));
        queue.look_again(lock("b"), at(7));
        queue.push(lock("a"), Urgency::Other);
        assert_eq!(queue.next_due(), Some(at(7)));
        assert_eq!(queue.take_due(at(6)), []);
        assert_eq!(queue.take_due(at(7)), [lock("b")]);
        assert_eq!(queue.next_due(), None);
        queue.look_again(lock("a"), at(8));
        assert_eq!(queue.next_due(), None, "it is looked at now anyway");
    }
}

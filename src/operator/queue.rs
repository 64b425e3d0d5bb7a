//! The work queue: the keys to plan now, by priority, and the delayed ones.
//!
//! Invariant: a key is queued at most once, and never planned while an action for it is in flight.
//! Sessions come first, because a lock is taken over only after its session is revoked; then
//! contended locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::protocol::time::Moment;

use super::key::Key;

/// The priority of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    Session,
    Contended,
    Other,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    ready: [VecDeque<Key>; 3],
    queued: BTreeSet<Key>,
    in_flight: BTreeSet<Key>,
    /// Keys that changed while an action for them was in flight.
    changed: BTreeMap<Key, Priority>,
    delayed: BTreeSet<(Moment, Key)>,
    due: BTreeMap<Key, Moment>,
    failures: BTreeMap<Key, u32>,
}

impl Queue {
    /// Returns the number of keys that are queued or in flight.
    pub(super) fn len(&self) -> usize {
        self.queued.len() + self.in_flight.len()
    }

    /// Queues a key, and cancels its delay.
    pub(super) fn push(&mut self, key: Key, priority: Priority) {
        self.cancel_delay(&key);
        if self.in_flight.contains(&key) {
            self.changed.insert(key, priority);
        } else if self.queued.insert(key.clone()) {
            self.ready[priority as usize].push_back(key);
        }
    }

    /// Returns the next key.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let key = self.ready.iter_mut().find_map(VecDeque::pop_front)?;
        self.queued.remove(&key);
        Some(key)
    }

    /// Marks a key as in flight until [`Self::finish`].
    pub(super) fn start(&mut self, key: Key) {
        self.in_flight.insert(key);
    }

    /// Ends the action in flight for a key. A key that changed meanwhile is queued again.
    pub(super) fn finish(&mut self, key: &Key) {
        self.in_flight.remove(key);
        if let Some(priority) = self.changed.remove(key) {
            self.push(key.clone(), priority);
        }
    }

    /// Resets the number of failures after a success.
    pub(super) fn reset_failures(&mut self, key: &Key) {
        self.failures.remove(key);
    }

    /// Counts a failure. Returns the number of failures in a row before it.
    pub(super) fn count_failure(&mut self, key: &Key) -> u32 {
        let failures = self.failures.entry(key.clone()).or_default();
        let before = *failures;
        *failures = before.saturating_add(1);
        before
    }

    /// Queues a key at a later time, if nothing changes before.
    pub(super) fn requeue_at(&mut self, key: Key, at: Moment) {
        if self.queued.contains(&key) || self.changed.contains_key(&key) {
            return;
        }
        self.cancel_delay(&key);
        self.due.insert(key.clone(), at);
        self.delayed.insert((at, key));
    }

    /// Returns the keys that are due.
    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Key> {
        let mut keys = Vec::new();
        while let Some((at, _)) = self.delayed.first()
            && *at <= now
            && let Some((_, key)) = self.delayed.pop_first()
        {
            self.due.remove(&key);
            keys.push(key);
        }
        keys
    }

    /// Returns when the next key is due.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.delayed.first().map(|(at, _)| *at)
    }

    /// Forgets the failures and the delay of a key with nothing to do.
    pub(super) fn forget(&mut self, key: &Key) {
        self.failures.remove(key);
        self.cancel_delay(key);
    }

    /// Removes everything but the actions in flight.
    pub(super) fn clear(&mut self) {
        *self = Self {
            in_flight: std::mem::take(&mut self.in_flight),
            ..Self::default()
        };
    }

    fn cancel_delay(&mut self, key: &Key) {
        if let Some(at) = self.due.remove(key) {
            self.delayed.remove(&(at, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::fleet::ObjectRef;

    fn object_ref(name: &str) -> ObjectRef {
        ObjectRef {
            namespace: "n".into(),
            name: name.into(),
        }
    }

    fn lock(name: &str) -> Key {
        Key::Lock(object_ref(name))
    }

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn sessions_come_first_and_then_contended_locks() {
        let mut queue = Queue::default();
        let session = Key::Session(object_ref("s"));
        queue.push(lock("a"), Priority::Other);
        queue.push(lock("b"), Priority::Contended);
        queue.push(session.clone(), Priority::Session);
        queue.push(lock("a"), Priority::Other);
        let order: Vec<Key> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [session, lock("b"), lock("a")]);
    }

    #[test]
    fn change_during_a_reconcile_is_requeued_after_it() {
        let mut queue = Queue::default();
        queue.start(lock("a"));
        queue.push(lock("a"), Priority::Other);
        assert_eq!(queue.pop(), None);
        assert_eq!(queue.len(), 1);
        queue.finish(&lock("a"));
        assert_eq!(queue.pop(), Some(lock("a")));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn change_replaces_a_timer() {
        let mut queue = Queue::default();
        queue.requeue_at(lock("a"), at(5));
        queue.requeue_at(lock("b"), at(9));
        queue.requeue_at(lock("b"), at(7));
        queue.push(lock("a"), Priority::Other);
        assert_eq!(queue.next_due(), Some(at(7)));
        assert_eq!(queue.take_due(at(6)), []);
        assert_eq!(queue.take_due(at(7)), [lock("b")]);
        assert_eq!(queue.next_due(), None);
        queue.requeue_at(lock("a"), at(8));
        assert_eq!(queue.next_due(), None, "the key is queued anyway");
    }
}

//! The chain of holders and waiters: from a lock to its holder, to the locks that the holder waits for, and so on.
//!
//! A holder and a waiter are the same party if they have the same session. The apps of a pod share its session, so a
//! cycle of sessions is only a *possible* deadlock: the app that waits need not be the one that holds.

use std::collections::{BTreeMap, BTreeSet};

use super::world::LockSeen;

/// The number of locks that a chain follows. A longer one is cut, and says so.
pub const LINKS_MAX: usize = 1000;

/// An entry in the queue of a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait<'a> {
    /// The lock that is waited for.
    pub lock: &'a LockSeen,
    /// The position in its queue, from 1.
    pub position: usize,
}

/// One party of a cycle: it holds a lock, and waits for the one of the next party.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Party<'a> {
    /// The lock that it holds.
    pub holds: &'a LockSeen,
    /// The lock that it waits for.
    pub waits_for: &'a LockSeen,
}

/// A lock and what follows from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chain<'a> {
    /// The locks, each after the one whose holder waits for it, each once.
    pub locks: Vec<&'a LockSeen>,
    /// A cycle, if one was found; it need not contain the first lock.
    pub cycle: Option<Vec<Party<'a>>>,
    /// Whether the chain has more than [`LINKS_MAX`] locks.
    pub is_cut: bool,
}

/// The queue entries of all sessions of a namespace.
#[derive(Debug, Default)]
pub struct Waits<'a> {
    of: BTreeMap<&'a str, BTreeMap<&'a str, Vec<Wait<'a>>>>,
}

impl<'a> Waits<'a> {
    /// Collects the queue entries of these locks.
    #[must_use]
    pub fn of_locks(locks: impl IntoIterator<Item = &'a LockSeen>) -> Self {
        let mut of: BTreeMap<_, BTreeMap<_, Vec<_>>> = BTreeMap::new();
        for lock in locks {
            let Ok(status) = &lock.status else { continue };
            for (index, waiter) in status.waiters.iter().enumerate() {
                let sessions = of.entry(lock.namespace.as_str()).or_default();
                let position = index + 1;
                let waits = sessions.entry(waiter.session.as_str()).or_default();
                waits.push(Wait { lock, position });
            }
        }
        Self { of }
    }

    /// Returns the locks that a session waits for.
    pub fn of_session(&self, namespace: &str, session: &str) -> &[Wait<'a>] {
        let waits = self.of.get(namespace).and_then(|of| of.get(session));
        waits.map_or(&[], Vec::as_slice)
    }

    /// Returns the locks that the holder of a lock waits for.
    #[must_use]
    pub fn of_holder(&self, lock: &LockSeen) -> &[Wait<'a>] {
        lock.holder_session()
            .map_or(&[], |session| self.of_session(&lock.namespace, session))
    }

    /// Follows the chain from a lock to all its ends.
    #[must_use]
    pub fn chain_from(&self, first: &'a LockSeen) -> Chain<'a> {
        let mut chain = Chain::default();
        let mut met = BTreeSet::new();
        // Each lock on the way from the first one, with how many of its holder's waits were followed.
        let mut way: Vec<(&'a LockSeen, usize)> = Vec::new();
        let mut next = Some(first);
        loop {
            if let Some(lock) = next.take() {
                if chain.locks.len() == LINKS_MAX {
                    chain.is_cut = true;
                    return chain;
                }
                met.insert(lock.name.as_str());
                chain.locks.push(lock);
                way.push((lock, 0));
            }
            let Some((lock, followed)) = way.last_mut() else {
                return chain;
            };
            let Some(wait) = self.of_holder(lock).get(*followed).copied() else {
                way.pop();
                continue;
            };
            *followed += 1;
            if chain.cycle.is_none() {
                chain.cycle = cycle_of(&way, wait.lock);
            }
            if !met.contains(wait.lock.name.as_str()) {
                next = Some(wait.lock);
            }
        }
    }
}

/// Returns the cycle that is closed if the last holder on the way waits for `lock`: the holder of `lock` is one of the
/// parties on the way.
fn cycle_of<'a>(way: &[(&'a LockSeen, usize)], lock: &'a LockSeen) -> Option<Vec<Party<'a>>> {
    let holder = lock.holder_session()?;
    let start = way
        .iter()
        .position(|(on_way, _)| on_way.holder_session() == Some(holder))?;
    // A lock that is waited for is another party's: an agent does not wait for what it holds itself.
    if start + 1 == way.len() && way[start].0.name == lock.name {
        return None;
    }
    let parties = way[start..].iter().map(|(lock, _)| *lock);
    let mut waited: Vec<_> = parties.clone().skip(1).collect();
    waited.push(lock);
    let parties = parties.zip(waited);
    // The first party holds the lock that the last one waits for, which need not be the one on the way.
    let mut cycle: Vec<_> = parties
        .map(|(holds, waits_for)| Party { holds, waits_for })
        .collect();
    if let Some(first) = cycle.first_mut() {
        first.holds = lock;
    }
    (cycle.len() > 1).then_some(cycle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a lock that a session holds, with these sessions in its queue.
    fn lock(name: &str, holder: &str, waiters: &[&str]) -> LockSeen {
        let waiters: Vec<_> = waiters
            .iter()
            .map(|session| {
                json!({"leaseId": format!("{name}-{session}"), "ownerId": session, "pod": session,
                    "podUid": "", "session": session, "sessionTtlSeconds": 15,
                    "queuedAt": "2026-01-01T00:00:00Z"})
            })
            .collect();
        LockSeen::read(&json!({
            "metadata": {"name": name, "namespace": "n"},
            "spec": {"resource": name},
            "status": {"token": 1, "waiters": waiters,
                "holder": {"ownerId": holder, "pod": holder, "podUid": "", "session": holder,
                    "sessionTtlSeconds": 15},
                "lease": {"id": name, "acquiredAt": "2026-01-01T00:00:00Z"}},
        }))
    }

    fn names(chain: &Chain<'_>) -> Vec<String> {
        chain.locks.iter().map(|lock| lock.name.clone()).collect()
    }

    fn cycle(chain: &Chain<'_>) -> Vec<(String, String)> {
        let parties = chain.cycle.iter().flatten();
        parties
            .map(|party| (party.holds.name.clone(), party.waits_for.name.clone()))
            .collect()
    }

    #[test]
    fn two_pods_that_wait_for_each_other_are_a_cycle() {
        let locks = [lock("a", "p", &["q"]), lock("b", "q", &["p"])];
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        assert_eq!(names(&chain), ["a", "b"]);
        let expected = [("a", "b"), ("b", "a")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(cycle(&chain), expected);
    }

    #[test]
    fn chain_of_five_has_an_end_and_no_cycle() {
        let locks = [
            lock("a", "1", &["x"]),
            lock("b", "2", &["1"]),
            lock("c", "3", &["2"]),
            lock("d", "4", &["y", "3"]),
            lock("e", "5", &["4"]),
            lock("z", "9", &[]),
        ];
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        assert_eq!(names(&chain), ["a", "b", "c", "d", "e"]);
        assert_eq!(chain.cycle, None);
        assert_eq!(waits.of_holder(&locks[2])[0].position, 2);
        assert_eq!(names(&waits.chain_from(&locks[5])), ["z"]);
    }

    #[test]
    fn two_ways_to_one_lock_are_no_cycle() {
        let locks = [
            lock("a", "1", &[]),
            lock("b", "2", &["1"]),
            lock("c", "3", &["1"]),
            lock("d", "4", &["2", "3"]),
        ];
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        assert_eq!(names(&chain), ["a", "b", "d", "c"]);
        assert_eq!(chain.cycle, None);
    }

    #[test]
    fn cycle_through_another_lock_of_the_same_holder_is_found() {
        // The pod p holds both a and b; q holds c, which p waits for, and waits for b.
        let locks = [
            lock("a", "p", &[]),
            lock("b", "p", &["q"]),
            lock("c", "q", &["p"]),
        ];
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        let expected = [("b", "c"), ("c", "b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(cycle(&chain), expected);
    }

    #[test]
    fn cycle_behind_the_first_lock_is_found() {
        let locks = [
            lock("a", "1", &[]),
            lock("b", "2", &["1", "3"]),
            lock("c", "3", &["2"]),
        ];
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        let expected = [("b", "c"), ("c", "b")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(cycle(&chain), expected);
    }

    #[test]
    fn a_holder_that_is_queued_for_its_own_lock_is_no_cycle() {
        let locks = [lock("a", "p", &["p"])];
        assert_eq!(Waits::of_locks(&locks).chain_from(&locks[0]).cycle, None);
    }

    #[test]
    fn very_long_chain_is_cut() {
        let locks: Vec<_> = (0..LINKS_MAX + 5)
            .map(|n| {
                let before = n.checked_sub(1).map(|n| n.to_string());
                let waiters: Vec<_> = before.iter().map(String::as_str).collect();
                lock(&format!("l{n}"), &n.to_string(), &waiters)
            })
            .collect();
        let waits = Waits::of_locks(&locks);
        let chain = waits.chain_from(&locks[0]);
        assert!(chain.is_cut && chain.locks.len() == LINKS_MAX);
    }
}

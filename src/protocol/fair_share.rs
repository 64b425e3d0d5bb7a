//! How long an agent may continue to serve its own callers from one grant while other pods wait.
//!
//! The next lease of a grant costs no write, so a pod with a constant stream of callers would keep
//! the lock forever. The limit counts the time that other pods wait, not the age of the grant: it
//! never ends the grant of a pod without competitors, and never shortens a lease.

use std::time::Duration;

use super::time::Moment;

/// The maximum time that other pods wait while this pod serves its own callers.
pub const OTHERS_WAIT: Duration = Duration::from_millis(100);
/// The maximum number of leases that begin while other pods wait.
pub const LEASES_BEFORE_OTHERS: u16 = 16;

/// The limit on what one grant serves to callers of its own pod while other pods wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FairShare {
    waiting: Option<Waiting>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    since: Moment,
    leases: u16,
}

impl FairShare {
    /// Records a read of the lock, with or without other sessions in its queue.
    pub fn note_others(&mut self, are_waiting: bool, now: Moment) {
        if !are_waiting {
            self.waiting = None;
        } else if self.waiting.is_none() {
            self.waiting = Some(Waiting {
                since: now,
                leases: 0,
            });
        }
    }

    /// Records the start of a lease.
    pub fn note_lease(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.leases = waiting.leases.saturating_add(1);
        }
    }

    /// Returns whether other pods are known to wait.
    #[must_use]
    pub const fn others_wait(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether the lock is handed over as soon as the current lease ends.
    #[must_use]
    pub fn is_used_up(&self, now: Moment) -> bool {
        self.waiting.is_some_and(|waiting| {
            waiting.leases >= LEASES_BEFORE_OTHERS || now >= waiting.since.after(OTHERS_WAIT)
        })
    }

    /// Returns when the lock is handed over at the latest; `None` while no other pod waits.
    #[must_use]
    pub fn ends_at(&self) -> Option<Moment> {
        self.waiting.map(|waiting| waiting.since.after(OTHERS_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(milliseconds))
    }

    #[test]
    fn no_limit_without_other_waiters() {
        let mut share = FairShare::default();
        for _ in 0..100 {
            share.note_lease();
        }
        assert!(!share.is_used_up(at(1_000_000)));
        assert_eq!(share.ends_at(), None);
    }

    #[test]
    fn share_is_used_up_after_100_milliseconds() {
        let mut share = FairShare::default();
        share.note_others(true, at(1_000));
        assert!(!share.is_used_up(at(1_099)));
        assert!(share.is_used_up(at(1_100)));
        assert_eq!(share.ends_at(), Some(at(1_100)));
    }

    #[test]
    fn share_is_used_up_after_sixteen_leases() {
        let mut share = FairShare::default();
        share.note_lease();
        share.note_others(true, at(1_000));
        for served in 0..16 {
            assert!(!share.is_used_up(at(1_001)), "after {served}");
            share.note_lease();
        }
        assert!(share.is_used_up(at(1_001)));
    }

    #[test]
    fn share_is_not_restarted_by_waiters_and_ends_with_the_last() {
        let mut share = FairShare::default();
        share.note_others(true, at(1_000));
        share.note_others(true, at(1_090));
        assert!(share.is_used_up(at(1_100)));
        share.note_others(false, at(1_100));
        assert!(!share.is_used_up(at(1_100)));
        share.note_others(true, at(1_200));
        assert!(!share.is_used_up(at(1_250)));
    }
}

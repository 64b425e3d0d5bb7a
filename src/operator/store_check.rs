//! Whether the store behind the feeds has everything that was observed, and when to check it.
//!
//! A store that was restored from a backup is older, and would grant tokens again. It does not show
//! it: a watch from a future revision is open and silent.

use std::time::Duration;

use crate::protocol::time::Moment;

/// How often a store that lost writes is checked for another restore.
const WENT_BACK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How often the store's revision is read even if no watch was interrupted: a proxy may silently
/// move a watch to another API server.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// When an unsuccessful check is repeated.
pub(super) const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What is known about the store behind the feeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StoreStatus {
    /// It may not be the observed store: nothing is done before its revision was read.
    #[default]
    Unverified,
    /// It has everything that was observed.
    Verified,
    /// It is older than what was observed: nothing may be granted.
    WentBack,
}

/// The status of the store, and the reads of its revision.
#[derive(Debug, Default)]
pub(super) struct StoreCheck {
    status: StoreStatus,
    due: Option<Moment>,
    /// Whether a read is in flight. One at a time, so that no answer counts for a later read.
    is_in_flight: bool,
    needs_relist: bool,
}

impl StoreCheck {
    pub(super) const fn status(&self) -> StoreStatus {
        self.status
    }

    /// Returns when to read the store's revision.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due.filter(|_| !self.is_in_flight)
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.due().is_some_and(|at| at <= now)
    }

    /// Returns whether the feeds have to list again: they may continue at a revision that this
    /// store never had.
    pub(super) fn take_needs_relist(&mut self) -> bool {
        std::mem::take(&mut self.needs_relist)
    }

    /// Records that a watch of locks was interrupted or restarted. Another store may be behind it
    /// now.
    pub(super) fn mark_unverified(&mut self, now: Moment) {
        if self.status == StoreStatus::Verified {
            self.status = StoreStatus::Unverified;
        }
        self.due = Some(now);
    }

    pub(super) fn start(&mut self) {
        self.due = None;
        self.is_in_flight = true;
    }

    /// Records that a read had no answer.
    pub(super) fn finish_without_answer(&mut self, now: Moment) {
        self.is_in_flight = false;
        self.due.get_or_insert(now.after(RETRY_INTERVAL));
    }

    /// Records an answer. Returns whether the store went back, or has been repaired, just now.
    pub(super) fn finish(&mut self, went_back: bool, now: Moment) -> bool {
        self.is_in_flight = false;
        // An interruption during this read needs another read.
        let is_unverified_again = self.due.is_some();
        let before = self.status;
        let (status, interval) = if went_back {
            (StoreStatus::WentBack, WENT_BACK_CHECK_INTERVAL)
        } else if is_unverified_again {
            (StoreStatus::Unverified, CHECK_INTERVAL)
        } else {
            (StoreStatus::Verified, CHECK_INTERVAL)
        };
        self.status = status;
        self.due.get_or_insert(now.after(interval));
        let has_changed = went_back != (before == StoreStatus::WentBack);
        self.needs_relist |= has_changed;
        has_changed
    }
}

//! What an earlier process promised binds this one: none of its grants is released before that has
//! passed.
//!
//! Also a grant whose lease was resumed and was ended by its app: the state file may be an older copy
//! of itself, and then a later lease of the same grant was promised to an app. What this does not
//! prevent: in such a copy the earlier lease did not end, so it continues beside the later one until
//! that promise has passed. Only the tokens tell the two apart; no other pod has the lock meanwhile.

use std::collections::BTreeSet;

use crate::protocol::ids::GrantId;
use crate::protocol::time::Moment;

/// What an earlier process promised, as far as it binds this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::agent) struct EarlierPromise {
    /// Until when apps may believe what it promised.
    until: Moment,
    /// The same, also of leases that were not resumed.
    promised_until: Moment,
    /// The grants of the leases that were resumed.
    resumed: BTreeSet<GrantId>,
    /// Those and other grants of it that serve no lease any more and are released then: no release of
    /// them was sent.
    waiting: BTreeSet<GrantId>,
    /// The apps have ended: no promise counts any more.
    apps_ended: bool,
}

impl EarlierPromise {
    /// Records the leases that were resumed, and the grants that are released when the promises have
    /// passed.
    pub(in crate::agent) fn resume(
        &mut self,
        until: Moment,
        resumed: impl Iterator<Item = GrantId>,
        waiting: impl Iterator<Item = GrantId>,
    ) {
        self.until = until;
        self.resumed.extend(resumed);
        self.waiting.extend(waiting);
        // Without such grants, what was promised is in the leases that were resumed.
        self.promised_until = match self.waiting.len() {
            0 => Moment::default(),
            _ => until,
        };
    }

    /// Returns until when apps may believe what the earlier process promised, also of leases that were not
    /// resumed.
    pub(in crate::agent) const fn promised_until(&self) -> Moment {
        self.promised_until
    }

    /// Returns when a grant that it binds may be released.
    pub(super) fn not_before(&self) -> Moment {
        if self.apps_ended {
            Moment::default()
        } else {
            self.until
        }
    }

    /// A lease of a grant is about to end. If the grant may have another lease that is not in the state
    /// file, the promise of that has to pass first.
    pub(super) fn hold_back(&mut self, grant: &GrantId, now: Moment) {
        if now >= self.until || self.apps_ended {
            // Nor is any other from here on.
            self.resumed.clear();
        } else if self.resumed.remove(grant) {
            self.waiting.insert(grant.clone());
            self.promised_until = self.promised_until.max(self.until);
        }
    }

    /// Returns whether a grant that serves no lease is not released yet, and no release was sent.
    pub(in crate::agent) fn is_held_back(&self, grant: &GrantId) -> bool {
        self.waiting.contains(grant)
    }

    /// Records that a release of the grant is sent.
    pub(super) fn release_started(&mut self, grant: &GrantId) {
        self.waiting.remove(grant);
    }

    /// Records that the apps have ended.
    pub(super) const fn end_apps(&mut self) {
        self.apps_ended = true;
    }
}

//! What a process told its apps binds the one after it: no grant that it had is given back before
//! that has run out.
//!
//! Also one whose lease went on and was ended by its app: the journal may be an older copy of itself,
//! and then a later lease of the same grant was told to somebody. What is not kept from: in such a copy
//! the earlier lease did not end, so it goes on beside the later one until that has run out. Only the
//! tokens tell the two apart; no other pod has the lock meanwhile.

use std::collections::BTreeSet;

use crate::agent::Agent;
use crate::agent::core::Core;
use crate::agent::state::State;
use crate::protocol::ids::{GrantId, LeaseId};
use crate::protocol::time::Moment;

/// What the process before told, as far as it binds this one.
#[derive(Default)]
pub(in crate::agent) struct Bound {
    /// Until when its apps may believe what it told them.
    pub(super) until: Moment,
    /// The grants of the leases that went on.
    pub(super) resumed: BTreeSet<GrantId>,
    /// Those, and others that it left, that serve nobody any more and are given back then: no release
    /// of them was sent.
    pub(super) waiting: BTreeSet<GrantId>,
    /// The apps have ended: nothing that they were promised matters any more.
    apps_ended: bool,
}

impl Bound {
    /// When a grant that it binds may be released.
    pub(in crate::agent) fn not_before(&self) -> Moment {
        if self.apps_ended {
            Moment::default()
        } else {
            self.until
        }
    }

    /// The release of a grant was sent.
    pub(in crate::agent) fn release_started(&mut self, grant: &GrantId) {
        self.waiting.remove(grant);
    }
}

impl State {
    /// A lease is about to end. If its grant may have another that is not on file, that has to run
    /// out first.
    pub(in crate::agent) fn hold_back(&mut self, lease: &LeaseId, now: Moment) {
        if now >= self.bound.until || self.bound.apps_ended {
            // Nor is any other from here on.
            self.bound.resumed.clear();
            return;
        }
        let Some(held) = self.held_mut(lease) else {
            return;
        };
        let grant = held.tenure.grant().clone();
        if self.bound.resumed.remove(&grant) {
            self.bound.waiting.insert(grant);
            self.promised_until = self.promised_until.max(self.bound.until);
        }
    }

    /// Whether the grant of a lease that is over is not given back yet, and no release was sent.
    pub(in crate::agent) fn is_held_back(&self, grant: &GrantId) -> bool {
        self.bound.waiting.contains(grant)
    }
}

impl Agent {
    /// The apps have ended: nobody believes in anything any more.
    pub(in crate::agent) fn release_from_what_was_told(&self) {
        self.state().bound.apps_ended = true;
        self.with_core(Core::release_held_back);
    }
}

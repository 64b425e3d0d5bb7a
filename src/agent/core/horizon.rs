//! The highest revision that the agent has seen, and what it says about the store: a leap forward
//! is a restored backup whose revision was bumped, a list below it is a store that lost writes.
//!
//! Invariant: `seen` only rises, and no token is made while the store is behind it.

use crate::agent::api::AcquireError;
use crate::protocol::token::{Mint, Revision, Seen, StoreWentBack};

/// What is known of the store's revision, over all sessions of this agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct Horizon {
    /// Added to every token base.
    floor: u64,
    seen: Option<Seen>,
    /// The store listed less than was seen before, and has not listed enough since.
    rewound: Option<StoreWentBack>,
    /// How often that happened.
    rewinds: u32,
}

/// What had been seen when a list was sent. Not what is seen when it is answered: a write that is
/// answered meanwhile may well be newer than the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::agent) struct SeenAtSend {
    seen: Option<Seen>,
    rewinds: u32,
}

impl Horizon {
    /// Returns a horizon that has seen nothing yet.
    pub(in crate::agent) const fn new(floor: u64) -> Self {
        Self {
            floor,
            seen: None,
            rewound: None,
            rewinds: 0,
        }
    }

    /// Returns what the answer of a list is compared with, when the list is sent.
    pub(in crate::agent) const fn at_send(&self) -> SeenAtSend {
        SeenAtSend {
            seen: self.seen,
            rewinds: self.rewinds,
        }
    }

    /// Records a revision of a lock. Returns whether it leapt.
    #[must_use]
    pub(in crate::agent) fn observe(&mut self, revision: Revision) -> bool {
        let Some(seen) = &mut self.seen else {
            return false;
        };
        let has_leapt = seen.highest().leapt_to(revision);
        seen.note(revision);
        has_leapt
    }

    /// Records the revision of a consistent list. Returns whether it leapt.
    ///
    /// # Errors
    /// `StoreWentBack` if it is below what had been seen when the list was sent.
    pub(in crate::agent) fn list_answered(
        &mut self,
        sent: SeenAtSend,
        listed: Revision,
    ) -> Result<bool, StoreWentBack> {
        if let Some(Err(error)) = sent.seen.map(|mut seen| seen.list_answered(listed)) {
            self.rewound = Some(error);
            self.rewinds = self.rewinds.saturating_add(1);
            return Err(error);
        }
        let has_leapt = self.observe(listed);
        // A list that was sent before the store went back says nothing of the store after that.
        if sent.rewinds == self.rewinds {
            self.rewound = None;
        }
        self.seen.get_or_insert(Seen::from_list(listed));
        Ok(has_leapt)
    }

    /// Returns what tokens are made from now.
    ///
    /// # Errors
    /// `StoreWentBack` until a list returned what had been seen before. `SessionLost` before the
    /// list of the first session.
    pub(in crate::agent) fn mint(&self) -> Result<Mint, AcquireError> {
        if let Some(rewound) = self.rewound {
            return Err(rewound.into());
        }
        let seen = self.seen.ok_or(AcquireError::SessionLost)?;
        Ok(Mint {
            seen,
            floor: self.floor,
        })
    }

    /// Returns what the token of a hand-over is made from. A release continues when nothing may be
    /// granted: the agent that receives the lock checks the token itself.
    pub(in crate::agent) fn hand_over_mint(&self) -> Mint {
        let nothing = Seen::from_list(Revision::default());
        Mint {
            seen: self.seen.unwrap_or(nothing),
            floor: self.floor,
        }
    }
}

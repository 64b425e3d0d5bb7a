//! The session as the old engines ask for it.

use crate::protocol::ids::SessionId;
use crate::protocol::time::Moment;
use crate::protocol::token::Mint;

use super::{AcquireError, Agent};

impl Agent {
    /// The session that is valid now.
    pub(super) fn current_session(&self) -> Option<SessionId> {
        self.with_core(|core, cx| {
            // It is lost here if its deadline has passed.
            core.leases(cx);
            core.live().map(|live| live.id().clone())
        })
    }

    /// The local deadline of this session; none when it is not (or no longer) the agent's.
    pub(super) fn session_deadline(&self, id: &SessionId) -> Option<Moment> {
        let state = self.state();
        let live = state.session().filter(|live| live.id() == id)?;
        Some(live.valid_until())
    }

    /// What tokens are made from now.
    pub(super) fn mint(&self) -> Result<Mint, AcquireError> {
        self.state().core.mint()
    }
}

//! The session as the old engines ask for it.

use crate::protocol::ids::SessionId;
use crate::protocol::time::Moment;
use crate::protocol::token::Mint;

use super::core::effect::Input;
use super::{AcquireError, Agent};

impl Agent {
    /// The session that is valid now.
    pub(super) fn current_session(&self) -> Option<SessionId> {
        // It is lost here if its deadline has passed.
        self.feed(Input::Timer);
        self.state().session().map(|live| live.id().clone())
    }

    /// The local deadline of this session; none when it is not (or no longer) the agent's.
    pub(super) fn session_deadline(&self, id: &SessionId) -> Option<Moment> {
        self.state().deadline_of(id)
    }

    /// What tokens are made from now.
    pub(super) fn mint(&self) -> Result<Mint, AcquireError> {
        self.state().core.mint()
    }
}

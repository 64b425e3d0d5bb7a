//! What the core is told at its start.

use super::acquiring::AcquireConfig;
use super::session::SessionConfig;

/// What the core is configured with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct CoreConfig {
    /// What sessions are made of.
    pub(in crate::agent) session: SessionConfig,
    /// Added to every token base.
    pub(in crate::agent) token_floor: u64,
    /// How much is acquired at once, and how.
    pub(in crate::agent) acquire: AcquireConfig,
}

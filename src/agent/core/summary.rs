//! What is logged of a lease.

use std::time::Duration;

use crate::protocol::ids::{LeaseId, OwnerId, Resource};
use crate::protocol::token::Token;

/// What is logged of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Summary {
    pub(in crate::agent) resource: Resource,
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) owner: OwnerId,
    pub(in crate::agent) token: Token,
    /// How long it has lasted.
    pub(in crate::agent) lasted: Duration,
}

//! The lock protocol as values and pure transitions.
//!
//! Observed state and "now" go in, a decision comes out. There is no I/O here, no async, no clock,
//! no randomness, no serde and no kube: the sidecar, the operator, the model checker and the
//! simulation all run this same code, each with its own world around it. This module imports
//! only `std`; a test keeps it so.
//!
//! Invariants that the module as a whole keeps:
//! - A fencing token of a resource never goes back, and a new grant always has a larger one.
//! - A lock without a grant has no waiters.
//! - A grant ends by the release of its own id, by the take-over of a session proven dead, or by
//!   a person's force release; nothing else ends it.
//! - A holder stops before any challenger may start, for clock rates within 5 % of each other.

pub mod election;
pub mod fair_share;
pub mod ids;
pub mod incident;
pub mod key;
pub mod lease;
pub mod lock;
pub mod observed;
pub mod queue;
pub mod session;
pub mod settings;
pub mod time;
pub mod token;

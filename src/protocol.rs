//! The lock protocol as values and pure transitions.
//!
//! Observed state and "now" go in, a decision comes out. The module has no I/O, no async, no clock,
//! no randomness, no serde and no kube: the sidecar, the operator, the model checker and the
//! simulation all run this code. It imports only `std`; a test checks that.
//!
//! Invariants that the module as a whole keeps:
//! - The fencing token of a resource never decreases, and a new grant always has a larger one.
//! - A lock without a grant has no waiters.
//! - A grant ends by a release with its id, by the take-over from a session that is proven expired,
//!   or by a person's force release, and in no other way.
//! - A holder stops before any challenger may start, for clock rates within 5 % of each other.

pub mod completed;
pub mod election;
pub mod fair_share;
pub mod ids;
pub mod incident;
pub mod key;
pub mod lease;
pub mod lock;
pub mod object;
pub mod observed;
pub mod queue;
pub mod session;
pub mod settings;
pub mod time;
pub mod token;

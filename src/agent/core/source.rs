//! Where a lock comes from that is decided on.

use crate::protocol::time::Moment;

/// Where a lock comes from that is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A read that was sent at this moment.
    Read(Moment),
    /// It was known before, or a write returned it.
    Known,
}

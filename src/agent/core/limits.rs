//! The time limits of calls and requests.

use std::time::Duration;

/// How long one call to the store may take before its outcome counts as unknown and is looked up.
pub(in crate::agent) const CALL_LIMIT: Duration = Duration::from_secs(3);
/// How long the attempts for one request may take together.
pub(in crate::agent) const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The longest pause between attempts that a caller waits for.
pub(super) const REQUEST_PAUSE: Duration = Duration::from_millis(500);

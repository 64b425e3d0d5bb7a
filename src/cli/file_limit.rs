//! Raises the limit on open files: each connection is one, and a shell or container runtime often
//! allows 1,024 by default.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Enough for the connections of all listeners (`http::serve::Bounds`), on both loopback addresses.
const WANTED: u64 = 8_192;

/// Raises the limit to what the listeners may need, if the system allows it.
pub(super) fn raise() {
    raise_to(WANTED);
}

/// Raises the limit to a number, if the system allows it.
pub(super) fn raise_to(wanted: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = limit.maximum.map_or(wanted, |most| most.min(wanted));
    let mut next = limit;
    next.current = Some(raised);
    let outcome = setrlimit(Resource::Nofile, next);
    if outcome.is_err() || raised < wanted {
        tracing::warn!(
            limit = if outcome.is_ok() {
                Some(raised)
            } else {
                limit.current
            },
            wanted,
            "raise the limit on open files"
        );
    }
}

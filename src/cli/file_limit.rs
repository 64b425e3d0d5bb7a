//! How many files the process may have open: each connection is one, and a shell or container
//! runtime often allows 1,024 until a process asks for more.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Enough for every connection of every listener (`http::serve::Bounds`), on both loopback addresses.
const WANTED: u64 = 8_192;

/// Raises the limit to what the listeners may need, as far as the system allows it.
pub(super) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= WANTED) {
        return;
    }
    let raised = limit.maximum.map_or(WANTED, |most| most.min(WANTED));
    let mut next = limit;
    next.current = Some(raised);
    let outcome = setrlimit(Resource::Nofile, next);
    if outcome.is_err() || raised < WANTED {
        tracing::warn!(
            limit = if outcome.is_ok() {
                Some(raised)
            } else {
                limit.current
            },
            wanted = WANTED,
            "open file limit is low"
        );
    }
}

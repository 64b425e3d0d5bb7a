//! The invariants that the API server enforces, as CEL rules at the root of the schemas.
//!
//! At the root, because a PUT without a status deletes the status: a rule below `status` would not
//! be evaluated then. Rules with `oldSelf` are evaluated on every update, even if their part did
//! not change. They apply to every user, administrators included.

use kube::core::Rule;

use crate::protocol::ids::{METADATA_KEY_MAX_BYTES, RESOURCE_MAX_BYTES, is_blank, is_printable};

/// `spec.resource` identifies the lock; for another resource its token would be meaningless.
#[must_use]
pub fn resource_never_changes() -> Rule {
    Rule::new("self.spec.resource == oldSelf.spec.resource")
        .message("spec.resource is immutable; create another lock for another resource")
}

/// `maxLength` counts characters, but object names, headers and metrics are limited in bytes.
#[must_use]
pub fn resource_fits() -> Rule {
    Rule::new(format!(
        "size(bytes(self.spec.resource)) <= {RESOURCE_MAX_BYTES}"
    ))
    .message(&*format!(
        "spec.resource has more than {RESOURCE_MAX_BYTES} bytes; hash longer names"
    ))
}

/// Accepts what [`Resource::parse`](crate::protocol::ids::Resource::parse) accepts, with the same
/// sets of characters. A lock with another resource could not be used by any agent.
///
/// A rule of the field and not of the root. An older lock with such a name can still be updated,
/// because the API server ignores violations in unchanged fields.
#[must_use]
pub fn resource_is_printable() -> Rule {
    let unprintable = ranges(|c| !is_printable(c.encode_utf8(&mut [0; 4])));
    let unseen = ranges(|c| is_blank(c.encode_utf8(&mut [0; 4])));
    Rule::new(format!(
        "self.matches(r'^[^{unprintable}]*[^{unseen}][^{unprintable}]*$')"
    ))
    .message(
        "spec.resource must be printable text: no control characters (no tabs or line breaks), no \
         marks that hide or reverse text, and at least one visible character",
    )
}

/// Returns the characters for which `is_in` is true, as ranges for a regular expression.
fn ranges(is_in: impl Fn(char) -> bool) -> String {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut is_open = false;
    for c in '\0'..=char::MAX {
        let is_inside = is_in(c);
        match ranges.last_mut() {
            Some((_, last)) if is_inside && is_open => *last = c,
            _ if is_inside => ranges.push((c, c)),
            _ => {}
        }
        is_open = is_inside;
    }
    let written = ranges.into_iter().map(|(first, last)| {
        let (first, last) = (u32::from(first), u32::from(last));
        format!(r"\x{{{first:x}}}-\x{{{last:x}}}")
    });
    written.collect()
}

/// A schema cannot bound the keys of a map.
#[must_use]
pub fn metadata_keys_fit() -> Rule {
    // Written without optionals: behind them the API server does not see the bound of the map, and
    // rejects the rule as too costly.
    Rule::new(format!(
        "!has(self.status) || !has(self.status.holder) || !has(self.status.holder.metadata) || \
         self.status.holder.metadata.all(key, size(key) <= {METADATA_KEY_MAX_BYTES})",
    ))
    .message(&*format!(
        "a key in status.holder.metadata has more than {METADATA_KEY_MAX_BYTES} characters"
    ))
}

/// With a smaller token, the writes of an old holder would pass for a new one's.
#[must_use]
pub fn token_never_goes_back() -> Rule {
    Rule::new(
        "!has(oldSelf.status) || \
         (has(self.status) && self.status.token >= oldSelf.status.token)",
    )
    .message(
        "status.token can never be removed or decreased: fencing depends on it; write the \
         status with the token that the lock has",
    )
}

/// A grant owns its token and the 999 after it.
#[must_use]
pub fn new_grant_has_larger_token() -> Rule {
    Rule::new(
        "!has(self.status) || !has(self.status.lease) || \
         oldSelf.?status.lease.id.orValue('') == self.status.lease.id || \
         self.status.token >= oldSelf.?status.token.orValue(0) + 1000",
    )
    .message(
        "a new status.lease.id needs a status.token at least 1000 above the last one: the \
         previous grant owns the numbers in between",
    )
}

/// A lease id names one grant, and a grant has one holder.
#[must_use]
pub fn grant_keeps_its_holder() -> Rule {
    Rule::new(
        "!has(self.status) || !has(self.status.lease) || !has(self.status.holder) || \
         oldSelf.?status.lease.id.orValue('') != self.status.lease.id || \
         (oldSelf.?status.holder.session.orValue('') == self.status.holder.session && \
         oldSelf.?status.holder.podUid.orValue('') == self.status.holder.podUid)",
    )
    .message(
        "the holder of a grant is immutable; another holder needs a new status.lease.id \
         and a larger status.token",
    )
}

/// A holder without a grant could not release, and a grant without a holder would have no deadline.
#[must_use]
pub fn holder_and_lease_together() -> Rule {
    Rule::new("!has(self.status) || has(self.status.holder) == has(self.status.lease)").message(
        "status.holder and status.lease must be set together: a held lock has both, a free one \
         neither",
    )
}

/// No agent would hand a free lock over to its waiters.
#[must_use]
pub fn free_lock_has_no_waiters() -> Rule {
    Rule::new(
        "!has(self.status) || has(self.status.holder) || \
         self.status.?waiters.orValue([]).size() == 0",
    )
    .message(
        "a free lock has no waiters: hand the lock to the first waiter in the same write that \
         releases it",
    )
}

/// A late write may add a queue entry whose grant was made already.
#[must_use]
pub fn no_grant_waits_for_itself() -> Rule {
    Rule::new(
        "!has(self.status) || !has(self.status.lease) || !has(self.status.waiters) || \
         self.status.waiters.all(waiter, waiter.leaseId != self.status.lease.id)",
    )
    .message(
        "status.lease.id holds the lock and cannot wait for it too; remove it from the waiters",
    )
}

/// With two entries a session would get the lock twice.
///
/// The list of sessions is created once. A rule that compares all pairs costs the API server
/// several times as much as the write of a full queue.
#[must_use]
pub fn one_entry_per_session() -> Rule {
    Rule::new(
        "!has(self.status) || !has(self.status.waiters) || \
         [self.status.waiters.map(waiter, waiter.session)].all(sessions, \
         sessions.all(session, sessions.indexOf(session) == sessions.lastIndexOf(session)))",
    )
    .message("a session has at most one entry in status.waiters; keep the older entry")
}

/// Other agents and the operator decide by its pod and TTL whether the session has expired.
#[must_use]
pub fn session_never_changes() -> Rule {
    Rule::new("self.spec == oldSelf.spec")
        .message("the spec of a session is immutable; start another session")
}

/// The session's locks may have been granted to others because of the revocation.
#[must_use]
pub fn revoked_is_final() -> Rule {
    Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.revoked) || \
         (has(self.status) && has(self.status.revoked) && \
         self.status.revoked == oldSelf.status.revoked)",
    )
    .message(
        "status.revoked is final and immutable: the session's locks may already have another \
         holder; start another session",
    )
}

/// A renewal after the end would look like a live session.
#[must_use]
pub fn revoked_is_not_renewed() -> Rule {
    Rule::new(
        "!has(oldSelf.status) || !has(oldSelf.status.revoked) || !has(self.status) || \
         self.status.?renewals.orValue(0) == oldSelf.status.?renewals.orValue(0)",
    )
    .message("a revoked session can never be renewed; start another session")
}

/// Every renewal changes the object, so that of two writers of one version only one succeeds.
#[must_use]
pub fn renewals_never_go_back() -> Rule {
    Rule::new(
        "!has(oldSelf.status) || (has(self.status) && \
         self.status.?renewals.orValue(0) >= oldSelf.status.?renewals.orValue(0))",
    )
    .message(
        "status.renewals can never be removed or decreased; write the status with the count \
         that the session has",
    )
}

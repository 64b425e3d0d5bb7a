//! Warm grants: grants that are kept between two leases, for the next caller of this pod or for an
//! app that asked for it and may come back. The next lease then costs no write.
//!
//! What it does not do: keep a grant that others wait for longer than their share of waiting
//! (`protocol::fair_share`). Invariant: a warm grant serves no lease, so no app believes in it, and
//! it may be released at any moment; once that has begun it serves no lease again.
//!
//! `keepSeconds` keeps only a grant that says so in the store from its first write on (`lease.kept`): a
//! caller of another pod that finds it held then queues for a moment instead of being refused. A grant
//! that was handed over does not say so, because a lock that others want is not worth keeping. A
//! restarted agent resumes no warm grant: the state file does not tell whether its last lease is over.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::Resource;
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::Tenure;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;

use super::held::Held;
use super::release::ReleaseOf;

/// A caller that waits takes a grant that was kept for it at once, if it is there.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// A grant without a lease.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Warm {
    pub(in crate::agent) tenure: Tenure,
    pub(in crate::agent) session: SessionKey,
    /// The lock as last seen with this grant.
    pub(in crate::agent) stored: Stored<Lock>,
    pub(in crate::agent) share: FairShare,
    /// Since when it serves no lease.
    since: Moment,
    kept_for: KeptFor,
}

/// For whom a grant is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptFor {
    /// The next caller of this pod that waits.
    Caller,
    /// An app that may come back until then. The next caller that waits is served too.
    App(Moment),
}

impl Warm {
    /// Returns a grant that the store has just shown.
    pub(super) const fn granted(
        tenure: Tenure,
        session: SessionKey,
        stored: Stored<Lock>,
        share: FairShare,
        now: Moment,
    ) -> Self {
        Self {
            tenure,
            session,
            stored,
            share,
            since: now,
            kept_for: KeptFor::Caller,
        }
    }

    /// Returns the grant of a lease that is over.
    pub(super) fn new(held: Held, kept_for: KeptFor, now: Moment) -> Self {
        Self {
            tenure: held.tenure,
            session: held.session,
            stored: held.stored,
            share: held.share,
            since: now,
            kept_for,
        }
    }

    /// Returns the grant.
    pub(in crate::agent) fn key(&self) -> GrantKey {
        GrantKey {
            id: self.tenure.grant().clone(),
            session: self.session.clone(),
        }
    }

    /// Returns what a person asks of its holder.
    pub(in crate::agent) fn release_request(&self) -> Option<&Arc<ReleaseRequest>> {
        self.stored.value.settings.asked_of(self.tenure.grant())
    }

    /// Returns when it is released, if no caller takes it.
    pub(super) fn ends_at(&self) -> Moment {
        match self.kept_for {
            KeptFor::Caller => self.since.after(TAKEN_WITHIN),
            KeptFor::App(until) => until,
        }
    }

    /// Returns whether it is kept for callers that wait, and for no app that may come back.
    pub(super) fn is_for_caller(&self) -> bool {
        self.kept_for == KeptFor::Caller
    }

    /// Returns for how long it has served no lease.
    pub(super) fn idle_for(&self, now: Moment) -> Duration {
        now.since(self.since)
    }

    /// Records the lock as it was seen with this grant.
    pub(super) fn observe(&mut self, seen: &Stored<Lock>, now: Moment) {
        if self.stored.version < seen.version {
            self.stored = seen.clone();
            let others = others_wait(&seen.value, &self.session);
            self.share.note_others(others, now);
        }
    }

    /// Returns its release.
    pub(super) fn into_release(self, resource: Resource) -> ReleaseOf {
        ReleaseOf {
            request: self.release_request().cloned(),
            ..ReleaseOf::new(resource, self.key(), Some(self.stored))
        }
    }
}

/// Returns whether other sessions than this wait in the lock's queue.
pub(in crate::agent) fn others_wait(lock: &Lock, session: &SessionKey) -> bool {
    let mut waiters = lock.waiters.entries().iter();
    waiters.any(|waiter| waiter.claimant.key() != *session)
}

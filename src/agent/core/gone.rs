//! Grants that the store no longer names, and what the lock says about why.

use crate::protocol::ids::{GrantId, LeaseId, SessionId};
use crate::protocol::incident::{Incident, IncidentKind};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, Token};

use super::env::Env;
use super::report::Report;

/// A grant, as an incident may name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct GoneGrant {
    pub(in crate::agent) grant: GrantId,
    /// Its first token.
    pub(in crate::agent) base: Token,
}

impl GoneGrant {
    fn incident<'a>(&self, lock: Option<&'a Lock>) -> Option<&'a Incident> {
        lock?.incident_of(&self.grant, self.base)
    }

    /// Returns why its lease is lost, as far as the lock says.
    pub(in crate::agent) fn loss(&self, lock: Option<&Lock>) -> Loss {
        match self.incident(lock).map(|incident| incident.kind) {
            Some(IncidentKind::ForceReleased) => Loss::ForceReleased,
            // No lock is taken over before the session was revoked, or missing for long.
            Some(IncidentKind::Expired | IncidentKind::PodEnded) => Loss::SessionRevoked,
            Some(IncidentKind::ReleasedOnRequest) | None => Loss::GrantGone,
        }
    }

    /// Returns what to report of its lease: what a person did on the record is no alarm.
    pub(in crate::agent) fn report(&self, lease: &LeaseId, lock: Option<&Lock>) -> Report {
        let said = self.incident(lock);
        let said = said.map(|incident| (incident.actor.clone(), incident.reason.clone()));
        let lease = lease.clone();
        match self.loss(lock) {
            Loss::ForceReleased => Report::ForceReleased(lease, said),
            Loss::SessionRevoked => Report::Reassigned(lease, said),
            _ => Report::NotNamed(lease),
        }
    }
}

/// A lease that its app ended and whose release is not confirmed yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) struct Ending {
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) gone: GoneGrant,
    pub(in crate::agent) session: SessionId,
    /// The version at which the lock was last seen with its grant.
    pub(in crate::agent) seen_at: Revision,
    /// The latest deadline that its app has.
    pub(in crate::agent) promised_until: Moment,
}

impl Ending {
    /// Returns why the lease was lost whose grant was gone before any release was sent. `None` if it
    /// counts as released: its promise and its session may have ended since, and then others took
    /// over rightly.
    pub(super) fn loss(
        &self,
        lock: Option<&Stored<Lock>>,
        session_until: Option<Moment>,
        env: &mut Env,
    ) -> Option<Loss> {
        let value = lock.map(|lock| &lock.value);
        let is_promised = env.now < self.promised_until;
        let is_ours = is_promised || session_until.is_some_and(|until| env.now < until);
        if !is_ours && self.gone.loss(value) != Loss::ForceReleased {
            return None;
        }
        // An object that is older than what was written to it came out of a backup.
        let is_restored = lock.is_some_and(|lock| lock.version < self.seen_at);
        let (report, loss) = if is_restored {
            (Report::NotNamed(self.lease.clone()), Loss::StoreRestored)
        } else {
            let report = self.gone.report(&self.lease, value);
            (report, self.gone.loss(value))
        };
        env.out.report(report);
        env.out.report(Report::ReleasedLeaseLost(loss));
        Some(loss)
    }
}

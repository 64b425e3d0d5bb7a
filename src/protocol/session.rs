//! A session: one running agent's claim to be alive, as the store has it and as its agent counts.
//!
//! Revoking is a compare-and-swap and so is renewing, both on the version that was read, so
//! exactly one of two that race wins. A revocation is final and a session is never reused: who
//! lost one starts another under a new name.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{OwnerId, SessionId};
use super::time::{Moment, SessionTtl, WallTime};

/// The pod (or, outside a cluster, the process) that an agent speaks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's uid, which its bound token proves.
    pub uid: Arc<str>,
    /// The node it runs on, where that is known.
    pub node: Option<Arc<str>>,
}

/// Who claims a lock, whether it holds the lock or waits for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// Who the app says it is.
    pub owner: OwnerId,
    /// The pod whose agent claims.
    pub pod: PodRef,
    /// The session with which the claim lives and dies.
    pub session: SessionId,
    /// The session's TTL, so that a session object that is gone can still be timed.
    pub session_ttl: SessionTtl,
}

/// Why a session was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RevokeReason {
    /// It did not renew for 1.05 TTL on its observer's clock.
    Expired,
    /// Its pod ended and will not run again.
    PodEnded,
    /// Its own agent ended it.
    Ended,
    /// A reason that this version does not know.
    Other(Arc<str>),
}

/// The end of a session. It is final.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// When, for people.
    pub at: WallTime,
    /// Who revoked it: a pod's name or a user's.
    pub by: Arc<str>,
    /// Why.
    pub reason: RevokeReason,
}

/// The failed renewals that the last successful one reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RenewalFailures {
    /// How many since the session began.
    pub count: u64,
    /// What the last one was.
    pub last_reason: Option<Arc<str>>,
    /// When the last one was, for people.
    pub last_at: Option<WallTime>,
}

/// A session as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Its name, never used twice.
    pub id: SessionId,
    /// Whose it is.
    pub pod: PodRef,
    /// How long it may be silent.
    pub ttl: SessionTtl,
    /// The version of the agent that made it.
    pub agent_version: Arc<str>,
    /// How often it was renewed. It rises with every renewal, because an update that changes
    /// nothing consumes no revision, and then two writers could both succeed.
    pub renewals: u64,
    /// When it was last renewed, for people.
    pub renewed_at: Option<WallTime>,
    /// What went wrong on the way.
    pub failures: RenewalFailures,
    /// Its end, once it has one.
    pub revoked: Option<Revocation>,
}

impl Session {
    /// The session after one more renewal, to be written by CAS on the version that was read.
    ///
    /// # Errors
    /// The [`Revocation`], when it was revoked; it can never be renewed again.
    pub fn renewed(
        &self,
        at: WallTime,
        failures: RenewalFailures,
    ) -> Result<Self, Box<Revocation>> {
        match &self.revoked {
            Some(revocation) => Err(Box::new(revocation.clone())),
            None => Ok(Self {
                renewals: self.renewals.saturating_add(1),
                renewed_at: Some(at),
                failures,
                ..self.clone()
            }),
        }
    }

    /// The session revoked, to be written by CAS on the version whose silence (or whose end) was
    /// observed; none when it was revoked before.
    #[must_use]
    pub fn revoked(&self, revocation: Revocation) -> Option<Self> {
        match self.revoked {
            Some(_) => None,
            None => Some(Self {
                revoked: Some(revocation),
                ..self.clone()
            }),
        }
    }
}

/// How the agent counts its own session's life.
///
/// It is valid from before the first try of the last successful renewal was *sent*: the answer
/// may have been on its way for any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    ttl: SessionTtl,
    sent: Moment,
}

impl KeepAlive {
    /// Counts from the moment before the write that made the session was sent.
    #[must_use]
    pub const fn begun(sent: Moment, ttl: SessionTtl) -> Self {
        Self { ttl, sent }
    }

    /// A renewal succeeded whose first try was sent at `sent`.
    pub fn confirm(&mut self, sent: Moment) {
        self.sent = self.sent.max(sent);
    }

    /// The local deadline: from here on nothing that hangs on the session may be believed.
    #[must_use]
    pub const fn valid_until(&self) -> Moment {
        self.sent.after(self.ttl.holder_share())
    }

    /// Whether the session may still be believed.
    #[must_use]
    pub fn is_valid(&self, now: Moment) -> bool {
        now < self.valid_until()
    }

    /// What is left before the deadline.
    #[must_use]
    pub const fn remaining(&self, now: Moment) -> Duration {
        self.valid_until().since(now)
    }

    /// Whether less than half of the TTL is left: then a renewal goes before the next grant.
    #[must_use]
    pub fn is_stale(&self, now: Moment) -> bool {
        self.remaining(now) < self.ttl.get() / 2
    }

    /// When to renew: a third of the TTL after the last one, up to a tenth of that earlier.
    /// `jitter` is between 0 and 1.
    #[must_use]
    pub fn renew_at(&self, jitter: f64) -> Moment {
        let third = self.ttl.get() / 3;
        self.sent
            .after(third.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0)))
    }

    /// When to renew while nothing hangs on the session, and it is only to stay alive: after four
    /// fifths of the TTL, up to a tenth of that earlier. Who needs it before finds it stale once
    /// less than half of the TTL is left, and renews it then.
    #[must_use]
    pub fn renew_idle_at(&self, jitter: f64) -> Moment {
        let share = self.ttl.get() * 4 / 5;
        self.sent
            .after(share.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0)))
    }

    /// How long one try may take: a quarter of what is left, so that there is always another
    /// one before the deadline, and not so little that no server could answer in it.
    #[must_use]
    pub fn attempt_timeout(&self, now: Moment) -> Duration {
        (self.remaining(now) / 4).max(SHORTEST_ATTEMPT)
    }
}

/// Below this a try against a healthy server would fail for no reason but its haste.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        Session {
            id: SessionId::from("a-1"),
            pod: PodRef {
                name: "a".into(),
                uid: "u".into(),
                node: None,
            },
            ttl: SessionTtl::clamped(15),
            agent_version: "0".into(),
            renewals: 3,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        }
    }

    fn expired() -> Revocation {
        Revocation {
            at: WallTime(1),
            by: "b".into(),
            reason: RevokeReason::Expired,
        }
    }

    fn at(seconds: f64) -> Moment {
        Moment::since_boot(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn a_renewal_always_changes_the_session() {
        let renewed = session()
            .renewed(WallTime(0), RenewalFailures::default())
            .unwrap();
        assert_eq!(renewed.renewals, 4);
    }

    #[test]
    fn a_revocation_is_final() {
        let revoked = session().revoked(expired()).unwrap();
        assert_eq!(
            *revoked
                .renewed(WallTime(2), RenewalFailures::default())
                .unwrap_err(),
            expired()
        );
        let again = Revocation {
            reason: RevokeReason::PodEnded,
            ..expired()
        };
        assert_eq!(revoked.revoked(again), None);
    }

    #[test]
    fn validity_counts_from_the_send_of_the_last_renewal() {
        let mut keep_alive = KeepAlive::begun(at(100.0), SessionTtl::clamped(20));
        assert_eq!(keep_alive.valid_until(), at(119.0));
        assert!(keep_alive.is_valid(at(118.999)));
        assert!(!keep_alive.is_valid(at(119.0)));
        keep_alive.confirm(at(106.0));
        assert_eq!(keep_alive.valid_until(), at(125.0));
        keep_alive.confirm(at(103.0));
        assert_eq!(
            keep_alive.valid_until(),
            at(125.0),
            "a late answer takes nothing back"
        );
    }

    #[test]
    fn renewal_is_due_after_a_third_and_tried_four_times() {
        let keep_alive = KeepAlive::begun(at(0.0), SessionTtl::clamped(15));
        assert_eq!(keep_alive.renew_at(0.0), at(5.0));
        assert_eq!(keep_alive.renew_at(1.0), at(4.5));
        assert_eq!(keep_alive.attempt_timeout(at(6.25)), Duration::from_secs(2));
        assert_eq!(keep_alive.attempt_timeout(at(20.0)), SHORTEST_ATTEMPT);
        assert_eq!(keep_alive.renew_idle_at(0.0), at(12.0));
        assert_eq!(keep_alive.renew_idle_at(1.0), at(10.8));
        assert!(!keep_alive.is_stale(at(6.0)));
        assert!(keep_alive.is_stale(at(7.0)));
    }
}

//! A session: the sign of life of a running agent, in the store and as its agent counts it.
//!
//! A renewal and a revocation are compare-and-swaps on the version that was read, so exactly one of
//! two that race succeeds. A revocation is final and a session is never reused: an agent that lost
//! its session starts another one with a new name.

use std::sync::Arc;
use std::time::Duration;

use super::ids::{OwnerId, SessionId};
use super::time::{Moment, SessionTtl, WallTime};

/// The pod (or, outside of a cluster, the process) that an agent acts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRef {
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's uid, which its bound token proves.
    pub uid: Arc<str>,
    /// The node that it runs on, if that is known.
    pub node: Option<Arc<str>>,
}

/// A holder or a waiter of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// The owner id that the app gave.
    pub owner: OwnerId,
    /// The pod of the agent.
    pub pod: PodRef,
    /// The session: the grant or queue entry lives as long as it does.
    pub session: SessionId,
    /// The session's TTL, by which an observer measures the silence of a deleted session.
    pub session_ttl: SessionTtl,
}

/// Why a session was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RevokeReason {
    /// It did not renew for 1.05 TTL on its observer's clock.
    Expired,
    /// Its pod ended and will not run again.
    PodEnded,
    /// Its pod's node is shut down, as an administrator affirmed by a taint.
    NodeOutOfService,
    /// Its own agent ended it.
    Ended,
    /// A reason that this version does not know.
    Other(Arc<str>),
}

/// The end of a session. It is final.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revocation {
    /// The time. Informational.
    pub at: WallTime,
    /// The pod or user that revoked it.
    pub by: Arc<str>,
    /// The reason.
    pub reason: RevokeReason,
}

/// The failed renewals that the last successful one reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RenewalFailures {
    /// Their number since the session began.
    pub count: u64,
    /// The error of the last one.
    pub last_reason: Option<Arc<str>>,
    /// The time of the last one. Informational.
    pub last_at: Option<WallTime>,
}

/// A session as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Its name, never used twice.
    pub id: SessionId,
    /// The pod that it belongs to.
    pub pod: PodRef,
    /// How long it may be silent.
    pub ttl: SessionTtl,
    /// The version of the agent that created it.
    pub agent_version: Arc<str>,
    /// The number of renewals. Each renewal raises it: an update that changes nothing consumes no
    /// revision, and then two writers could both succeed.
    pub renewals: u64,
    /// The time of the last renewal. Informational.
    pub renewed_at: Option<WallTime>,
    /// The renewals that failed.
    pub failures: RenewalFailures,
    /// Its end, once it has one.
    pub revoked: Option<Revocation>,
}

impl Session {
    /// Returns the session after one more renewal, for a CAS on the version that was read.
    ///
    /// # Errors
    /// The [`Revocation`], if the session was revoked: it can never be renewed again.
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

    /// Returns the revoked session, for a CAS on the version whose silence (or whose pod's end) was
    /// observed; `None` if it was revoked before.
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

/// The agent's own count of how long its session is valid.
///
/// It counts from when the first try of the last successful renewal was *sent*: the response may
/// have taken any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeepAlive {
    ttl: SessionTtl,
    sent: Moment,
}

impl KeepAlive {
    /// Starts the count at the moment before the write that created the session was sent.
    #[must_use]
    pub const fn begun(sent: Moment, ttl: SessionTtl) -> Self {
        Self { ttl, sent }
    }

    /// Records a successful renewal whose first try was sent at `sent`.
    pub fn confirm(&mut self, sent: Moment) {
        self.sent = self.sent.max(sent);
    }

    /// Returns the local deadline: from then on no lease of this session is valid.
    #[must_use]
    pub const fn valid_until(&self) -> Moment {
        self.sent.after(self.ttl.holder_share())
    }

    /// Returns whether the session is still valid.
    #[must_use]
    pub fn is_valid(&self, now: Moment) -> bool {
        now < self.valid_until()
    }

    /// Returns the time left before the deadline.
    #[must_use]
    pub const fn remaining(&self, now: Moment) -> Duration {
        self.valid_until().since(now)
    }

    /// Returns whether less than half of the TTL is left: then the agent renews before the next
    /// grant.
    #[must_use]
    pub fn is_stale(&self, now: Moment) -> bool {
        self.remaining(now) < self.ttl.get() / 2
    }

    /// Returns when to renew: a third of the period after the last one, up to a tenth of that
    /// earlier.
    /// `jitter` is between 0 and 1.
    #[must_use]
    pub fn renew_at(&self, jitter: f64) -> Moment {
        let third = self.ttl.period() / 3;
        self.sent
            .after(third.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0)))
    }

    /// Returns when to renew a session without leases, which only has to stay alive: after four
    /// fifths of the period, up to a tenth of that earlier. If a caller comes before then, and less
    /// than half of the TTL is left, the session is stale, and the agent renews it.
    #[must_use]
    pub fn renew_idle_at(&self, jitter: f64) -> Moment {
        let share = self.ttl.period() * 4 / 5;
        self.sent
            .after(share.mul_f64(1.0 - 0.1 * jitter.clamp(0.0, 1.0)))
    }

    /// Returns the time limit of one try: a quarter of the time that is left, so that another try
    /// fits before the deadline, and a quarter of the period at most. It is never so short that no
    /// server could answer.
    #[must_use]
    pub fn attempt_timeout(&self, now: Moment) -> Duration {
        let left = self.remaining(now).min(self.ttl.period());
        (left / 4).max(SHORTEST_ATTEMPT)
    }
}

/// A shorter time limit would fail against a healthy server.
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
            "a late response does not shorten it"
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

    #[test]
    fn a_long_ttl_is_renewed_as_often_as_one_of_two_minutes() {
        let [long, short] =
            [3_600, 120].map(|ttl| KeepAlive::begun(at(0.0), SessionTtl::clamped(ttl)));
        for jitter in [0.0, 1.0] {
            assert_eq!(long.renew_at(jitter), short.renew_at(jitter));
            assert_eq!(long.renew_idle_at(jitter), short.renew_idle_at(jitter));
        }
        assert_eq!(long.attempt_timeout(at(40.0)), Duration::from_secs(30));
        assert_eq!(long.attempt_timeout(at(3_400.0)), Duration::from_secs(5));
        // What it is for: an outage that begins just before a renewal.
        assert_eq!(
            long.remaining(long.renew_at(0.0)),
            Duration::from_secs(3_380)
        );
    }
}

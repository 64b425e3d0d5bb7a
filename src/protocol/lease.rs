//! Leases and the deadlines that were returned to apps: the agent's side of a grant.
//!
//! Every answer to an app binds the agent. The latest returned deadline only moves forward, and the
//! grant is released only after the app ended the lease or that deadline has passed. Once a release
//! was sent, the grant is never used again: the first try may still land.

use std::fmt;
use std::time::Duration;

use super::ids::{GrantId, LeaseId};
use super::time::Moment;
use super::token::Token;

/// Why a lease ended without a release by its app.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The session could not be renewed before its deadline.
    SessionExpired,
    /// The session was revoked.
    SessionRevoked,
    /// The lock no longer names this grant, and does not record a forced end: it was taken over,
    /// deleted or edited.
    GrantGone,
    /// A person ended the grant by force, and the lock records it.
    ForceReleased,
    /// The store was restored from a backup, which may lack the grant.
    StoreRestored,
    /// The app did not renew within its own TTL.
    AppSilent,
    /// A connection held it for its maximum time.
    MaxHold,
    /// The agent is stopping, and the validity that the app had has ended.
    AgentStopping,
    /// The agent's process was restarted and could not resume the lease.
    AgentRestarted,
}

impl Loss {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::SessionExpired,
        Self::SessionRevoked,
        Self::GrantGone,
        Self::ForceReleased,
        Self::StoreRestored,
        Self::AppSilent,
        Self::MaxHold,
        Self::AgentStopping,
        Self::AgentRestarted,
    ];

    /// Returns the reason with this name; `None` if no reason has it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|loss| loss.as_str() == name)
    }

    /// Returns the name of the reason in responses, logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionExpired => "session_expired",
            Self::SessionRevoked => "session_revoked",
            Self::GrantGone => "grant_gone",
            Self::ForceReleased => "force_released",
            Self::StoreRestored => "store_restored",
            Self::AppSilent => "app_silent",
            Self::MaxHold => "max_hold",
            Self::AgentStopping => "agent_stopping",
            Self::AgentRestarted => "agent_restarted",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The validity that is returned to an app: it may act until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// The deadline on the agent's clock.
    pub until: Moment,
    /// The time until then from the arrival of the request. The app counts it from when it *sent*
    /// the request, which was earlier.
    pub valid_for: Duration,
}

/// A lease, from its grant to its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// Its fencing token.
    pub token: Token,
    told_until: Moment,
    /// When the app's silence ends it. For a lease that a connection holds: when it ends in any
    /// case.
    silent_until: Moment,
    /// Whether it needs no renewals by the app.
    is_bound: bool,
}

impl Lease {
    /// Creates a lease that was not returned to an app yet.
    #[must_use]
    pub const fn new(id: LeaseId, token: Token, now: Moment) -> Self {
        Self {
            id,
            token,
            told_until: now,
            silent_until: Moment::since_boot(Duration::MAX),
            is_bound: false,
        }
    }

    /// Creates a lease of an earlier process of this agent, with the latest deadline that was
    /// returned to its app. The app could not renew it meanwhile, so its silence counts from now.
    #[must_use]
    pub const fn resumed(
        id: LeaseId,
        token: Token,
        told_until: Moment,
        now: Moment,
        ttl: Duration,
    ) -> Self {
        Self {
            id,
            token,
            told_until,
            silent_until: now.after(ttl),
            is_bound: false,
        }
    }

    /// Binds the lease to a connection, which keeps it alive: the app's silence does not end it,
    /// and it ends at `ends_at`.
    pub const fn bind_to_connection(&mut self, ends_at: Moment) {
        self.silent_until = ends_at;
        self.is_bound = true;
    }

    /// Binds the lease to its session: it needs no renewal, and ends only with the session.
    pub const fn bind_to_session(&mut self) {
        self.bind_to_connection(Moment::since_boot(Duration::MAX));
    }

    /// Returns when a lease that a connection holds ends in any case; `None` for other leases.
    #[must_use]
    pub fn hold_ends_at(&self) -> Option<Moment> {
        self.is_bound.then_some(self.silent_until)
    }

    /// Returns how long the app may act: `ttl` from now, and never beyond the session's deadline.
    /// The validity counts from the arrival of the request, however long the request waited for the
    /// lock. The end of a lease that a connection holds does not move.
    ///
    /// # Errors
    /// The [`Loss`], if the session's deadline or the app's own has passed.
    pub fn tell(
        &mut self,
        arrived: Moment,
        now: Moment,
        ttl: Duration,
        session_until: Moment,
    ) -> Result<Told, Loss> {
        if let Some(loss) = self.lost(now, session_until) {
            return Err(loss);
        }
        if !self.is_bound {
            self.silent_until = now.after(ttl);
        }
        self.tell_again(arrived, now, session_until)
    }

    /// Returns the validity that the app has, without counting as a renewal.
    ///
    /// # Errors
    /// As [`Lease::tell`].
    pub fn tell_again(
        &mut self,
        arrived: Moment,
        now: Moment,
        session_until: Moment,
    ) -> Result<Told, Loss> {
        if let Some(loss) = self.lost(now, session_until) {
            return Err(loss);
        }
        let until = session_until.min(self.silent_until);
        self.told_until = self.told_until.max(until);
        Ok(Told {
            until,
            valid_for: until.since(arrived),
        })
    }

    /// Returns the latest deadline that the app has, and extends nothing: the answer of a stopping
    /// agent.
    ///
    /// # Errors
    /// The [`Loss`], once that deadline has passed.
    pub fn last_told(&self, arrived: Moment, now: Moment) -> Result<Told, Loss> {
        if now >= self.told_until {
            return Err(Loss::AgentStopping);
        }
        Ok(Told {
            until: self.told_until,
            valid_for: self.told_until.since(arrived),
        })
    }

    /// Returns why the lease has ended by the clock alone; `None` if it has not.
    #[must_use]
    pub fn lost(&self, now: Moment, session_until: Moment) -> Option<Loss> {
        if now >= session_until {
            return Some(Loss::SessionExpired);
        }
        let loss = if self.is_bound {
            Loss::MaxHold
        } else {
            Loss::AppSilent
        };
        (now >= self.silent_until && now >= self.told_until).then_some(loss)
    }

    /// Returns the latest deadline that was returned to the app. The grant may not be released
    /// before it, unless the app ended the lease.
    #[must_use]
    pub const fn told_until(&self) -> Moment {
        self.told_until
    }

    /// Returns when the lease ends if the app stays silent.
    #[must_use]
    pub fn gives_up_at(&self) -> Moment {
        self.silent_until.max(self.told_until)
    }
}

/// The agent's side of a grant: the leases that it served, and whether it may serve another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tenure {
    grant: GrantId,
    base: Token,
    served: u16,
    release_sent: bool,
}

impl Tenure {
    /// Starts with a grant of this agent that was just read, and its base in the store.
    #[must_use]
    pub const fn new(grant: GrantId, base: Token) -> Self {
        Self {
            grant,
            base,
            served: 0,
            release_sent: false,
        }
    }

    /// Starts with a grant of an earlier process of this agent. It is unknown which of its tokens
    /// that process used, so none is left.
    #[must_use]
    pub const fn resumed(grant: GrantId, base: Token) -> Self {
        Self {
            grant,
            base,
            served: u16::MAX,
            release_sent: false,
        }
    }

    /// Returns the grant's id.
    #[must_use]
    pub const fn grant(&self) -> &GrantId {
        &self.grant
    }

    /// Returns the next lease; `None` once a release was sent, or if the tokens are used up.
    pub fn serve(&mut self, now: Moment) -> Option<Lease> {
        if self.release_sent {
            return None;
        }
        let token = self.base.nth(self.served)?;
        let id = LeaseId::of(&self.grant, self.served);
        self.served += 1;
        Some(Lease::new(id, token, now))
    }

    /// Returns whether a release may be in flight, so that the grant serves no further leases.
    #[must_use]
    pub const fn is_release_sent(&self) -> bool {
        self.release_sent
    }

    /// Returns whether the grant can serve another lease.
    #[must_use]
    pub fn may_serve(&self) -> bool {
        !self.release_sent && self.base.nth(self.served).is_some()
    }

    /// Returns the token of the last lease; the base before the first one.
    #[must_use]
    pub fn last_token(&self) -> Token {
        let last = self.served.saturating_sub(1);
        self.base.nth(last).unwrap_or(self.base)
    }

    /// Records that a release is about to be sent. This is final.
    pub fn release_sent(&mut self) {
        self.release_sent = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn lease() -> Lease {
        Lease::new(LeaseId::from("g.0"), Token::from_raw(7000), at(100))
    }

    #[test]
    fn validity_never_exceeds_the_sessions() {
        let told = lease()
            .tell(at(100), at(101), Duration::from_secs(60), at(114))
            .unwrap();
        assert_eq!(
            told,
            Told {
                until: at(114),
                valid_for: Duration::from_secs(14)
            }
        );
        let told = lease()
            .tell(at(100), at(101), Duration::from_secs(5), at(114))
            .unwrap();
        assert_eq!(
            told,
            Told {
                until: at(106),
                valid_for: Duration::from_secs(6)
            }
        );
    }

    #[test]
    fn shorter_ttl_shortens_no_earlier_promise() {
        let mut lease = lease();
        lease
            .tell(at(100), at(100), Duration::from_secs(10), at(114))
            .unwrap();
        let told = lease
            .tell(at(101), at(101), Duration::from_secs(1), at(114))
            .unwrap();
        assert_eq!(told.until, at(102));
        assert_eq!(lease.told_until(), at(110));
        assert_eq!(lease.lost(at(109), at(200)), None);
        assert_eq!(lease.lost(at(110), at(200)), Some(Loss::AppSilent));
    }

    #[test]
    fn lease_ends_with_its_session_and_with_the_apps_silence() {
        let mut lease = lease();
        lease
            .tell(at(100), at(100), Duration::from_secs(10), at(114))
            .unwrap();
        let ttl = Duration::from_secs(10);
        assert_eq!(
            lease.clone().tell(at(110), at(110), ttl, at(120)),
            Err(Loss::AppSilent)
        );
        assert_eq!(
            lease.tell(at(105), at(114), ttl, at(114)),
            Err(Loss::SessionExpired)
        );
    }

    #[test]
    fn hold_ends_at_its_maximum_time_and_not_by_silence() {
        let mut lease = lease();
        lease.bind_to_connection(at(130));
        let ttl = Duration::from_secs(1);
        let told = lease.tell(at(100), at(101), ttl, at(114)).unwrap();
        assert_eq!(told.until, at(114));
        let told = lease.tell_again(at(100), at(120), at(134)).unwrap();
        assert_eq!(told.until, at(130), "never beyond its end");
        assert_eq!(told.valid_for, Duration::from_secs(30));
        let told = lease.tell(at(125), at(125), ttl, at(139)).unwrap();
        assert_eq!(told.until, at(130), "renewing does not move the end");
        assert_eq!(lease.lost(at(129), at(139)), None);
        assert_eq!(lease.lost(at(130), at(139)), Some(Loss::MaxHold));
        assert_eq!(lease.lost(at(120), at(120)), Some(Loss::SessionExpired));
    }

    #[test]
    fn grant_serves_no_lease_once_its_release_was_sent() {
        let mut tenure = Tenure::new(GrantId::from("g"), Token::from_raw(7000));
        let first = tenure.serve(at(1)).unwrap();
        assert_eq!((first.id.as_str(), first.token.get()), ("g.0", 7000));
        let second = tenure.serve(at(2)).unwrap();
        assert_eq!((second.id.as_str(), second.token.get()), ("g.1", 7001));
        tenure.release_sent();
        assert_eq!(tenure.serve(at(3)), None);
    }

    #[test]
    fn resumed_grant_serves_no_new_lease_and_keeps_its_promise() {
        let grant = GrantId::from("g");
        let mut tenure = Tenure::resumed(grant, Token::from_raw(7000));
        assert_eq!(tenure.serve(at(1)), None);
        let (id, ttl) = (LeaseId::from("g.0"), Duration::from_secs(5));
        let lease = Lease::resumed(id, Token::from_raw(7000), at(110), at(100), ttl);
        assert_eq!(lease.told_until(), at(110));
        assert_eq!(lease.lost(at(109), at(200)), None);
        assert_eq!(lease.lost(at(110), at(200)), Some(Loss::AppSilent));
    }

    #[test]
    fn every_reason_is_known_by_its_name() {
        for loss in Loss::ALL {
            assert_eq!(Loss::parse(loss.as_str()), Some(loss));
        }
        assert_eq!(Loss::parse("boredom"), None);
    }

    #[test]
    fn a_grant_serves_a_thousand_leases_and_no_more() {
        let mut tenure = Tenure::new(GrantId::from("g"), Token::from_raw(7000));
        let served = std::iter::from_fn(|| tenure.serve(at(1))).count();
        assert_eq!(served, 1000);
    }
}

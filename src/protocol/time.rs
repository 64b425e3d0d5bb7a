//! Moments and deadlines: a holder must have stopped before a challenger may start.
//!
//! A [`Moment`] is a reading of *one* machine's boot-time clock. Two machines' moments are never
//! compared: each side counts a duration on its own clock, and the shares below leave room for
//! clocks whose rates differ by up to 5 % from each other. Safety then follows for every message
//! delay. The holder counts from before it *sent*, and the challenger from after it *received*. So
//! the challenger's start is later than the holder's in real time, regardless of what happened in
//! between. (Gray and Cheriton, "Leases", SOSP 1989, count the same way.)

use std::fmt;
use std::time::Duration;

/// A reading of the local clock that counts since boot and does not stand still while the
/// machine sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the moment that lies this long after boot.
    #[must_use]
    pub const fn since_boot(elapsed: Duration) -> Self {
        Self(elapsed)
    }

    /// Returns how long after boot this is.
    #[must_use]
    pub const fn elapsed_since_boot(self) -> Duration {
        self.0
    }

    /// Returns the moment `wait` later.
    #[must_use]
    pub const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// Returns the moment `wait` earlier.
    #[must_use]
    pub const fn before(self, wait: Duration) -> Self {
        Self(self.0.saturating_sub(wait))
    }

    /// Returns how long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// A wall-clock time in microseconds since 1970. Informational: nothing is decided by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime(pub i64);

/// How long a session may be silent before it can be revoked: 3 to 3,600 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionTtl(Duration);

/// A session TTL outside of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTtl {
    /// The requested TTL, in whole seconds.
    pub seconds: u64,
}

impl fmt::Display for InvalidTtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a session TTL of {} s is out of range; use {} to {} seconds",
            self.seconds,
            SessionTtl::MIN.as_secs(),
            SessionTtl::MAX.as_secs()
        )
    }
}

impl std::error::Error for InvalidTtl {}

impl SessionTtl {
    /// The shortest TTL; below it one slow write would lose the session.
    pub const MIN: Duration = Duration::from_secs(3);
    /// The longest TTL: a lost node keeps its locks for an hour. Leases outlive as long an outage.
    pub const MAX: Duration = Duration::from_secs(3_600);
    /// The longest period of routine work. It was the longest TTL before TTLs for long outages.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(120);

    /// Creates a TTL of whole seconds.
    ///
    /// # Errors
    /// [`InvalidTtl`] if it is outside 3 to 3,600 seconds.
    pub const fn from_secs(seconds: u64) -> Result<Self, InvalidTtl> {
        if seconds < Self::MIN.as_secs() || seconds > Self::MAX.as_secs() {
            return Err(InvalidTtl { seconds });
        }
        Ok(Self(Duration::from_secs(seconds)))
    }

    /// Returns the nearest TTL within the bounds, for a value that another version wrote: an absurd
    /// one must neither block a lock for years nor let a take-over happen at once.
    #[must_use]
    pub fn clamped(seconds: u64) -> Self {
        Self(Duration::from_secs(
            seconds.clamp(Self::MIN.as_secs(), Self::MAX.as_secs()),
        ))
    }

    /// Returns the TTL as a duration.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Returns the time by which routine work is paced: the TTL, and two minutes at most. All that
    /// an agent does again and again (renewals, reads of a lock that it waits for, backoffs, events
    /// of streams) is a share of it.
    ///
    /// Only deadlines and proofs scale with a longer TTL. An agent that renewed every third of an
    /// hour would begin some outages with 40 minutes left, and a waiter that read as rarely would
    /// leave a free lock unused for as long after a missed event. With two minutes, a session costs
    /// the API server one write in 40 s.
    #[must_use]
    pub fn period(self) -> Duration {
        self.0.min(Self::LONGEST_PERIOD)
    }

    /// Returns how long a session that is in use can be observed without a renewal before one is
    /// missing: renewals come every third of the period.
    #[must_use]
    pub fn missed_renewal(self) -> Duration {
        self.period() * 3 / 5
    }

    /// Returns the TTL in whole seconds, as objects contain it.
    #[must_use]
    pub const fn as_secs(self) -> u64 {
        self.0.as_secs()
    }

    /// Returns 95 % of the TTL: how long a holder may trust a renewal, counted from before it was
    /// sent.
    #[must_use]
    pub const fn holder_share(self) -> Duration {
        hundredths(self.0, 95)
    }

    /// Returns 105 % of the TTL: how long a challenger must observe no change, counted from after
    /// it received the first response that showed the version.
    #[must_use]
    pub const fn challenger_share(self) -> Duration {
        hundredths(self.0, 105)
    }
}

const fn hundredths(whole: Duration, share: u32) -> Duration {
    // `SessionTtl` is bounded to an hour, so the product fits.
    match whole.checked_mul(share) {
        Some(product) => match product.checked_div(100) {
            Some(part) => part,
            None => Duration::ZERO,
        },
        None => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_ttl_is_three_to_3600_seconds() {
        assert_eq!(SessionTtl::from_secs(2), Err(InvalidTtl { seconds: 2 }));
        let above = Err(InvalidTtl { seconds: 3_601 });
        assert_eq!(SessionTtl::from_secs(3_601), above);
        for within in [3, 15, 3_600] {
            assert_eq!(
                SessionTtl::from_secs(within).map(SessionTtl::as_secs),
                Ok(within)
            );
        }
        assert_eq!(SessionTtl::clamped(0).get(), SessionTtl::MIN);
        assert_eq!(SessionTtl::clamped(u64::MAX).get(), SessionTtl::MAX);
    }

    #[test]
    fn routine_work_does_not_slow_down_with_ttls_above_two_minutes() {
        for (ttl, period) in [(3, 3), (15, 15), (120, 120), (121, 120), (3_600, 120)] {
            let ttl = SessionTtl::clamped(ttl);
            assert_eq!(ttl.period(), Duration::from_secs(period), "{ttl:?}");
        }
        // Deadlines and proofs do scale.
        let hour = SessionTtl::clamped(3_600);
        assert_eq!(hour.holder_share(), Duration::from_secs(3_420));
        assert_eq!(hour.challenger_share(), Duration::from_secs(3_780));
    }

    proptest! {
        /// Real time is cut into the holder's send, the store's write and the challenger's
        /// receipt, in this order; each side's clock runs at its own rate within the bound.
        #[test]
        fn a_holder_stops_before_any_challenger_may_start(
            ttl in 3_u64..=3_600,
            sent in 0.0_f64..1e6,
            delay in 0.0_f64..1e3,
            holder_rate in 1.0_f64..=1.05,
            challenger_rate in 1.0_f64..=1.05,
        ) {
            let ttl = SessionTtl::from_secs(ttl).unwrap();
            let received = sent + delay;
            let holder_stops = sent + ttl.holder_share().as_secs_f64() / holder_rate;
            let challenger_starts = received + ttl.challenger_share().as_secs_f64() / challenger_rate;
            prop_assert!(holder_stops < challenger_starts);
        }
    }
}

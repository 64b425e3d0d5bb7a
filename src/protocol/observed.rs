//! What a challenger observed of another pod's session, for how long, and what the challenger may
//! do.
//!
//! The challenger counts on its own clock, from after it *received* the first answer that showed
//! the session's current version. It ignores wall-clock times in the object.

use super::time::{Moment, SessionTtl};
use super::token::Revision;

/// The result of a read of a session object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sight {
    /// It exists, at this version, and is not revoked.
    Version(Revision),
    /// It exists and is revoked.
    Revoked,
    /// It does not exist.
    Missing,
}

/// What was observed of a session, and since when it has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Observed {
    sight: Sight,
    since: Moment,
}

/// What a challenger may do about a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may be alive; check again at this moment.
    MayLive {
        /// When it may be revoked, if it stays silent.
        until: Moment,
    },
    /// It was silent for 1.05 TTL: it may be revoked, by a CAS on exactly this version.
    MayRevoke(Revision),
    /// It has expired: it is revoked, or was missing for 1.05 TTL. Its locks may be taken over.
    Dead,
}

impl Observed {
    /// Adds a new read to what was observed before; any change restarts the count.
    #[must_use]
    pub fn join(before: Option<Self>, sight: Sight, received: Moment) -> Self {
        match before {
            Some(before) if before.sight == sight => before,
            _ => Self {
                sight,
                since: received,
            },
        }
    }

    /// Returns what a challenger may do. `ttl` is the larger of the session's TTL and the one in
    /// the holder's entry.
    ///
    /// A missing session counts as expired only after it was missing for 1.05 TTL: the holder may
    /// not have noticed yet.
    #[must_use]
    pub fn verdict(&self, ttl: SessionTtl, now: Moment) -> Verdict {
        let until = self.since.after(ttl.challenger_share());
        match self.sight {
            Sight::Revoked => Verdict::Dead,
            _ if now < until => Verdict::MayLive { until },
            Sight::Version(version) => Verdict::MayRevoke(version),
            Sight::Missing => Verdict::Dead,
        }
    }

    /// Returns when this was first observed; the oldest observations are dropped first.
    #[must_use]
    pub const fn since(&self) -> Moment {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::KeepAlive;
    use proptest::prelude::*;
    use std::time::Duration;

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    const V7: Sight = Sight::Version(Revision(7));

    #[test]
    fn silence_counts_from_the_first_sight_of_the_current_version() {
        let ttl = SessionTtl::clamped(20);
        let first = Observed::join(None, V7, at(100));
        let second = Observed::join(Some(first), V7, at(110));
        assert_eq!(
            second.verdict(ttl, at(120)),
            Verdict::MayLive { until: at(121) }
        );
        assert_eq!(
            second.verdict(ttl, at(121)),
            Verdict::MayRevoke(Revision(7))
        );
    }

    #[test]
    fn renewal_restarts_the_silence_count() {
        let ttl = SessionTtl::clamped(20);
        let first = Observed::join(None, V7, at(100));
        let renewed = Observed::join(Some(first), Sight::Version(Revision(8)), at(120));
        assert_eq!(
            renewed.verdict(ttl, at(121)),
            Verdict::MayLive { until: at(141) }
        );
    }

    #[test]
    fn missing_session_expires_only_after_its_ttl() {
        let ttl = SessionTtl::clamped(20);
        let missing = Observed::join(
            Some(Observed::join(None, V7, at(50))),
            Sight::Missing,
            at(100),
        );
        assert_eq!(
            missing.verdict(ttl, at(100)),
            Verdict::MayLive { until: at(121) }
        );
        assert_eq!(missing.verdict(ttl, at(121)), Verdict::Dead);
    }

    #[test]
    fn revoked_session_has_expired_at_once() {
        let revoked = Observed::join(None, Sight::Revoked, at(1));
        assert_eq!(
            revoked.verdict(SessionTtl::clamped(120), at(1)),
            Verdict::Dead
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        /// Renewals are sent, written and answered after any time; a challenger reads now and then. Whenever
        /// it may revoke a version, a holder without a newer written renewal has stopped.
        #[test]
        fn a_holder_stops_before_any_challenger_may_revoke(
            ttl in 3_u64..=3_600,
            holder_rate in 1.0_f64..=1.05,
            challenger_rate in 1.0_f64..=1.05,
            renewals in prop::collection::vec((0.0_f64..1.0, 0.0_f64..2.0, 0.0_f64..2.0), 1..20),
            reads in prop::collection::vec(0.0_f64..0.5, 0..20),
        ) {
            let ttl = SessionTtl::from_secs(ttl).unwrap();
            let shares = |n: f64| n * ttl.get().as_secs_f64();
            let local = |real: f64, rate: f64| Moment::since_boot(Duration::from_secs_f64(real * rate));
            let real = |moment: Moment, rate: f64| moment.elapsed_since_boot().as_secs_f64() / rate;
            let mut now = 0.0;
            let mut keep = KeepAlive::begun(local(now, holder_rate), ttl);
            let mut observed = None;
            let mut reads = reads.into_iter();
            for (version, (wait, to_store, to_reader)) in (1..).zip(renewals) {
                let sent = now + shares(wait);
                if !keep.is_valid(local(sent, holder_rate)) {
                    break;
                }
                let written = sent + shares(to_store);
                keep.confirm(local(sent, holder_rate));
                let sight = Sight::Version(Revision(version));
                let mut seen_at = written + shares(to_reader);
                let received = local(seen_at, challenger_rate);
                let mut seen = Observed::join(observed, sight, received);
                // Reading the same version again restarts nothing.
                for gap in reads.by_ref().take(2) {
                    seen_at += shares(gap);
                    seen = Observed::join(Some(seen), sight, local(seen_at, challenger_rate));
                }
                observed = Some(seen);
                let Verdict::MayLive { until } = seen.verdict(ttl, received) else {
                    return Err(TestCaseError::fail("judged at once"));
                };
                prop_assert_eq!(seen.verdict(ttl, until), Verdict::MayRevoke(Revision(version)));
                let stops = real(keep.valid_until(), holder_rate);
                prop_assert!(stops < real(until, challenger_rate), "{stops} {until:?}");
                now = sent;
            }
        }
    }
}

//! The pause before the next session, where this pod was reported as ended.
//!
//! That report is wrong where this process runs. But as long as it stands the operator revokes each
//! session of this pod as soon as it observes it, and takes each lock from it: an app that tries
//! again and again would hold locks for moments and cost the API server ten writes each time.

use std::time::Duration;

use crate::agent::api::AcquireError;
use crate::protocol::time::{Moment, SessionTtl};

/// How often the pause doubles: from one period to sixteen.
const DOUBLINGS: u32 = 4;

/// No session begins before it has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Cooldown {
    /// How many sessions in a row were revoked for that reason, and never renewed.
    reports: u32,
    until: Moment,
}

impl Cooldown {
    /// Records that a session was revoked because the pod was reported as ended.
    pub(super) fn record_report(&mut self, now: Moment, ttl: SessionTtl) {
        let longer = 1 << self.reports.min(DOUBLINGS);
        self.reports = self.reports.saturating_add(1);
        self.until = now.after(ttl.period() * longer);
    }

    /// Records that a session was renewed: nobody revokes this pod's sessions.
    pub(super) const fn record_renewal(&mut self) {
        self.reports = 0;
    }

    /// Checks whether a session may begin.
    ///
    /// # Errors
    /// `ReportedEnded`, with the time that is left.
    pub(super) fn check(&self, now: Moment) -> Result<(), AcquireError> {
        match self.until.since(now) {
            Duration::ZERO => Ok(()),
            left => Err(AcquireError::ReportedEnded { left }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_until_a_session_is_renewed() {
        let ttl = SessionTtl::clamped(10);
        let at = |seconds| Moment::since_boot(Duration::from_secs(seconds));
        let mut cooldown = Cooldown::default();
        assert_eq!(cooldown.check(at(0)), Ok(()));
        for seconds in [10, 20, 40, 80, 160, 160] {
            cooldown.record_report(at(1_000), ttl);
            let left = Duration::from_secs(1);
            let refused = Err(AcquireError::ReportedEnded { left });
            assert_eq!(cooldown.check(at(1_000 + seconds - 1)), refused);
            assert_eq!(cooldown.check(at(1_000 + seconds)), Ok(()));
        }
        cooldown.record_renewal();
        cooldown.record_report(at(2_000), ttl);
        assert_eq!(cooldown.check(at(2_010)), Ok(()));
    }
}

//! Sessions that others revoked, and the rest before the next one where they were because the pod was
//! reported as ended.
//!
//! That report is wrong where this process runs. But as long as it stands the operator revokes each
//! session of this pod as soon as it sees it, and takes each lock from it: an app that tries again and
//! again would hold locks for moments and cost the API server ten writes each time. What this does not
//! do: doubt the report.

use std::time::Duration;

use super::Renewal;
use crate::agent::{AcquireError, Agent};
use crate::protocol::ids::SessionId;
use crate::protocol::lease::Loss;
use crate::protocol::session::{Revocation, RevokeReason};
use crate::protocol::time::{Moment, SessionTtl};

/// How often the rest doubles: from one TTL to sixteen.
const DOUBLINGS: u32 = 4;

/// The rest before the next session.
#[derive(Debug, Default)]
pub(in crate::agent) struct Rest {
    /// How many sessions in a row were revoked because the pod was reported as ended, and not once renewed.
    reports: u32,
    until: Moment,
}

impl Rest {
    fn note_report(&mut self, now: Moment, ttl: SessionTtl) {
        let longer = 1 << self.reports.min(DOUBLINGS);
        self.reports = self.reports.saturating_add(1);
        self.until = now.after(ttl.get() * longer);
    }

    /// A session was renewed: nobody revokes what this pod begins.
    pub(super) const fn note_renewed(&mut self) {
        self.reports = 0;
    }

    /// Whether a session may be begun.
    ///
    /// # Errors
    /// For how long none may.
    pub(super) fn check(&self, now: Moment) -> Result<(), AcquireError> {
        match self.until.since(now) {
            Duration::ZERO => Ok(()),
            left => Err(AcquireError::ReportedEnded { left }),
        }
    }
}

impl Agent {
    /// Renews a session that somebody is said to have revoked: what it comes to shows whether it was. A
    /// lock that is taken with it meanwhile would be lost again.
    pub(in crate::agent) async fn renew_now(&self, id: &SessionId) {
        let _change = self.0.session_change.lock().await;
        let _lost_or_not = self.try_renew(id).await;
    }

    /// Somebody revoked the session, which was to be renewed.
    pub(super) fn renewal_revoked(&self, id: &SessionId, revocation: &Revocation) -> Renewal {
        if revocation.reason == RevokeReason::PodEnded {
            let ttl = self.0.config.session_ttl;
            self.state().rest.note_report(self.now(), ttl);
            tracing::error!(
                session = %id, actor = ?revocation.by,
                "pod reported as ended; sessions suspended"
            );
        }
        self.renewal_lost(id, Loss::SessionRevoked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_until_a_session_is_renewed() {
        let ttl = SessionTtl::clamped(10);
        let at = |seconds| Moment::since_boot(Duration::from_secs(seconds));
        let mut rest = Rest::default();
        assert_eq!(rest.check(at(0)), Ok(()));
        for seconds in [10, 20, 40, 80, 160, 160] {
            rest.note_report(at(1_000), ttl);
            let left = Duration::from_secs(1);
            let refused = Err(AcquireError::ReportedEnded { left });
            assert_eq!(rest.check(at(1_000 + seconds - 1)), refused);
            assert_eq!(rest.check(at(1_000 + seconds)), Ok(()));
        }
        rest.note_renewed();
        rest.note_report(at(2_000), ttl);
        assert_eq!(rest.check(at(2_010)), Ok(()));
    }
}

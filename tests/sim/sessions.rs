//! The stored sessions: when each was last written, revoked or deleted. They decide which process
//! may end another pod's grant, and for how long an agent may return validity of its own session.
//!
//! A session that existed when a backup was restored decides nothing: what other processes observed
//! of it may be undone.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::protocol::ids::SessionId;
use leasehold::protocol::session::{Claimant, RevokeReason, Session};
use leasehold::protocol::time::SessionTtl;

use crate::invariants::Verdict;

/// Clocks are read in whole nanoseconds, timers in milliseconds.
const SLACK: Duration = Duration::from_millis(1);

/// All sessions so far.
pub(crate) struct Sessions {
    known: BTreeMap<SessionId, Known>,
    /// Whether all clocks are within bounds.
    claims_time: bool,
}

struct Known {
    ttl: SessionTtl,
    /// When its agent sent its last applied write.
    sent: Duration,
    /// When that write was applied.
    written: Duration,
    gone: Option<Duration>,
    is_revoked: bool,
    /// When a backup was restored that may have contained it. An agent that notices the restore
    /// uses another session, so later writes do not count.
    restored: Option<Duration>,
}

impl Sessions {
    pub(crate) fn new(claims_time: bool) -> Self {
        Self {
            known: BTreeMap::new(),
            claims_time,
        }
    }

    /// Its own agent created it, renewed it or ended it.
    pub(crate) fn written(&mut self, session: &Session, sent: Duration, now: Duration) {
        let known = self.known.entry(session.id.clone()).or_insert(Known {
            ttl: session.ttl,
            sent,
            written: now,
            gone: None,
            is_revoked: false,
            restored: None,
        });
        known.sent = known.sent.max(sent);
        known.written = now;
        known.is_revoked |= session.revoked.is_some();
    }

    /// Another process revoked it. For silence, only after a TTL of silence, because no clock
    /// within bounds reaches 1.05 TTL sooner.
    pub(crate) fn revoked(&mut self, session: &Session, now: Duration) -> Verdict {
        let Some(known) = self.known.get_mut(&session.id) else {
            return Ok(());
        };
        known.is_revoked = true;
        let silent = now.saturating_sub(known.written) + SLACK;
        let reason = session.revoked.as_ref().map(|revoked| &revoked.reason);
        let expired = reason == Some(&RevokeReason::Expired);
        let is_early = expired && silent < known.ttl.get();
        if is_early && self.claims_time && known.restored.is_none() {
            return Err(format!("{} was revoked after {silent:?}", session.id));
        }
        Ok(())
    }

    /// It was deleted, by any process.
    pub(crate) fn gone(&mut self, id: &SessionId, now: Duration) {
        if let Some(known) = self.known.get_mut(id) {
            known.gone = Some(now);
        }
    }

    /// A backup replaced everything.
    pub(crate) fn restored(&mut self, now: Duration) {
        for known in self.known.values_mut() {
            known.restored.get_or_insert(now);
        }
    }

    /// Returns whether it may still be valid, as far as a challenger with any clock can know.
    pub(crate) fn lives(&self, id: &SessionId, now: Duration) -> bool {
        self.known.get(id).is_some_and(|known| {
            let silent = now.saturating_sub(known.written);
            !known.is_revoked && known.gone.is_none() && silent < known.ttl.get()
        })
    }

    /// Another process ends a grant of this session: the session must have ended before.
    pub(crate) fn may_be_ended(&self, holder: &Claimant, now: Duration) -> Verdict {
        let known = self.known.get(&holder.session);
        let Some(known) = known.filter(|known| !known.is_revoked && known.restored.is_none())
        else {
            return Ok(());
        };
        let session = &holder.session;
        let Some(gone) = known.gone else {
            return Err(format!("a grant was ended while {session} was alive"));
        };
        let missing = now.saturating_sub(gone) + SLACK;
        if self.claims_time && missing < holder.session_ttl.get() {
            return Err(format!(
                "a grant was ended when {session} was gone for {missing:?}"
            ));
        }
        Ok(())
    }

    /// An app received validity until then, by a clock with this gain.
    pub(crate) fn may_last(&self, id: &SessionId, until: Duration, gain: u64) -> Verdict {
        let Some(known) = self.known.get(id).filter(|_| self.claims_time) else {
            return Ok(());
        };
        #[expect(clippy::cast_precision_loss, reason = "a rate is small")]
        let rate = 1.0 + gain as f64 / 1_000_000.0;
        let share = known.ttl.holder_share().div_f64(rate);
        let sent = known.restored.map_or(known.sent, |at| at.min(known.sent));
        if until > sent + share + SLACK {
            let what = if sent < known.sent {
                "although a backup was restored"
            } else {
                "whose last write was sent"
            };
            return Err(format!(
                "an app was told of {id} until {until:?}, {what} at {sent:?}"
            ));
        }
        Ok(())
    }
}

//! Taking over from a session that is proven dead, where the admission policies let an agent do
//! it (peer mode). In strict mode they refuse, and the operator does it.
//!
//! Order is everything: the dead session is revoked first, by a CAS on exactly the version whose
//! silence was observed, and only then is the lock written. The other way round a hung holder
//! could wake, renew and go on believing while the lock is another's.

use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::lock::{Claim, Grant, Lock};
use crate::protocol::observed::{Sight, Verdict};
use crate::protocol::session::{Claimant, Revocation, RevokeReason, Session};
use crate::protocol::time::{Moment, SessionTtl, WallTime};
use crate::protocol::token::Revision;
use crate::store::{StoreError, Stored, within};

use super::{Agent, CALL_LIMIT};

/// How long a refusal by policy is taken as the answer to the next take-over too.
const STRICT_REMEMBERED: Duration = Duration::from_secs(60);

/// Whether a holder's session can be taken over from.
pub(super) enum Fate {
    /// It may be alive, or nobody here may judge.
    MayLive {
        /// What keeps the lock, where there is something to say.
        hint: Option<String>,
        /// When there is more to be known, if it stays silent and we may judge.
        until: Option<Moment>,
        /// When it will be proven dead, where it looks as if it were.
        dead_at: Option<Moment>,
    },
    /// It changed under the look; look again.
    Changed,
    /// It is revoked, or was seen missing for long enough.
    Dead,
}

impl Fate {
    pub(super) const fn unjudged(hint: String) -> Self {
        Self::MayLive {
            hint: Some(hint),
            until: None,
            dead_at: None,
        }
    }
}

impl Agent {
    /// Looks at the session of a lock's holder. Once that has been silent for as long as half of
    /// what proves it dead, those who wait before us are looked at too: what took the holder may
    /// have taken them, and they are to be skipped together and not one TTL each. Before that it
    /// would cost a read for each of them, again and again, and nearly always for nothing.
    pub(super) async fn fate_of_holder(
        &self,
        lock: &Lock,
        grant: &Grant,
    ) -> Result<Fate, StoreError> {
        let mut fate = self.fate_of(&grant.holder, grant.acquired_at).await?;
        let enough = grant.holder.session_ttl.challenger_share() / 2;
        if let Fate::MayLive { until, .. } = &mut fate {
            let left = until.map(|until| until.since(self.now()));
            match left {
                None => return Ok(fate),
                Some(left) if left > enough => {
                    *until = Some(self.now().after(left.saturating_sub(enough)));
                    return Ok(fate);
                }
                Some(_) => {}
            }
        }
        self.look_at_those_ahead(lock, enough).await;
        Ok(fate)
    }

    /// What comes of it only makes a take-over drop more of the dead at once, so a look that fails
    /// is no reason to stop. Who is not in the queue itself leaves it to those who are, while
    /// their first shows signs of life.
    async fn look_at_those_ahead(&self, lock: &Lock, enough: Duration) {
        let own = self.current_session();
        let own = self.own(&own.unwrap_or_else(|| SessionId::from("")));
        let ahead = lock.waiters.ahead_of(&own);
        let is_in_line = ahead.len() < lock.waiters.len();
        if let (false, Some(first)) = (is_in_line, ahead.first())
            && let Ok(Fate::MayLive {
                until: Some(until), ..
            }) = self.fate_of(&first.claimant, first.queued_at).await
            && until.since(self.now()) > enough
        {
            return;
        }
        // From the last to the first: when the first is proven dead, as the holder that it is by
        // then, the others have been looked at for longer.
        let looks = async {
            for waiter in ahead.iter().rev() {
                if let Err(error) = self.fate_of(&waiter.claimant, waiter.queued_at).await {
                    let session = &waiter.claimant.session;
                    tracing::debug!(%session, %error, "checking a waiter's session failed");
                    if error.is_transient() {
                        return;
                    }
                }
            }
        };
        // All together may take no longer than one call: meanwhile the lock may be handed on.
        let _in_time = tokio::time::timeout(CALL_LIMIT, looks).await;
    }

    /// Looks at a holder's session; revokes it when its silence has lasted long enough. `named_at` is
    /// when the lock began to name it, by its own word.
    pub(super) async fn fate_of(
        &self,
        holder: &Claimant,
        named_at: WallTime,
    ) -> Result<Fate, StoreError> {
        if self
            .state()
            .session()
            .is_some_and(|live| live.key() == holder.key())
        {
            return Ok(Fate::unjudged("this pod holds the lock itself".into()));
        }
        if !self.0.config.takes_over || self.now() < self.state().core.peers.strict_until {
            return Ok(Fate::unjudged(only_the_operator()));
        }
        let read = match within(CALL_LIMIT, self.0.sessions.get(&holder.session)).await {
            Err(StoreError::DeniedByPolicy(reason)) => {
                return Ok(Fate::unjudged(self.note_strict(&reason)));
            }
            read => read?,
        };
        // A session of that name that another pod made is not the holder's, and says nothing of it.
        let read = read.filter(|stored| stored.value.key() == holder.key());
        let sight = match &read {
            None => Sight::Missing,
            Some(stored) if stored.value.revoked.is_some() => Sight::Revoked,
            Some(stored) => Sight::Version(stored.version),
        };
        let renewed_at = read.as_ref().and_then(|stored| stored.value.renewed_at);
        let last_word = renewed_at.map_or(named_at, |at| at.max(named_at));
        let received = self.now();
        let observed = self
            .state()
            .core
            .peers
            .observe(&holder.key(), sight, received);
        let ttl = read.as_ref().map_or(holder.session_ttl, |stored| {
            stored.value.ttl.max(holder.session_ttl)
        });
        match observed.verdict(ttl, received) {
            Verdict::Dead => Ok(Fate::Dead),
            Verdict::MayLive { until } => Ok(Fate::MayLive {
                hint: None,
                until: Some(until),
                dead_at: self.looks_expired(holder, last_word, ttl).then_some(until),
            }),
            Verdict::MayRevoke(version) => match read {
                Some(stored) => self.revoke(&stored, version).await,
                None => Ok(Fate::MayLive {
                    hint: None,
                    until: None,
                    dead_at: None,
                }),
            },
        }
    }

    /// Whether a session looks as if it had expired: its own last word is that old. Two machines' wall
    /// clocks are compared here, so it proves nothing; it only says whether the proof is worth waiting
    /// for. A session that was seen to change lives, whatever its clock says.
    fn looks_expired(&self, holder: &Claimant, last_word: WallTime, ttl: SessionTtl) -> bool {
        let silent = self.0.clock.wall().0.saturating_sub(last_word.0);
        let silent = Duration::from_micros(u64::try_from(silent).unwrap_or(0));
        silent > ttl.challenger_share() && !self.state().core.peers.has_changed(&holder.key())
    }

    async fn revoke(&self, stored: &Stored<Session>, seen: Revision) -> Result<Fate, StoreError> {
        debug_assert_eq!(
            stored.version, seen,
            "the silence that counts is this version's"
        );
        let revocation = Revocation {
            at: self.0.clock.wall(),
            by: self.pod().name.clone(),
            reason: RevokeReason::Expired,
        };
        let Some(revoked) = stored.value.revoked(revocation) else {
            return Ok(Fate::Dead);
        };
        let session = &stored.value.id;
        // Closes the race with the holder's own renewal: both write on this version, one wins.
        match within(CALL_LIMIT, self.0.sessions.update(stored, &revoked)).await {
            Ok(_) => {
                let now = self.now();
                let key = stored.value.key();
                self.state().core.peers.observe(&key, Sight::Revoked, now);
                tracing::info!(%session, "revoked expired session");
                Ok(Fate::Dead)
            }
            // It renewed, or somebody else revoked it; the next look sees which.
            Err(StoreError::Conflict | StoreError::NotFound(_)) => Ok(Fate::Changed),
            Err(StoreError::DeniedByPolicy(reason)) => {
                Ok(Fate::unjudged(self.note_strict(&reason)))
            }
            Err(error) => Err(error),
        }
    }

    /// The lock to write after its holder was found dead.
    pub(super) fn lock_after_take_over(
        &self,
        current: &Stored<Lock>,
        claim: &Claim,
    ) -> Option<Lock> {
        let grant = current.value.grant.as_ref()?;
        let holder = &grant.holder;
        let mint = self.mint().ok()?;
        let now = self.now();
        let ending = Ending {
            at: self.0.clock.wall(),
            kind: IncidentKind::Expired,
            actor: self.pod().name.clone(),
            reason: format!(
                "session {} was not renewed for 1.05 of its TTL",
                holder.session
            )
            .into(),
        };
        let is_dead = |who: &Claimant| {
            let observed = self.state().core.peers.observed(&who.key());
            let verdict = observed.map(|seen| seen.verdict(who.session_ttl, now));
            who.key() == holder.key() || verdict == Some(Verdict::Dead)
        };
        current
            .value
            .take_over(current.version, &mint, is_dead, &ending, Some(claim))
    }

    /// The policies refused a take-over: strict mode. Asks no more for a minute.
    pub(super) fn note_strict(&self, reason: &str) -> String {
        let until = self.now().after(STRICT_REMEMBERED);
        self.state().core.peers.strict_until = until;
        tracing::info!(
            reason,
            "take-over denied; leaving take-overs to the operator"
        );
        only_the_operator()
    }
}

fn only_the_operator() -> String {
    "the admission policies let only the operator take over from an expired holder".into()
}

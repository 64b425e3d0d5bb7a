//! The agent's session: begun with the first acquire, renewed while it is needed, ended after ten
//! idle minutes or at shutdown, and lost when its deadline passes.
//!
//! Invariant: what hangs on the session is believed only before `KeepAlive::valid_until`, read
//! from the clock at every use. A renewal whose answer comes later than that changes nothing:
//! the session is lost, and is never taken up again.

mod create;
mod revoked;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::protocol::ids::SessionId;
use crate::protocol::lease::Loss;
use crate::protocol::session::{KeepAlive, Revocation, RevokeReason, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::{Mint, Revision, Seen};
use crate::store::{StoreError, Stored, within};

use super::release::Returning;
use super::state::LiveSession;
use super::{AcquireError, Agent, Backoff, CALL_LIMIT};

pub(super) use revoked::Rest;

/// What one try to renew came to.
enum Renewal {
    /// The session lives on.
    Renewed,
    /// There is no such session any more.
    Lost,
    /// Nothing is known to have changed; try again before the deadline.
    Failed,
}

impl Agent {
    /// The session to acquire with: begun if there is none, and renewed first if less than half
    /// of its TTL is left. `listed` is what the caller had the store list just now, if it did.
    pub(super) async fn ready_session(
        &self,
        listed: Option<Revision>,
    ) -> Result<SessionId, AcquireError> {
        if let Some(id) = self.fresh_session() {
            return Ok(id);
        }
        let _change = self.0.session_change.lock().await;
        // Whoever held the lock before may have done the work.
        if let Some(id) = self.fresh_session() {
            return Ok(id);
        }
        let mut backoff = Backoff::of_a_call(self.now());
        while let Some(id) = self.current_session() {
            match self.try_renew(&id).await {
                Renewal::Renewed => return Ok(id),
                Renewal::Lost => break,
                Renewal::Failed if self.pause(&mut backoff).await => {}
                Renewal::Failed => {
                    let why = "the session could not be renewed".into();
                    return Err(AcquireError::Store(StoreError::Unavailable(why)));
                }
            }
        }
        self.begin_session(listed).await
    }

    /// The session that may be believed now.
    pub(super) fn current_session(&self) -> Option<SessionId> {
        let now = self.now();
        let expired = {
            let state = self.state();
            match &state.session {
                None => return None,
                Some(live) if live.keep_alive.is_valid(now) => return Some(live.id().clone()),
                Some(live) => live.id().clone(),
            }
        };
        self.lose_session(&expired, Loss::SessionExpired);
        None
    }

    /// The local deadline of this session; none when it is not (or no longer) the agent's.
    pub(super) fn session_deadline(&self, id: &SessionId) -> Option<Moment> {
        let state = self.state();
        let live = state.session.as_ref().filter(|live| live.id() == id)?;
        Some(live.keep_alive.valid_until())
    }

    /// What tokens are made from now.
    ///
    /// # Errors
    /// `StoreWentBack` until a LIST has answered with what was seen before. `SessionLost` before
    /// the first session's LIST.
    pub(super) fn mint(&self) -> Result<Mint, AcquireError> {
        let state = self.state();
        if let Some(went_back) = state.went_back {
            return Err(went_back.into());
        }
        let seen = state.seen.ok_or(AcquireError::SessionLost)?;
        Ok(Mint {
            seen,
            floor: self.0.config.token_floor,
        })
    }

    /// What the token of a hand-over is made from. A release goes on when nothing may be granted;
    /// whoever receives the lock then tests the token for itself.
    pub(super) fn hand_over_mint(&self) -> Mint {
        let seen = self.state().seen;
        Mint {
            seen: seen.unwrap_or_else(|| Seen::from_list(Revision::default())),
            floor: self.0.config.token_floor,
        }
    }

    /// The session, if it may be acquired with as it is. It is renewed if it is due by now.
    fn fresh_session(&self) -> Option<SessionId> {
        let now = self.now();
        let state = self.state();
        let live = state.session.as_ref()?;
        let fresh = live.keep_alive.is_valid(now) && !live.keep_alive.is_stale(now);
        fresh.then(|| {
            live.needed.notify_one();
            live.id().clone()
        })
    }

    async fn begin_session(&self, listed: Option<Revision>) -> Result<SessionId, AcquireError> {
        {
            let state = self.state();
            if state.draining {
                return Err(AcquireError::ShuttingDown);
            }
            state.rest.check(self.now())?;
        }
        let listed = match listed {
            Some(listed) => listed,
            None => self.list_for_session().await?,
        };
        let session = self.new_session();
        let sent = self.now();
        let stored = self.create_session(&session).await?;
        let keep_alive = KeepAlive::begun(sent, session.ttl);
        if !keep_alive.is_valid(self.now()) {
            return Err(AcquireError::SessionLost);
        }
        tracing::info!(session = %session.id, sessionTtlSeconds = session.ttl.as_secs(), "session started");
        let (live, over) = LiveSession::new(stored, keep_alive);
        {
            let mut state = self.state();
            state.session = Some(live);
            state.write_session();
        }
        // Nothing is this session's before it begins, so nothing is missed from here on.
        self.look_after_session(session.id.clone(), listed, over);
        Ok(session.id)
    }

    /// Renews the session from now on, and watches its locks from after this revision on.
    pub(super) fn look_after_session(
        &self,
        id: SessionId,
        after: Revision,
        over: CancellationToken,
    ) {
        self.spawn_keep_alive(id.clone());
        self.spawn_watch(id.clone(), after, over.clone());
        self.spawn_look_at_kept(id, over);
    }

    async fn list_for_session(&self) -> Result<Revision, AcquireError> {
        let before = self.seen_before_list();
        let listed = self.persist(|| self.0.locks.list(1, None)).await?.revision;
        self.note_list(before, listed)?;
        Ok(listed)
    }

    /// Renews while the session is needed, and ends with it.
    fn spawn_keep_alive(&self, id: SessionId) {
        let agent = self.clone();
        self.spawn_supervised("the renewal", move || agent.clone().keep_alive(id.clone()));
    }

    async fn keep_alive(self, id: SessionId) {
        let needed = {
            let state = self.state();
            let live = state.session.as_ref().filter(|live| *live.id() == id);
            let Some(live) = live else { return };
            live.needed.clone()
        };
        let mut failures = 0;
        while let Some(wake) = self.next_renewal(&id, failures) {
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return,
                // What was idle is needed again, and may be due by now.
                () = needed.notified(), if failures == 0 => {}
                () = self.sleep_until(wake) => {}
            }
            if self.end_if_idle(&id).await {
                return;
            }
            let _change = self.0.session_change.lock().await;
            if self.0.stop.is_cancelled() {
                return;
            }
            if failures == 0 && !self.is_renewal_due(&id) {
                // An acquire renewed ahead of time.
                continue;
            }
            match self.try_renew(&id).await {
                Renewal::Renewed => failures = 0,
                Renewal::Failed => failures += 1,
                Renewal::Lost => return,
            }
        }
        self.lose_session(&id, Loss::SessionExpired);
    }

    /// When to try next, at the latest at the deadline; none once that has passed.
    fn next_renewal(&self, id: &SessionId, failures: u32) -> Option<Moment> {
        let now = self.now();
        let state = self.state();
        let live = state.session.as_ref().filter(|live| live.id() == id)?;
        if !live.keep_alive.is_valid(now) {
            return None;
        }
        let due = match failures {
            0 => state.renewal_due(live, self.random().fraction()),
            _ => now.after(self.pause_after(failures, live.stored.value.ttl.get() / 10)),
        };
        Some(due.min(live.keep_alive.valid_until()))
    }

    /// Whether a renewal is due, or was but for its jitter.
    fn is_renewal_due(&self, id: &SessionId) -> bool {
        let now = self.now();
        let state = self.state();
        let live = state.session.as_ref().filter(|live| live.id() == id);
        live.is_none_or(|live| now >= state.renewal_due(live, 1.0))
    }

    /// One try to renew. The caller holds `session_change`.
    async fn try_renew(&self, id: &SessionId) -> Renewal {
        let now = self.now();
        let (current, failures, limit) = {
            let mut state = self.state();
            let Some(live) = state.session.as_mut().filter(|live| live.id() == id) else {
                return Renewal::Lost;
            };
            if !live.keep_alive.is_valid(now) {
                // A renewal sent now would only make others wait for a session that is lost.
                drop(state);
                return self.renewal_lost(id, Loss::SessionExpired);
            }
            live.renewal_sent.get_or_insert(now);
            let limit = live.keep_alive.attempt_timeout(now);
            (live.stored.clone(), live.failures.clone(), limit)
        };
        let next = match current.value.renewed(self.0.clock.wall(), failures) {
            Ok(next) => next,
            Err(revocation) => return self.renewal_revoked(id, &revocation),
        };
        // Closes the race with whoever revokes: both write on the version they read, one wins.
        match within(limit, self.0.sessions.update(&current, &next)).await {
            Ok(stored) => self.confirm_renewal(id, stored),
            // A 404 may be some proxy's; the read that follows tells.
            Err(StoreError::Conflict | StoreError::Ambiguous(_) | StoreError::NotFound(_)) => {
                self.look_after_renewal(id, &current).await
            }
            Err(error) => self.renewal_failed(id, &error),
        }
    }

    /// A renewal got no clear answer, or somebody wrote first: reads what is there.
    async fn look_after_renewal(&self, id: &SessionId, before: &Stored<Session>) -> Renewal {
        let limit = CALL_LIMIT.min(self.session_remaining(id) / 4);
        let found = match within(limit, self.0.sessions.get(id)).await {
            Ok(Some(found)) => found,
            Ok(None) => return self.renewal_lost(id, Loss::SessionRevoked),
            Err(error) => return self.renewal_failed(id, &error),
        };
        if let Some(revocation) = &found.value.revoked {
            return self.renewal_revoked(id, revocation);
        }
        if found.value.renewals < before.value.renewals {
            // The API server itself lets the count only rise: this is a restored backup.
            return self.renewal_lost(id, Loss::StoreRestored);
        }
        if found.value.renewals > before.value.renewals {
            // Only this agent renews, so this is an earlier try that landed after all.
            return self.confirm_renewal(id, found);
        }
        if before.version.leapt_to(found.version) {
            // Somebody touched it, and that was after a restore.
            return self.renewal_lost(id, Loss::StoreRestored);
        }
        let error = StoreError::Ambiguous("the renewal has not landed".into());
        if let Some(live) = self.state().session.as_mut().filter(|live| live.id() == id) {
            // Somebody may have touched the object (a label, a storage migration).
            live.stored = found;
        }
        self.state().write_session();
        self.renewal_failed(id, &error)
    }

    fn session_remaining(&self, id: &SessionId) -> Duration {
        self.session_deadline(id)
            .map_or(Duration::ZERO, |deadline| deadline.since(self.now()))
    }

    fn confirm_renewal(&self, id: &SessionId, stored: Stored<Session>) -> Renewal {
        let now = self.now();
        {
            let mut state = self.state();
            let Some(live) = state.session.as_mut().filter(|live| live.id() == id) else {
                return Renewal::Lost;
            };
            if live.stored.version.leapt_to(stored.version) {
                // A backup was restored in between, and it may have forgotten our grants.
                drop(state);
                return self.renewal_lost(id, Loss::StoreRestored);
            }
            if live.keep_alive.is_valid(now) {
                // Without a send there is nothing to count from, least of all the answer.
                if let Some(sent) = live.renewal_sent.take() {
                    live.keep_alive.confirm(sent);
                }
                live.stored = stored;
                if std::mem::take(&mut live.is_failing) {
                    self.0.streams_changed.notify_waiters();
                }
                state.rest.note_renewed();
                state.write_session();
                self.0.metrics.renewal("renewed");
                return Renewal::Renewed;
            }
        }
        // The answer came after the deadline; somebody may have been told of the loss already.
        self.renewal_lost(id, Loss::SessionExpired)
    }

    fn renewal_failed(&self, id: &SessionId, error: &StoreError) -> Renewal {
        self.0.metrics.renewal("failed");
        let remaining = self.session_remaining(id);
        tracing::warn!(session = %id, %error, remainingMs = remaining.as_millis(), "renewal failed");
        let mut state = self.state();
        if let Some(live) = state.session.as_mut().filter(|live| live.id() == id) {
            live.is_failing = true;
            live.failures.count += 1;
            live.failures.last_reason = Some(
                error
                    .to_string()
                    .chars()
                    .take(256)
                    .collect::<String>()
                    .into(),
            );
            live.failures.last_at = Some(self.0.clock.wall());
        }
        self.0.streams_changed.notify_waiters();
        Renewal::Failed
    }

    fn renewal_lost(&self, id: &SessionId, loss: Loss) -> Renewal {
        self.0.metrics.renewal("lost");
        self.lose_session(id, loss);
        Renewal::Lost
    }

    /// The session is over and with it every lease. What the store still says of them is cleared
    /// away behind, once nobody may believe in them any more.
    pub(super) fn lose_session(&self, id: &SessionId, loss: Loss) {
        let now = self.now();
        let (live, leases, kept, promised_until) = {
            let mut state = self.state();
            let Some(live) = state.session.take_if(|live| live.id() == id) else {
                return;
            };
            if loss == Loss::StoreRestored {
                state.forget_sights();
            }
            for line in state.lines.values() {
                // Its place in the queue is dead with the session.
                line.changed.notify_one();
            }
            // In this order on file, so that each lease has its own reason there.
            let leases = state.end_all_of(id, loss, now);
            state.write_session_over();
            (live, leases, state.take_kept_of(id), state.promised_until)
        };
        tracing::warn!(session = %id, reason = %loss, leases = leases.len(), "session lost");
        for (resource, held) in &leases {
            self.report_lost(resource, &held.ended(), loss, now);
        }
        self.0.something_ended.notify_waiters();
        let told_until = leases.iter().map(|(_, held)| held.lease.told_until()).max();
        let leases = leases
            .into_iter()
            .map(|(resource, held)| held.into_returning(resource));
        let grants: Vec<Returning> = leases.chain(kept).collect();
        let agent = self.clone();
        let session = live.stored.value;
        self.spawn(async move {
            let told_until = told_until.unwrap_or(now).max(promised_until);
            // Timers only wake; a clock that counts sleep may be ahead of them or behind.
            while agent.now() < told_until {
                agent.sleep_until(told_until).await;
            }
            agent.clear_away(session, grants).await;
        });
    }

    async fn end_if_idle(&self, id: &SessionId) -> bool {
        let _change = self.0.session_change.lock().await;
        let now = self.now();
        let live = {
            let mut state = self.state();
            // Under one lock with the check, so that no acquire can pick the session up between.
            let idle = state.is_idle() && now.since(state.idle_since) >= self.0.config.idle_after;
            let live = state.session.take_if(|live| idle && live.id() == id);
            if live.is_some() {
                state.write_session_over();
            }
            live
        };
        let Some(live) = live else { return false };
        tracing::info!(session = %id, "idle session ended");
        self.write_end(&live.stored.value).await;
        true
    }

    /// Ends the session, if there is one, and says so in the store.
    pub(super) async fn end_session(&self) {
        let _change = self.0.session_change.lock().await;
        let live = self.state().session.take();
        if let Some(live) = live {
            self.write_end(&live.stored.value).await;
        }
    }

    async fn write_end(&self, session: &Session) {
        if let Err(error) = self.revoke_own(session).await {
            tracing::warn!(session = %session.id, %error, "ending session failed");
        }
    }

    /// Writes that this session is over. One that is gone or revoked already is over too.
    pub(super) async fn revoke_own(&self, session: &Session) -> Result<(), StoreError> {
        let Some(found) = within(CALL_LIMIT, self.0.sessions.get(&session.id)).await? else {
            return Ok(());
        };
        let revocation = Revocation {
            at: self.0.clock.wall(),
            by: session.pod.name.clone(),
            reason: RevokeReason::Ended,
        };
        let Some(revoked) = found.value.revoked(revocation) else {
            return Ok(());
        };
        // Closes the race with an own renewal that is still on its way.
        match within(CALL_LIMIT, self.0.sessions.update(&found, &revoked)).await {
            Ok(_) | Err(StoreError::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

//! An agent that goes on where its process died: the session is renewed once, what it holds is
//! listed, and the leases that the journal and the store agree on are served again.
//!
//! Invariant: nothing is confirmed before one renewal by compare-and-swap on the version in the
//! journal was *answered* with success. A newer version that is read proves nothing: a renewal that
//! was sent before the process died may have made it, or somebody else. All has to be done before the
//! deadline that the apps were told at most; then the session is left to expire, and a new one is
//! begun with the next acquire.

mod past;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::protocol::election::is_election;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::{GrantId, LeaseId, SessionId};
use crate::protocol::lease::{Lease, Loss, Tenure};
use crate::protocol::lock::Lock;
use crate::protocol::session::{KeepAlive, Session};
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Token;
use crate::store::{LockStore, Page, SessionStore, StoreError, Stored, within};

use super::journal::record::{LeaseRecord, Record, SessionRecord};
use super::journal::{Memory, Writer};
use super::release::{Ending, Returning};
use super::state::{End, Held, LiveSession, State};
use super::{Agent, Backoff, CALL_LIMIT, Config, LeaseError, Life, OnTerm};
pub(super) use past::Left;
use past::{Plan, Refusal};

/// How long an acquire waits until it is known which locks are held.
pub(super) const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// The longest pause between two tries: the deadline is near.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The shortest time for one call, however near the deadline is.
const SHORTEST_CALL: Duration = Duration::from_millis(50);
/// How long an agent whose apps have ended waits for what it may have to release.
const RESUMED_AT_THE_END: Duration = Duration::from_secs(3);

/// A session that lives on, and what it holds.
struct TakenUp {
    stored: Stored<Session>,
    keep_alive: KeepAlive,
    page: Page<Lock>,
}

/// Why there is no answer to a question that was asked until the deadline.
enum NotTakenUp {
    /// It is not to be had any more.
    Refused(Refusal),
    /// The agent stops.
    Stopped,
}

impl From<Refusal> for NotTakenUp {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Agent {
    /// An agent that remembers what the process before it did, as far as it may, and writes down what
    /// the process after it must know. Must be called inside a tokio runtime.
    #[must_use]
    pub fn with_memory(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
        memory: Memory,
    ) -> Self {
        let agent = Self::new(config, locks, sessions, clock);
        agent.recall(memory);
        agent
    }

    fn recall(&self, memory: Memory) {
        let Config {
            pod, session_ttl, ..
        } = &self.0.config;
        let identity = memory.identity(pod, *session_ttl);
        let now = self.now();
        let left = past::read(&memory.past, &identity, *session_ttl, now);
        let mut writer = Writer::behind(memory.journal, identity);
        if let Err(refusal) = &left {
            report_refusal(refusal, None, 0);
            // One that is well, only not for us, need not be looked at.
            if refusal.is_of_the_file()
                && let Err(error) = writer.set_aside()
            {
                tracing::warn!(%error, "the state file cannot be put aside; it is overwritten");
            }
        }
        let left = left.ok().flatten().unwrap_or_default();
        let session = left.session.clone();
        {
            let mut state = self.state();
            state.journal = Some(writer);
            if let Some(session) = &session {
                state.promised_until = session.valid_until();
                state.resuming = Some(left);
            } else {
                state.remember_ends(left, now);
                state.begin_journal();
            }
        }
        if let Some(session) = session {
            let agent = self.clone();
            self.spawn(async move { agent.resume(session).await });
        }
    }

    async fn resume(&self, session: SessionRecord) {
        match self.take_up(&session).await {
            Ok(taken_up) => self.go_on(taken_up, session.valid_until()),
            Err(NotTakenUp::Refused(refusal)) => self.begin_anew(&refusal, &session),
            Err(NotTakenUp::Stopped) => return,
        }
        self.0.something_ended.notify_waiters();
        self.0.deadlines_changed.notify_one();
    }

    async fn take_up(&self, session: &SessionRecord) -> Result<TakenUp, NotTakenUp> {
        let until = session.valid_until();
        let id = SessionId::from(session.id.as_str());
        if self.now() >= until {
            return Err(Refusal::DeadlinePassed.into());
        }
        let found = self.ask_until(until, || self.0.sessions.get(&id)).await?;
        let found = found.ok_or(Refusal::Revoked)?;
        if found.value.revoked.is_some() {
            return Err(Refusal::Revoked.into());
        }
        if found.version.0 != session.version {
            // Perhaps only by a renewal that was on its way when the process died. But the journal
            // may also be an older copy of itself, and what was told since is not in it.
            return Err(Refusal::Moved.into());
        }
        let (stored, keep_alive) = self.renew_once(&found, until).await?;
        self.state()
            .write_renewed(&stored, keep_alive.valid_until());
        let before = self.seen_before_list();
        let page = self
            .ask_until(until, || self.0.locks.list_held_by(&id))
            .await?;
        if self.note_list(before, page.revision).is_err() {
            return Err(Refusal::StoreRestored.into());
        }
        Ok(TakenUp {
            stored,
            keep_alive,
            page,
        })
    }

    /// The one renewal that everything hangs on.
    async fn renew_once(
        &self,
        found: &Stored<Session>,
        until: Moment,
    ) -> Result<(Stored<Session>, KeepAlive), NotTakenUp> {
        // Whichever try lands, the first was not sent later.
        let sent = self.now();
        let failures = found.value.failures.clone();
        let next = found.value.renewed(self.0.clock.wall(), failures);
        let next = next.map_err(|_| Refusal::Revoked)?;
        // Closes the race with whoever revokes: both write on the version that they read, one wins. An
        // unanswered try is repeated on the same version, so one that landed makes the next one fail:
        // it cannot be told from somebody else's.
        let write = || self.0.sessions.update(found, &next);
        let stored = self.ask_until(until, write).await?;
        if found.version.leapt_to(stored.version) {
            return Err(Refusal::StoreRestored.into());
        }
        Ok((stored, KeepAlive::begun(sent, found.value.ttl)))
    }

    /// Asks until there is an answer that says something, at the longest until the deadline.
    async fn ask_until<T, F>(&self, until: Moment, call: impl Fn() -> F) -> Result<T, NotTakenUp>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut tries = 0;
        loop {
            let left = until.since(self.now());
            let limit = (left / 4).clamp(SHORTEST_CALL, CALL_LIMIT);
            let answer = within(limit, call()).await;
            let is_too_late = self.now() >= until;
            let error = match answer {
                Ok(_) if is_too_late => return Err(Refusal::DeadlinePassed.into()),
                Ok(answer) => return Ok(answer),
                Err(StoreError::Conflict) => return Err(Refusal::Moved.into()),
                Err(StoreError::NotFound(_)) => return Err(Refusal::Revoked.into()),
                Err(error) if is_too_late => {
                    return Err(Refusal::NoAnswer(error.to_string()).into());
                }
                Err(error) => error,
            };
            tracing::debug!(%error, "the session of the process before cannot be taken up yet");
            let pause = Backoff::wait(tries, LONGEST_PAUSE).min(until.since(self.now()));
            tries += 1;
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.0.stop.cancelled() => return Err(NotTakenUp::Stopped),
            }
        }
    }

    /// The session lives on. What it holds and the journal knows goes on; the rest is let go.
    fn go_on(&self, taken_up: TakenUp, told_until: Moment) {
        let TakenUp {
            stored,
            keep_alive,
            page,
        } = taken_up;
        let session = stored.value.id.clone();
        let revision = page.revision;
        if !page.unreadable.is_empty() {
            tracing::warn!(%session, locks = ?page.unreadable, "locks cannot be read");
        }
        let (live, over) = LiveSession::new(stored, keep_alive);
        let now = self.now();
        let plan = {
            let mut state = self.state();
            let Some(left) = state.resuming.take() else {
                return;
            };
            let plan = left.plan(page);
            state.session = Some(live);
            state.take_over(&plan, &session, told_until, now);
            plan
        };
        self.look_after_session(session.clone(), revision, over);
        tracing::info!(
            %session, leases = plan.resumed.len(), lost = plan.lost.len(),
            released = plan.at_once.len() + plan.in_time.len(),
            "went on with the session of the process before"
        );
        for (lease, loss) in &plan.lost {
            self.0.metrics.lease_lost(loss.as_str());
            tracing::warn!(
                leaseId = lease.id,
                fencingToken = lease.token,
                reason = loss.as_str(),
                "lease lost"
            );
        }
        for (grant, stored) in plan.in_time {
            self.give_back_in_time(grant, stored, told_until);
        }
        for (grant, stored) in plan.at_once {
            let ended = plan.ended.iter().rev();
            let mut leases = ended.map(|ended| LeaseId::from(ended.lease.as_str()));
            let last = leases.find(|lease| lease.is_of(&grant));
            let ending = last.map(|lease| Ending {
                lease,
                session: session.clone(),
                seen_at: stored.version,
                told_until,
            });
            // Nobody waits for it; the task goes on by itself.
            let _done = self.spawn_give_back(Returning {
                resource: stored.value.resource.clone(),
                grant,
                known: Some(stored),
                lease: ending,
            });
        }
    }

    /// Releases a grant when nobody can have been told any more that it goes on. Until then it is
    /// nobody's, and no orphan either.
    fn give_back_in_time(&self, grant: GrantId, stored: Stored<Lock>, told_until: Moment) {
        let agent = self.clone();
        let on_its_way = self.on_its_way(grant.clone());
        self.spawn(async move {
            // Timers only wake.
            while agent.now() < told_until {
                agent.sleep_until(told_until).await;
            }
            let what = Returning {
                resource: stored.value.resource,
                grant,
                // Its queue may have changed meanwhile.
                known: None,
                lease: None,
            };
            agent.give_back(what, Backoff::endless()).await;
            drop(on_its_way);
        });
    }

    /// The session is not taken up again, and neither are its leases.
    fn begin_anew(&self, refusal: &Refusal, session: &SessionRecord) {
        let now = self.now();
        let mut state = self.state();
        let Some(mut left) = state.resuming.take() else {
            return;
        };
        report_refusal(refusal, Some(&session.id), left.leases.len());
        for _ in &left.leases {
            self.0.metrics.lease_lost(refusal.loss().as_str());
        }
        // What was told is the old session's, and nothing of that is touched.
        state.promised_until = Moment::default();
        left.session = None;
        left.end_all(refusal.loss());
        state.remember_ends(left, now);
        state.begin_journal();
    }

    /// Waits until it is known what goes on; false when that takes too long.
    pub(super) async fn until_resumed(&self, limit: Duration) -> bool {
        let until = self.now().after(limit);
        loop {
            let ended = self.0.something_ended.notified();
            if self.state().resuming.is_none() {
                return true;
            }
            tokio::select! {
                () = ended => {}
                () = self.sleep_until(until) => {
                    if self.now() >= until {
                        return false;
                    }
                }
            }
        }
    }

    /// An agent that stops before it knows what it holds finds out first: then it can release it.
    pub(super) async fn resume_before_the_end(&self, on_term: OnTerm) {
        let limit = match on_term {
            OnTerm::Wait => self.state().promised_until.since(self.now()),
            OnTerm::ReleaseNow => RESUMED_AT_THE_END,
        };
        self.until_resumed(limit).await;
    }

    /// A stopped agent has nothing left to go on with, unless it never knew what it had.
    pub(super) fn forget_for_good(&self) {
        let mut state = self.state();
        if state.resuming.is_none() {
            state.close_journal();
        }
    }

    /// Ends a lease that is not taken up yet, at its app's word. It is released when the session
    /// goes on.
    pub(super) fn end_unresumed(&self, lease: &LeaseId) -> bool {
        let now = self.now();
        self.state().end_unresumed(lease, now)
    }
}

impl State {
    /// Why there is nothing to say of a lease that is not served and did not end.
    pub(super) fn unserved(&self, lease: &LeaseId) -> LeaseError {
        match &self.resuming {
            Some(left) if left.serves(lease) => LeaseError::Resuming,
            _ => LeaseError::Unknown,
        }
    }

    fn end_unresumed(&mut self, lease: &LeaseId, now: Moment) -> bool {
        let Some(left) = &mut self.resuming else {
            return false;
        };
        let Some(record) = left.leases.get(lease).cloned() else {
            return false;
        };
        left.end(record.ended(End::Releasing, true));
        let request = record.request().and_then(|request| request.key());
        self.write_ended(record.ended(End::Releasing, true));
        self.remember_end(lease.clone(), End::Releasing, request, now);
        true
    }

    /// Remembers how the leases of an earlier process ended, all of them.
    fn remember_ends(&mut self, left: Left, now: Moment) {
        for ended in left.ended {
            let lease = LeaseId::from(ended.lease.as_str());
            self.release_ended(&lease, End::Released);
            self.remember_earlier(lease, ended.end(), ended.request, now);
        }
    }

    /// Makes the plan true in memory and in the journal.
    fn take_over(&mut self, plan: &Plan, session: &SessionId, told_until: Moment, now: Moment) {
        for ended in &plan.ended {
            let lease = LeaseId::from(ended.lease.as_str());
            let is_on_its_way = plan.at_once.iter().any(|(grant, _)| lease.is_of(grant));
            let end = match ended.end() {
                End::Released if is_on_its_way => End::Releasing,
                end => end,
            };
            if !is_on_its_way {
                // Its app released it while it was not known whether it goes on; it does not.
                self.release_ended(&lease, End::Lost(Loss::GrantGone));
            }
            self.remember_earlier(lease, end, ended.request.clone(), now);
        }
        for (record, stored) in &plan.resumed {
            let Some(held) = held_again(record, stored, session, told_until, now) else {
                continue;
            };
            let resource = stored.value.resource.clone();
            self.put(resource, held, record.asked());
        }
        for (record, loss) in &plan.lost {
            let ended = record.ended(End::Lost(*loss), false);
            let request = ended.request.clone();
            self.write_ended(ended);
            self.remember_earlier(record.lease(), End::Lost(*loss), request, now);
        }
        if plan.in_time.is_empty() {
            // What was told is in the leases that go on.
            self.promised_until = Moment::default();
        }
        self.idle_since = now;
        // From here on no orphan: they are on their way back, if slowly.
        let returning = plan.in_time.iter().chain(&plan.at_once);
        for (grant, _) in returning {
            self.returning.insert(grant.clone(), None);
        }
    }

    /// The session was renewed, and is not taken up yet.
    fn write_renewed(&mut self, stored: &Stored<Session>, valid_until: Moment) {
        let session = SessionRecord::new(stored, valid_until);
        self.write(|_| Some(Record::Session(session)));
    }
}

/// A lease of an earlier process, as it is served from now on. Its grant's other tokens are spent.
fn held_again(
    record: &LeaseRecord,
    stored: &Stored<Lock>,
    session: &SessionId,
    told_until: Moment,
    now: Moment,
) -> Option<Held> {
    let life = Life::from(record.life);
    let Life::Ttl(ttl) = life else {
        return None;
    };
    let token = Token::from_raw(record.token);
    // Whom the earlier process told of a lead is not known.
    let has_readers = is_election(&stored.value.resource);
    let readers_until = Some(told_until).filter(|_| has_readers).unwrap_or_default();
    Some(Held {
        lease: Lease::resumed(record.lease(), token, told_until, now, ttl),
        tenure: Tenure::resumed(record.grant(), stored.value.token),
        session: session.clone(),
        owner: record.owner(),
        life,
        keep: record.keep(),
        metadata: record.metadata.clone(),
        acquired_at: WallTime(record.acquired_at_us),
        stored: stored.clone(),
        share: FairShare::default(),
        since: now,
        request: record.request().and_then(|request| request.key()),
        // Whether its answer was heard is not known.
        replayed: true,
        readers_until,
        is_closing: false,
        over: None,
    })
}

/// The one line that says why nothing goes on.
fn report_refusal(refusal: &Refusal, session: Option<&str>, leases: usize) {
    tracing::warn!(
        reason = %refusal, session, leases,
        "the state file is not gone on with; the next acquire begins a new session"
    );
}

//! An agent that goes on where its process died: the session is renewed once, what it holds is
//! listed, and the leases that the journal and the store agree on are served again.
//!
//! Invariant: nothing is confirmed before one renewal by compare-and-swap on the version in the
//! journal was *answered* with success. A newer version that is read proves nothing: a renewal that
//! was sent before the process died may have made it, or somebody else. All has to be done before the
//! deadline that the apps were told at most; then the session is left to expire, and a new one is
//! begun with the next acquire.
//!
//! Until it is known what continues, a renewal is refused as resuming, a release is accepted, an acquire
//! waits for a few seconds, and a lease that had ended is answered as it ended.

mod past;
mod plan;
mod refusal;
mod taken_over;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::protocol::ids::{LeaseId, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lock::Lock;
use crate::protocol::session::{KeepAlive, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::{LockStore, Page, SessionStore, StoreError, Stored, within};

use super::core::gone::{Ending, GoneGrant};
use super::core::observed;
use super::core::release::ReleaseOf;
use super::journal::record::SessionRecord;
use super::journal::{Memory, Writer};
use super::{Agent, CALL_LIMIT, Config, OnTerm};
pub(super) use past::Left;
use past::Refused;
use plan::Unserved;
use refusal::Refusal;

/// How long an acquire waits until it is known which locks are held.
pub(super) const RESUMED_WITHIN: Duration = Duration::from_secs(5);
/// The longest pause between two tries: the deadline is near.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// The shortest time for one call, however near the deadline is.
const SHORTEST_CALL: Duration = Duration::from_millis(50);
/// How long an agent that stops without delay waits for what it may have to release.
const RESUMED_AT_THE_END: Duration = Duration::from_secs(3);

/// Which part of the time that is left one try may take: one in so many.
#[derive(Clone, Copy)]
struct Share(u32);

const A_QUARTER: Share = Share(4);
const ALL: Share = Share(1);

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
        let mut writer = Writer::behind(memory.journal, identity.clone());
        let left = match past::read(&memory.past, &identity, *session_ttl, now) {
            Ok(left) => left,
            Err(refused) => self.refuse(refused, &mut writer),
        };
        let session = left.session.clone();
        {
            let mut state = self.state();
            state.journal = Some(writer);
            state.recall(left, now);
        }
        if let Some(session) = session {
            let agent = self.clone();
            self.spawn_supervised("the resumption", move || {
                agent.clone().resume(session.clone())
            });
        }
    }

    /// A journal is not gone on with. What is left of it is how its leases ended, where they were this
    /// pod's.
    fn refuse(&self, Refused { why, left }: Refused, writer: &mut Writer) -> Left {
        let mut left = *left;
        // One that is well, only not for us, need not be looked at.
        let put = why.is_of_the_file().then(|| writer.set_aside());
        let session = left.session.take();
        let is_known = session.is_some() || !left.leases.is_empty();
        let leases = is_known.then_some(left.leases.len());
        let session = session.as_ref().map(|session| session.id.as_str());
        let put = put.transpose().unwrap_or_else(|error| {
            tracing::warn!(%error, "renaming state file failed; overwriting it");
            None
        });
        why.report(session, leases, put.as_deref());
        if !why.is_of_own_file() {
            return Left::default();
        }
        self.count_lost(&why, &mut left);
        left
    }

    /// None of the leases goes on, for this reason.
    fn count_lost(&self, why: &Refusal, left: &mut Left) {
        for _ in &left.leases {
            self.0.metrics.lease_lost(why.loss().as_str());
        }
        left.end_all(why.loss());
    }

    async fn resume(self, session: SessionRecord) {
        if self.state().resuming.is_none() {
            // Started again, behind the point from which it is not undone.
            return;
        }
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
        let get = || self.0.sessions.get(&id);
        let found = self.ask_until(until, A_QUARTER, get).await?;
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
        // There is nothing to be tried after it, and it may have thousands of locks to tell of.
        let list = || self.0.locks.list_held_by(&id);
        let page = self.ask_until(until, ALL, list).await?;
        if self.observe_list(before, page.revision).is_err() {
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
        let stored = self.ask_until(until, A_QUARTER, write).await?;
        if found.version.leapt_to(stored.version) {
            return Err(Refusal::StoreRestored.into());
        }
        Ok((stored, KeepAlive::begun(sent, found.value.ttl)))
    }

    /// Asks until there is an answer that says something, at the longest until the deadline. One try has
    /// this share of the time that is left.
    async fn ask_until<T, F>(
        &self,
        until: Moment,
        Share(share): Share,
        call: impl Fn() -> F,
    ) -> Result<T, NotTakenUp>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut tries = 0;
        loop {
            let left = until.since(self.now());
            let limit = (left / share).clamp(SHORTEST_CALL, CALL_LIMIT);
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
            tracing::debug!(%error, "resuming session failed; retrying");
            let pause = self
                .pause_after(tries, LONGEST_PAUSE)
                .min(until.since(self.now()));
            tries += 1;
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return Err(NotTakenUp::Stopped),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The session lives on. What it holds and the journal knows goes on; the rest is let go.
    fn go_on(&self, taken_up: TakenUp, told_until: Moment) {
        let TakenUp {
            stored,
            keep_alive,
            mut page,
        } = taken_up;
        self.with_leases(|leases| {
            page.items
                .retain(|lock| !observed::is_foreign(leases, lock));
        });
        let session = stored.value.id.clone();
        let revision = page.revision;
        if !page.unreadable.is_empty() {
            tracing::warn!(%session, locks = ?page.unreadable, "unreadable locks");
        }
        let now = self.now();
        let plan = self.with_state(|state| {
            let plan = state.resuming.take()?.plan(page);
            self.step(state, |core, cx| {
                let mut leases = core.adopt(cx, stored, keep_alive, revision);
                taken_over::resume(&mut leases, &plan, told_until, now);
            });
            state.take_over(&plan, now);
            // From here on no orphans: their releases have begun.
            let unserved = plan.at_once.iter().chain(&plan.in_time);
            let releases = unserved.map(|one| self.release_of(one, &session, told_until));
            self.step(state, |core, cx| {
                for what in releases {
                    core.leases(cx).release(what, Vec::new());
                }
            });
            Some(plan)
        });
        let Some(plan) = plan else { return };
        tracing::info!(
            %session, leases = plan.resumed.len(), lost = plan.lost.len(),
            released = plan.at_once.len(), releasedLater = plan.in_time.len(),
            "resumed session from state file"
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
    }

    /// The release of a grant that nobody serves.
    fn release_of(
        &self,
        unserved: &Unserved,
        session: &SessionId,
        told_until: Moment,
    ) -> ReleaseOf {
        let stored = unserved.stored.as_ref();
        let ending = unserved.lease.clone().map(|lease| Ending {
            lease,
            gone: GoneGrant {
                grant: unserved.grant.clone(),
                base: stored.map_or(Token::NONE, |stored| stored.value.token),
            },
            session: session.clone(),
            seen_at: stored.map(|stored| stored.version).unwrap_or_default(),
            promised_until: told_until,
        });
        let grant = GrantKey {
            id: unserved.grant.clone(),
            session: self.own(session),
        };
        ReleaseOf {
            ending,
            may_be_applied: unserved.may_have_landed,
            ..ReleaseOf::new(unserved.resource.clone(), grant, stored.cloned())
        }
    }

    /// The session is not taken up again, and neither are its leases.
    fn begin_anew(&self, refusal: &Refusal, session: &SessionRecord) {
        let now = self.now();
        let mut state = self.state();
        let Some(mut left) = state.resuming.take() else {
            return;
        };
        refusal.report(Some(&session.id), Some(left.leases.len()), None);
        self.count_lost(refusal, &mut left);
        // What was told is the old session's, and nothing of that is touched.
        left.session = None;
        state.recall(left, now);
    }

    /// Waits until it is known what goes on; false when that takes too long.
    pub(super) async fn until_resumed(&self, limit: Duration) -> bool {
        let until = self.now().after(limit);
        loop {
            let ended = self.0.something_ended.notified();
            if self.state().resuming.is_none() {
                return true;
            }
            // Looked at in each round: it holds also where something ends all the time.
            if self.now() >= until {
                return false;
            }
            tokio::select! {
                biased;
                () = ended => {}
                () = self.sleep_until(until) => {}
            }
        }
    }

    /// An agent that stops before it knows what it holds finds out first: then it can release it.
    pub(super) async fn resume_before_the_end(&self, on_term: OnTerm) {
        let limit = match on_term {
            OnTerm::Wait => self.state().promised_until().since(self.now()),
            OnTerm::ReleaseNow | OnTerm::AppsEnded => RESUMED_AT_THE_END,
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

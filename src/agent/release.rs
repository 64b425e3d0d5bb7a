//! Giving a grant back. The lease is over the moment its app says so; the store hears of it as
//! soon as it can.
//!
//! Once a release was sent, the grant is never used again: the agent only goes on releasing,
//! because the first try may still land. Invariant: whoever takes a lease out of the state keeps its
//! grant in the same step, or starts its release.
//!
//! A lock that does not name the grant is a success only when a release of ours may have landed.
//! Before one was sent it means that the lease was lost, and nobody here knew.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::{StoreError, Stored, within};

use super::cleanup::CLEARED_WITHIN;
use super::core::stream::Over;
use super::gone::Gone;
use super::state::{End, Held, State};
use super::{Agent, Backoff, CALL_LIMIT, LeaseError, Life, Released};

/// How long the app waits for the store before it is told `Pending`.
const ANSWER_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
/// How often a release that another write outran is tried again at once.
const AT_ONCE: u32 = 8;

/// What is to be given back.
pub(super) struct Returning {
    pub(super) resource: Resource,
    pub(super) grant: GrantKey,
    /// The lock as last seen, if it is worth a try without reading.
    pub(super) known: Option<Stored<Lock>>,
    /// Who asked for it, where that is why; it is written into the lock's record if it still stands.
    pub(super) asked: Option<Arc<ReleaseRequest>>,
    /// The lease whose end this completes; none when it was over already.
    pub(super) lease: Option<Ending>,
    /// Whether a release was sent whose outcome is not known.
    pub(super) may_have_landed: bool,
}

impl Held {
    /// The grant of a lease that is over.
    pub(super) fn into_returning(self, resource: Resource) -> Returning {
        Returning {
            resource,
            grant: self.key(),
            known: Some(self.stored),
            asked: None,
            lease: None,
            may_have_landed: false,
        }
    }
}

/// Who ends a lease that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhoEnds {
    /// Its app.
    App,
    /// The lock's releaseRequest, for which the campaign acts.
    Request,
    /// The agent, because it stops.
    Agent {
        /// Whether a lease that an app was promised is left as it is.
        leaves_promised: bool,
    },
    /// Nobody was told of it: its caller hung up.
    CallerGone,
}

/// When the grant of a lease that is to end can be given up.
enum PlannedEnd {
    /// There is nothing to end.
    Nothing,
    /// At once.
    Now,
    /// Then. The lease is over all the same.
    Later(Moment),
}

impl State {
    /// Whether a lease is to end, and when its grant can be given up.
    fn plan_end(&mut self, lease: &LeaseId, who: WhoEnds, now: Moment) -> PlannedEnd {
        let Some(held) = self.held_mut(lease) else {
            return PlannedEnd::Nothing;
        };
        if let WhoEnds::Agent { leaves_promised } = who {
            if leaves_promised && held.is_promised(now) {
                return PlannedEnd::Nothing;
            }
            held.tell_streams(Over::Lost(Loss::AgentStopping));
            return PlannedEnd::Now;
        }
        let is_unheard = who == WhoEnds::CallerGone;
        if is_unheard && held.replayed {
            return PlannedEnd::Nothing;
        }
        // A campaign's lease is the whole pod's, and so is the word of the app that ends it.
        let ends_for_all = who == WhoEnds::App && held.life == Life::Campaign;
        let end = match held.readers_until {
            until if now >= until || ends_for_all => PlannedEnd::Now,
            _ if held.is_closing => return PlannedEnd::Nothing,
            until => PlannedEnd::Later(until),
        };
        // Taken out of the lease too: neither its end nor what is written of it has it then.
        if let Some(request) = held.request.take_if(|_| is_unheard) {
            // Its repetition is the first to be answered.
            self.forget_answer(&request);
        }
        end
    }
}

/// A lease that ended while its app could believe in it.
pub(super) struct Ending {
    pub(super) lease: LeaseId,
    pub(super) gone: Gone,
    pub(super) session: SessionId,
    /// The version at which the lock was last seen with its grant.
    pub(super) seen_at: Revision,
    pub(super) told_until: Moment,
}

/// What became of a grant that was to be given back.
pub(super) enum GivenBack {
    /// The lock no longer names it, and that may be our doing.
    Done,
    /// The lock did not name it before any release of ours can have landed. As it was seen then;
    /// none when there is no lock.
    WasGone(Option<Box<Stored<Lock>>>),
    /// The tries are used up.
    Abandoned,
}

/// A grant that is being given back or looked for, for as long as this lives: it keeps the session
/// alive, and its lock is not mistaken for an orphan's.
pub(super) struct OnItsWay {
    agent: Agent,
    grant: GrantId,
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.agent.state().returning.remove(&self.grant);
        self.agent.0.something_ended.notify_waiters();
    }
}

impl Agent {
    /// Ends a lease at its app's word.
    ///
    /// # Errors
    /// [`LeaseError`] when the lease is unknown or was lost before, also when the store says so
    /// only now. Releasing twice is no error.
    pub async fn release(&self, lease: &LeaseId) -> Result<Released, LeaseError> {
        self.end_if_lost(lease);
        if self.end_unresumed(lease) {
            return Ok(Released::Pending);
        }
        if let Some(heard) = self.start_release(lease, WhoEnds::App)? {
            // In time or not, the state says what is known.
            let _in_time = tokio::time::timeout(ANSWER_LIMIT, heard).await;
        }
        let error = {
            let mut state = self.state();
            match state.core.history.end(lease) {
                Some(End::Released) => return Ok(Released::Done),
                Some(End::Releasing) => return Ok(Released::Pending),
                Some(End::Lost(loss)) => LeaseError::Lost(loss),
                None if state.held_mut(lease).is_some() => return Ok(Released::Pending),
                None => LeaseError::Unknown,
            }
        };
        Err(self.explained(lease, error).await)
    }

    /// Releases the lead of a campaign because the lock's releaseRequest asks for it, when no app was promised
    /// it any longer. Returns when the lease has ended, for whatever reason, or the agent stops.
    pub(super) async fn resign(&self, lease: &LeaseId) {
        // It has begun already, or the lease has ended, where this finds nothing.
        let _released = self.start_release(lease, WhoEnds::Request);
        loop {
            let mut ended = pin!(self.0.something_ended.notified());
            // Before the state is read: an end in between is not missed.
            ended.as_mut().enable();
            if self.state().held_mut(lease).is_none() {
                return;
            }
            tokio::select! {
                biased;
                () = self.0.stop.cancelled() => return,
                () = ended => {}
            }
        }
    }

    /// Releases a lease whose caller hung up, unless a repetition of its request was answered
    /// with it: then somebody believes in it.
    pub(super) fn release_undelivered(&self, lease: &LeaseId) {
        if self.has_left() {
            return;
        }
        if let Ok(Some(_done)) = self.start_release(lease, WhoEnds::CallerGone) {
            tracing::info!(leaseId = %lease, "caller disconnected; lease released");
        }
    }

    /// Ends a lease whose connection ended. One that is over already needs no end.
    pub(super) fn release_hung_up(&self, lease: &LeaseId) {
        // The end of this process closes connections whose apps go on.
        if self.has_left() {
            return;
        }
        if let Ok(Some(_done)) = self.start_release(lease, WhoEnds::App) {
            tracing::info!(leaseId = %lease, "connection closed; lease released");
        }
    }

    /// Releases a lease because the agent stops; where `leaves_promised`, only if no app was promised it.
    pub(super) fn release_at_stop(&self, lease: &LeaseId, leaves_promised: bool) {
        // Who waits for it waits for the agent's load to fall.
        let _done = self.start_release(lease, WhoEnds::Agent { leaves_promised });
    }

    /// Ends the lease and starts giving its grant back: at once, or when those who were told of it
    /// by an election's answer may no longer believe in it. None when there is no such lease (any
    /// more), when that has begun before, or when it was told to somebody although its caller is
    /// gone. The checks and the end are one step under the state's mutex.
    pub(super) fn start_release(
        &self,
        lease: &LeaseId,
        who: WhoEnds,
    ) -> Result<Option<oneshot::Receiver<()>>, LeaseError> {
        let (now, taken) = {
            let mut state = self.state();
            // Read under the mutex: what a reader is told is judged before this or after.
            let now = self.now();
            let taken = match state.plan_end(lease, who, now) {
                PlannedEnd::Nothing => return Ok(None),
                PlannedEnd::Later(until) => {
                    state.close(lease, now);
                    drop(state);
                    return Ok(Some(self.spawn_release_at(lease.clone(), until, who)));
                }
                PlannedEnd::Now => state.end_or_keep(lease, End::Releasing, now),
            };
            (now, taken)
        };
        let (resource, ended, held) = taken.ok_or(LeaseError::Unknown)?;
        self.0.something_ended.notify_waiters();
        self.0.metrics.lease_ended(now.since(ended.since));
        let Some(held) = held else {
            tracing::debug!(
                %resource, ownerId = %ended.owner, leaseId = %lease,
                fencingToken = ended.token.get(), "lease released; grant kept"
            );
            self.wake_sweeper_for_kept(&resource);
            let (done, heard) = oneshot::channel();
            // There is nothing to wait for.
            let _heard = done.send(());
            return Ok(Some(heard));
        };
        tracing::info!(
            %resource, ownerId = %ended.owner, leaseId = %lease,
            fencingToken = ended.token.get(), "lease released"
        );
        let may_answer_request = matches!(who, WhoEnds::App | WhoEnds::Request);
        Ok(Some(self.spawn_give_back(Returning {
            resource,
            grant: held.key(),
            asked: held.asked().filter(|_| may_answer_request).cloned(),
            lease: Some(Ending {
                lease: lease.clone(),
                gone: Gone::from(&held),
                session: held.session.id,
                seen_at: held.stored.version,
                told_until: held.lease.told_until(),
            }),
            known: Some(held.stored),
            may_have_landed: false,
        })))
    }

    /// Releases a lease that is over for its holder when its readers' time is over too. The receiver
    /// hears when the store has said what became of it.
    fn spawn_release_at(
        &self,
        lease: LeaseId,
        until: Moment,
        who: WhoEnds,
    ) -> oneshot::Receiver<()> {
        // An app speaks for the whole pod, and not for a lead that it was only asked to give up: if the agent
        // stops before that time, its readers keep what they were promised.
        let who = match who {
            WhoEnds::Request => who,
            WhoEnds::App | WhoEnds::Agent { .. } | WhoEnds::CallerGone => WhoEnds::App,
        };
        let (done, receiver) = oneshot::channel();
        let agent = self.clone();
        self.spawn(async move {
            agent.until_or_stop(until).await;
            // Its clock may have ended it meanwhile, or the agent's stop; then nothing is left to do.
            if let Ok(Some(heard)) = agent.start_release(&lease, who) {
                let _heard = heard.await;
            }
            // Nobody may be waiting any more.
            let _unheard = done.send(());
        });
        receiver
    }

    /// Starts giving a grant back, in a task that no caller can cut off. The receiver hears when
    /// the store has said what became of it.
    pub(super) fn spawn_give_back(&self, mut what: Returning) -> oneshot::Receiver<()> {
        let (done, receiver) = oneshot::channel();
        let is_held_back = self.state().is_held_back(&what.grant.id);
        // Nobody is to wait for one that has to wait itself.
        let done = Some(done).filter(|_| !is_held_back);
        let on_its_way = self.on_its_way(what.grant.id.clone());
        self.spawn(async move {
            let agent = on_its_way.agent.clone();
            if is_held_back {
                if !agent.until_unbound(&what.grant.id).await {
                    return;
                }
                // Its queue may have changed meanwhile.
                what.known = None;
            }
            let ending = what.lease.take();
            let given_back = agent.give_back(what, Backoff::endless()).await;
            if let Some(ending) = ending {
                agent.note_given_back(&ending, &given_back);
            }
            // Nobody may be waiting any more.
            let _unheard = done.map(|done| done.send(()));
            drop(on_its_way);
        });
        receiver
    }

    /// Notes that a grant is being given back or looked for.
    pub(super) fn on_its_way(&self, grant: GrantId) -> OnItsWay {
        self.state().returning.insert(grant.clone(), None);
        OnItsWay {
            agent: self.clone(),
            grant,
        }
    }

    /// Tries until the lock no longer names the grant, or the tries are used up.
    pub(super) async fn give_back(&self, mut what: Returning, mut backoff: Backoff) -> GivenBack {
        let (mut refused_since, mut outrun) = (None, 0);
        loop {
            match self.try_give_back(&mut what).await {
                Ok(Some(given_back)) => {
                    self.0.metrics.release("released");
                    return given_back;
                }
                // Another write came first: the next round reads. All who wait wait for this one,
                // so it is they who pause.
                Ok(None) => {
                    refused_since = None;
                    outrun += 1;
                    if outrun % AT_ONCE != 0 {
                        continue;
                    }
                    backoff.rewind();
                }
                Err(error) => {
                    self.0.metrics.release("retried");
                    tracing::warn!(resource = %what.resource, %error, "release failed; retrying");
                    let is_refused = !error.is_transient();
                    let now = self.now();
                    refused_since = is_refused.then(|| refused_since.unwrap_or(now));
                }
            }
            // A refusal may be mended, and then again it may not: the session is not kept alive
            // for it for ever. Once that ends, others may take over.
            let is_refused_for_long =
                refused_since.is_some_and(|since| self.now().since(since) >= CLEARED_WITHIN);
            if is_refused_for_long || !self.pause(&mut backoff).await {
                self.0.metrics.release("abandoned");
                return GivenBack::Abandoned;
            }
        }
    }

    /// One try; none when another write came first.
    async fn try_give_back(&self, what: &mut Returning) -> Result<Option<GivenBack>, StoreError> {
        let current = match what.known.take() {
            Some(known) => Some(known),
            None => match self.read_lock(&what.resource).await {
                // Deleted, and made again for another resource.
                Err(StoreError::Collision { .. }) => None,
                read => read?,
            },
        };
        let mint = self.hand_over_mint();
        let wall = self.0.clock.wall();
        let released = current.as_ref().and_then(|current| {
            let next = what.released(current, &mint, wall)?;
            Some((current, next))
        });
        let Some((current, next)) = released else {
            return Ok(Some(if what.may_have_landed {
                GivenBack::Done
            } else {
                GivenBack::WasGone(current.map(Box::new))
            }));
        };
        // Closes the race with a waiter that joins the queue while the lock is let go: the
        // release then reads again and hands over instead.
        match within(CALL_LIMIT, self.0.locks.update(current, &next)).await {
            Ok(stored) => {
                self.note_written(&stored);
                Ok(Some(GivenBack::Done))
            }
            // A 404 may be some proxy's; what is read or told next tells. A 409 counts as not written.
            // Where a proxy repeats PUTs it may be one's own success, and a release is then
            // reported as a loss: what cannot be told from a person's edit fails closed.
            Err(StoreError::Conflict | StoreError::NotFound(_)) => {
                let written_on = current.version;
                // The watch mostly told of the write that came first before its own answer did.
                let told = self.state().told_returning(&what.grant.id);
                what.known = told.filter(|told| told.version > written_on);
                Ok(None)
            }
            Err(StoreError::DeniedByPolicy(_) | StoreError::Invalid(_))
                if what.gives_up_record() =>
            {
                Ok(None)
            }
            Err(error) => {
                what.may_have_landed |= matches!(error, StoreError::Ambiguous(_));
                Err(error)
            }
        }
    }
}

//! Ending a lease. It is over when its app ends it; the core releases its grant as soon as possible.
//!
//! Invariant: the step that takes a lease out of the state also keeps its grant or begins its release.

use std::pin::pin;

use tokio::sync::oneshot;

use crate::protocol::ids::{LeaseId, Resource};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::core::effect::{CallId, Reply};
use super::core::gone::{Ending, GoneGrant};
use super::core::leftover::Uncertain;
use super::core::release::ReleaseOf;
use super::core::stream::Over;
use super::driver::Deferred;
use super::state::{End, Held, State};
use super::{Agent, LeaseError, Life, Released};

/// How long the app waits for the store before it is told `Pending`.
const ANSWER_LIMIT: std::time::Duration = std::time::Duration::from_secs(2);
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

impl Held {
    /// The grant of a lease that is over.
    pub(super) fn into_release(self, resource: Resource) -> ReleaseOf {
        ReleaseOf {
            resource,
            grant: self.key(),
            known: Some(self.stored),
            request: None,
            ending: None,
            may_be_applied: false,
            not_before: Moment::default(),
            give_up_at: None,
        }
    }

    /// The grant of a lease that its app ends now.
    fn into_last_release(self, resource: Resource, may_answer_request: bool) -> ReleaseOf {
        let ending = Ending {
            lease: self.lease.id.clone(),
            gone: self.gone(),
            session: self.session.id.clone(),
            seen_at: self.stored.version,
            promised_until: self.lease.told_until(),
        };
        let request = self.asked().filter(|_| may_answer_request).cloned();
        ReleaseOf {
            request,
            ending: Some(ending),
            ..self.into_release(resource)
        }
    }

    /// The grant, as the lock's record may name it.
    pub(super) fn gone(&self) -> GoneGrant {
        GoneGrant {
            grant: self.tenure.grant().clone(),
            base: self.stored.value.token,
        }
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
    ) -> Result<Option<oneshot::Receiver<Reply>>, LeaseError> {
        let mut deferred = Deferred::default();
        let receiver = {
            let mut state = self.state();
            // Read under the mutex: what a reader is told is judged before this or after.
            let now = self.now();
            match state.plan_end(lease, who, now) {
                PlannedEnd::Nothing => return Ok(None),
                PlannedEnd::Later(until) => {
                    state.close(lease, now);
                    drop(state);
                    return Ok(Some(self.spawn_release_at(lease.clone(), until, who)));
                }
                PlannedEnd::Now => {}
            }
            let taken = state.end_or_keep(lease, End::Releasing, now);
            let (resource, ended, held) = taken.ok_or(LeaseError::Unknown)?;
            self.0.metrics.lease_ended(now.since(ended.since));
            let is_kept = held.is_none();
            if is_kept {
                tracing::debug!(
                    %resource, ownerId = %ended.owner, leaseId = %lease,
                    fencingToken = ended.token.get(), "lease released; grant kept"
                );
            } else {
                tracing::info!(
                    %resource, ownerId = %ended.owner, leaseId = %lease,
                    fencingToken = ended.token.get(), "lease released"
                );
            }
            let (call, receiver) = state.expect_reply();
            if let Some(held) = held {
                let may_answer_request = matches!(who, WhoEnds::App | WhoEnds::Request);
                let what = held.into_last_release(resource, may_answer_request);
                self.begin_release(&mut state, what, Some(call));
            } else {
                // There is nothing to wait for.
                state.replies.remove(&call);
                if state.is_kept_due_before_sweep(&resource) {
                    self.0.deadlines_changed.notify_one();
                }
            }
            self.execute_effects(&mut state, &mut deferred);
            receiver
        };
        self.0.something_ended.notify_waiters();
        self.run_deferred(deferred);
        Ok(Some(receiver))
    }

    /// Releases a lease that is over for its holder when its readers' time is over too. The receiver
    /// hears when the store has said what became of it.
    fn spawn_release_at(
        &self,
        lease: LeaseId,
        until: Moment,
        who: WhoEnds,
    ) -> oneshot::Receiver<Reply> {
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
            let _unheard = done.send(Reply::Done);
        });
        receiver
    }

    /// Begins to release a grant; if an earlier process promised it, once that promise has passed.
    pub(super) fn begin_release(
        &self,
        state: &mut State,
        mut what: ReleaseOf,
        call: Option<CallId>,
    ) {
        let mut call = call;
        if state.is_held_back(&what.grant.id) {
            what.not_before = what.not_before.max(state.bound.not_before());
            // Its queue may have changed by then.
            what.known = None;
            // The app need not wait for that.
            if let Some(call) = call.take() {
                state.replies.remove(&call);
            }
        }
        self.step(state, |core, cx| core.release(cx, what, call));
    }

    /// Begins to release a grant that no request waits for.
    pub(super) fn release_grant(&self, what: ReleaseOf) {
        let mut deferred = Deferred::default();
        {
            let mut state = self.state();
            self.begin_release(&mut state, what, None);
            self.execute_effects(&mut state, &mut deferred);
        }
        self.run_deferred(deferred);
    }

    /// Removes from the store what it may have for a claim that no caller needs any more. The receiver
    /// gets an answer when that is done.
    pub(super) fn clear_leftover(
        &self,
        resource: Resource,
        grant: GrantKey,
        uncertain: Option<Uncertain>,
    ) -> oneshot::Receiver<Reply> {
        let (call, receiver) = self.state().expect_reply();
        self.with_core(|core, cx| {
            core.look_for_leftover(cx, resource, grant, uncertain, Some(call));
        });
        receiver
    }
}

//! Callers that are served from what this agent has: a warm grant gives the next lease, in memory and
//! without a write.

use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;

use super::core::begun::{self, FromWarm};
use super::core::history::RequestKey;
use super::line::Front;
use super::take::holder_view;
use super::{AcquireError, AcquireRequest, Acquired, Agent, HolderView};

/// Whether a line gets its lock without asking the store.
pub(super) enum LocalTurn {
    /// From a warm grant.
    Serve,
    /// This agent serves the lock, and a lease may follow the one that is served. Not before this
    /// moment, unless the line is told.
    Wait(Moment),
    /// No: the store is to be asked.
    No,
}

impl Agent {
    /// A lease from a grant that was kept for an app that comes back, if there is one. No await
    /// comes in between, so nobody can hang up half served.
    pub(super) fn acquire_warm(&self, request: &AcquireRequest, arrived: Moment) -> FromWarm {
        let now = self.now();
        {
            let mut state = self.state();
            let is_for_line = state.someone_is_in_line(&request.resource, now);
            if is_for_line || state.core.own.warm(&request.resource).is_none() {
                return FromWarm::Nothing;
            }
            if state.load() >= self.0.config.max_leases {
                return FromWarm::Nothing;
            }
            if let Some(key) = RequestKey::of(request)
                && (state.asked.contains(&key) || state.core.history.answer(&key, now).is_some())
            {
                return FromWarm::Nothing;
            }
        }
        self.lease_from_warm(request, arrived)
    }

    /// The same, and the session is renewed first where that is needed.
    pub(super) async fn acquire_warm_slowly(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<FromWarm, AcquireError> {
        match self.acquire_warm(request, arrived) {
            FromWarm::RenewFirst => {
                self.ready_session(None).await?;
                Ok(self.acquire_warm(request, arrived))
            }
            outcome => Ok(outcome),
        }
    }

    fn lease_from_warm(&self, request: &AcquireRequest, arrived: Moment) -> FromWarm {
        self.with_leases(|leases| begun::begin_from_warm(leases, request, arrived))
    }

    /// Whether a line's first caller is served from what this agent has.
    pub(super) fn local_turn(&self, resource: &Resource) -> LocalTurn {
        self.with_leases(|leases| leases.end_if_over(resource));
        let now = self.now();
        let mut state = self.state();
        if let Some(told) = state.told_grant(resource) {
            if !state.core.own.has(resource, &told) {
                return LocalTurn::No;
            }
            // Of what the line has got already.
            state.forget_told(resource);
        }
        if let Some(warm) = state.core.own.warm(resource) {
            if !warm.share.is_used_up(now) && warm.release_request().is_none() {
                return LocalTurn::Serve;
            }
            drop(state);
            self.with_leases(|leases| leases.release_warm(resource));
            return LocalTurn::No;
        }
        let Some(held) = state.core.own.held(resource) else {
            return LocalTurn::No;
        };
        let is_asked = held.release_request().is_some();
        if held.share.is_used_up(now) || !held.tenure.may_serve() || is_asked {
            return LocalTurn::No;
        }
        let slow = now.after(self.0.config.session_ttl.get() / 3);
        LocalTurn::Wait(held.share.ends_at().unwrap_or(slow))
    }

    /// Serves a line's first caller from the grant that is kept for it.
    pub(super) async fn serve_locally(&self, front: &Front) -> Result<(), AcquireError> {
        match self.lease_from_warm(&front.request, front.arrived) {
            FromWarm::Lease(lease) => self.deliver(front, *lease),
            FromWarm::RenewFirst => {
                self.ready_session(None).await?;
            }
            FromWarm::Nothing => {}
        }
        Ok(())
    }

    /// This pod has the lock itself: what to say to who cannot have it now. Who waits in line does
    /// not count itself among those who wait.
    pub(super) fn held_here(&self, resource: &Resource, is_in_line: bool) -> Option<Acquired> {
        let state = self.state();
        let pod = self.pod().name.to_string();
        let own = &state.core.own;
        let (holder, stored) = if let Some(held) = own.held(resource) {
            let holder = HolderView {
                owner: held.owner.clone(),
                pod,
                token: held.lease.token,
                acquired_at: held.acquired_at,
                metadata: held.metadata.clone(),
                kept: false,
            };
            (holder, &held.stored)
        } else {
            // On its way to the next in line.
            let warm = own.warm(resource)?;
            let grant = warm.stored.value.grant.as_ref()?;
            let holder = HolderView {
                kept: false,
                token: warm.tenure.last_token(),
                ..holder_view(&warm.stored.value, grant)
            };
            (holder, &warm.stored)
        };
        let waiting = state.waiting_for(&stored.value);
        Some(Acquired::Held {
            holder,
            queue_length: waiting.saturating_sub(usize::from(is_in_line)),
            hint: Some("this pod holds the lock itself; locks are not reentrant".into()),
        })
    }
}

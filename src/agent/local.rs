//! Callers that are served from what this agent has: a grant that is kept gives the next lease, in
//! memory and without a write.
//!
//! What it does not do: keep grants or give them back (`kept`). Invariant: a lease is made of a
//! kept grant in one step under the state's mutex, so no two callers get the same token.
//!
//! The n-th lease of a grant has the id `<grantId>.<n>` and the token base + n. All thousand numbers from the
//! base on belong to the grant; when they are used up it is released.

use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;

use super::acquire::begin_lease;
use super::bid::request_key;
use super::line::Front;
use super::state::Held;
use super::take::holder_view;
use super::types::Span;
use super::{AcquireError, AcquireRequest, Acquired, Agent, HolderView, LeaseView};

/// What a caller got from a kept grant.
pub(super) enum FromKept {
    /// A lease.
    Lease(LeaseView),
    /// Nothing before the session is renewed: too little of it is left.
    RenewFirst,
    /// Nothing.
    Nothing,
}

/// Whether a line gets its lock without asking the store.
pub(super) enum LocalTurn {
    /// From a grant that is kept.
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
    pub(super) fn acquire_kept(&self, request: &AcquireRequest, arrived: Moment) -> FromKept {
        let now = self.now();
        {
            let mut state = self.state();
            let is_for_line = state.someone_is_in_line(&request.resource, now);
            if is_for_line || !state.kept.contains_key(&request.resource) {
                return FromKept::Nothing;
            }
            if state.load() >= self.0.config.max_leases {
                return FromKept::Nothing;
            }
            if let Some(key) = request_key(request)
                && (state.asked.contains(&key) || state.core.history.answer(&key, now).is_some())
            {
                return FromKept::Nothing;
            }
        }
        self.lease_from_kept(request, arrived)
    }

    /// The same, and the session is renewed first where that is needed.
    pub(super) async fn acquire_kept_slowly(
        &self,
        request: &AcquireRequest,
        arrived: Moment,
    ) -> Result<FromKept, AcquireError> {
        match self.acquire_kept(request, arrived) {
            FromKept::RenewFirst => {
                self.ready_session(None).await?;
                Ok(self.acquire_kept(request, arrived))
            }
            outcome => Ok(outcome),
        }
    }

    /// The next lease of a kept grant.
    pub(super) fn lease_from_kept(&self, request: &AcquireRequest, arrived: Moment) -> FromKept {
        let now = self.now();
        let wall = self.0.clock.wall();
        let mut state = self.state();
        let Some(kept) = state.kept.get(&request.resource) else {
            return FromKept::Nothing;
        };
        if state.is_draining() || kept.asked().is_some() {
            return FromKept::Nothing;
        }
        let live = state.session();
        let Some(live) = live.filter(|live| *live.id() == kept.session.id) else {
            return FromKept::Nothing;
        };
        if live.is_stale(now) {
            return FromKept::RenewFirst;
        }
        let deadline = live.valid_until();
        let Some(mut kept) = state.kept.remove(&request.resource) else {
            return FromKept::Nothing;
        };
        let begun = kept.tenure.serve(now).and_then(|mut lease| {
            let told =
                begin_lease(&mut lease, request.life, Span { arrived, now }, deadline).ok()?;
            Some((lease, told))
        });
        let Some((lease, told)) = begun else {
            drop(state);
            self.release_grant(kept.into_release(request.resource.clone()));
            return FromKept::Nothing;
        };
        kept.share.note_lease();
        state.reused_a_grant = true;
        let held = Held {
            lease,
            tenure: kept.tenure,
            session: kept.session,
            owner: request.owner.clone(),
            life: request.life,
            keep: request.keep,
            metadata: request.metadata.clone(),
            acquired_at: wall,
            stored: kept.stored,
            share: kept.share,
            since: now,
            request: request_key(request),
            replayed: false,
            readers_until: Moment::default(),
            is_closing: false,
            over: None,
        };
        let view = self.view(&request.resource, &held, told, Span { arrived, now });
        state.insert(request.resource.clone(), held);
        drop(state);
        self.wake_sweeper_for(&view.lease);
        tracing::debug!(
            resource = %view.resource, ownerId = %view.owner, leaseId = %view.lease,
            fencingToken = view.token.get(), "lock acquired from warm grant"
        );
        FromKept::Lease(view)
    }

    /// Whether a line's first caller is served from what this agent has.
    pub(super) fn local_turn(&self, resource: &Resource) -> LocalTurn {
        let now = self.now();
        let serving = self.state().held.get(resource).map(|h| h.lease.id.clone());
        if let Some(lease) = serving {
            self.end_if_lost(&lease);
        }
        let mut state = self.state();
        if let Some(told) = state.told_grant(resource) {
            if !state.serves(resource, &told) {
                return LocalTurn::No;
            }
            // Of what the line has got already.
            state.forget_told(resource);
        }
        if let Some(kept) = state.kept.get(resource) {
            if !kept.share.is_used_up(now) && kept.asked().is_none() {
                return LocalTurn::Serve;
            }
            drop(state);
            self.give_back_kept(resource);
            return LocalTurn::No;
        }
        let Some(held) = state.held.get(resource) else {
            return LocalTurn::No;
        };
        if held.share.is_used_up(now) || !held.tenure.may_serve() || held.asked().is_some() {
            return LocalTurn::No;
        }
        let slow = now.after(self.0.config.session_ttl.get() / 3);
        LocalTurn::Wait(held.share.ends_at().unwrap_or(slow))
    }

    /// Serves a line's first caller from the grant that is kept for it.
    pub(super) async fn serve_locally(&self, front: &Front) -> Result<(), AcquireError> {
        match self.lease_from_kept(&front.request, front.arrived) {
            FromKept::Lease(lease) => self.deliver(front, lease),
            FromKept::RenewFirst => {
                self.ready_session(None).await?;
            }
            FromKept::Nothing => {}
        }
        Ok(())
    }

    /// This pod has the lock itself: what to say to who cannot have it now. Who waits in line does
    /// not count itself among those who wait.
    pub(super) fn held_here(&self, resource: &Resource, is_in_line: bool) -> Option<Acquired> {
        let state = self.state();
        let pod = self.pod().name.to_string();
        let (holder, stored) = if let Some(held) = state.held.get(resource) {
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
            let kept = state.kept.get(resource)?;
            let grant = kept.stored.value.grant.as_ref()?;
            let holder = HolderView {
                kept: false,
                token: kept.tenure.last_token(),
                ..holder_view(&kept.stored.value, grant)
            };
            (holder, &kept.stored)
        };
        let waiting = state.waiting_for(&stored.value);
        Some(Acquired::Held {
            holder,
            queue_length: waiting.saturating_sub(usize::from(is_in_line)),
            hint: Some("this pod holds the lock itself; locks are not reentrant".into()),
        })
    }
}

//! How leases end, and when their grants are kept or released.
//!
//! Invariant: the step that ends a lease also keeps its grant or begins its release, so nothing comes in
//! between.
//!
//! What the store shows of a loss depends on its reason. `app_silent`, `max_hold` and `agent_stopping`:
//! this agent released the lock. `session_expired` and `session_revoked`: others took over, or this
//! agent released it when the store answered again. `force_released`: free or the next waiter's, with an
//! incident. `grant_gone`: another's, or no object. `store_restored`: whatever the backup had.
//! `agent_restarted`: the lock is released when the old deadline has passed, or taken over.

use std::collections::BTreeSet;

use crate::agent::api::Life;
use crate::protocol::election::is_election;
use crate::protocol::ids::{LeaseId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;

use super::acquiring::Acquiring;
use super::effect::{CallId, Effect, Record, Reply};
use super::env::Env;
use super::free_locks::FreeLocks;
use super::held::Held;
use super::history::{End, History};
use super::leftover::Uncertain;
use super::own::Own;
use super::peers::Peers;
use super::release::{REFUSED_FOR, ReleaseOf};
use super::releases::{self, Releases};
use super::report::{ClaimReport, Report, Summary};
use super::session::SessionMachine;
use super::warm::{KeptFor, Warm};
use super::watching::Watching;

/// How many warm grants an agent keeps; the next one is released at once.
const WARM_MAX: usize = 1_000;

/// The leases, and what changes when one begins or ends.
pub(in crate::agent) struct Leases<'a> {
    pub(super) own: &'a mut Own,
    pub(super) history: &'a mut History,
    pub(super) releases: &'a mut Releases,
    pub(super) session: &'a mut SessionMachine,
    /// What callers want.
    pub(super) acquiring: &'a mut Acquiring,
    pub(super) peers: &'a mut Peers,
    pub(super) free_locks: &'a mut FreeLocks,
    /// Locks whose callers may have something to do.
    pub(super) changed: &'a mut BTreeSet<Resource>,
    pub(super) watching: &'a mut Watching,
    pub(super) env: Env<'a>,
}

/// Who ends a lease that is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum EndedBy {
    /// Its app.
    App,
    /// A release request, for which the campaign acts.
    Request,
    /// The agent, because it stops.
    Agent {
        /// Whether a lease that an app was promised is left as it is.
        leaves_promised: bool,
    },
    /// Its caller, by hanging up before the answer.
    HangUp,
}

impl Leases<'_> {
    /// Ends a lease, and begins to release its grant: at once, or when its readers may no longer
    /// believe in it. The request is answered when that has ended. Returns whether anything has begun:
    /// not if there is no such lease, if that has begun before, or if an app was promised it.
    pub(in crate::agent) fn end(&mut self, lease: &LeaseId, by: EndedBy, request: CallId) -> bool {
        if let Some(ended) = self.session.end_unresumed(lease) {
            // Its release begins when it is known what continues.
            self.env
                .out
                .push(Effect::Persist(Record::Ended(ended.clone())));
            let now = self.env.now;
            self.history
                .record_earlier_end(ended.lease, ended.end, ended.request, now);
            self.answer(vec![request]);
            return true;
        }
        self.end_by_clock(lease);
        let has_begun = self.end_by(lease, by, Some(request));
        if !has_begun {
            self.answer(vec![request]);
        }
        has_begun
    }

    /// Ends a lease for its app and for all later questions, although its grant cannot be
    /// released yet: its readers may still believe in it.
    pub(in crate::agent) fn close(&mut self, lease: &LeaseId) {
        let Some(held) = self.own.lease(lease) else {
            return;
        };
        // On file first: after a restart it must not be served either.
        let end = Own::end_record(held, End::Releasing);
        self.env.out.push(Effect::Persist(Record::Ended(end)));
        let Some(held) = self.own.lease_mut(lease) else {
            return;
        };
        held.closing.get_or_insert_default();
        let resource = held.stored.value.resource.clone();
        let (request, ends_at) = (held.request.clone(), held.ends_at());
        if let Some(request) = request {
            self.history.answer_ended(&request);
        }
        self.own.expect_end(ends_at);
        self.env.out.push(Effect::LeaseOver(lease.clone()));
        self.lead_changed(&resource);
    }

    /// Ends a lease before the deadline that its app has.
    pub(in crate::agent) fn lose(&mut self, lease: &LeaseId, loss: Loss) {
        if let Some(held) = self.end_for_good(lease, End::Lost(loss)) {
            self.report_loss(held.summary(self.env.now), loss);
            self.release(held.into_release(), Vec::new());
        }
    }

    /// Ends a lease that no client received, unless a repetition of its request was answered with it.
    pub(super) fn end_unheard(&mut self, lease: &LeaseId) {
        if let Some(held) = self.own.lease_mut(lease) {
            held.unheard_until = None;
        }
        if self.end_by(lease, EndedBy::HangUp, None) {
            self.env
                .out
                .report(ClaimReport::LeaseUndelivered(lease.clone()));
        }
    }

    /// Ends the lease of a resource, if the clock has ended it.
    pub(in crate::agent) fn end_if_over(&mut self, resource: &Resource) {
        if let Some(lease) = self.own.held(resource).map(|held| held.lease.id.clone()) {
            self.end_by_clock(&lease);
        }
    }

    /// Looks for what the store may have for a claim that no caller needs any more.
    pub(super) fn look_for_leftover(
        &mut self,
        resource: &Resource,
        grant: GrantKey,
        uncertain: Option<Uncertain>,
    ) {
        let resource = resource.clone();
        self.releases
            .look_for_leftover(resource, grant, uncertain, &mut self.env);
    }

    /// Releases the warm grant of a resource whose last caller is gone, if it was kept for callers or
    /// others wait for it.
    pub(in crate::agent) fn callers_gone(&mut self, resource: &Resource) {
        let warm = self.own.warm(resource);
        if warm.is_some_and(|warm| warm.is_for_caller() || warm.share.others_wait()) {
            self.release_warm(resource);
        }
    }

    /// Ends what the clock has ended.
    pub(super) fn timer(&mut self) {
        let (leases, warm) = self.own.over_by(self.env.now);
        for resource in &warm {
            self.release_warm(resource);
        }
        for lease in &leases {
            self.end_by_clock(lease);
        }
    }

    /// Ends every lease of a lost session. Returns until when an app was promised one, and the grants,
    /// which are to be released then.
    pub(super) fn end_all_of(
        &mut self,
        session: &SessionId,
        loss: Loss,
    ) -> (Moment, Vec<ReleaseOf>) {
        let now = self.env.now;
        let of_it = self.own.leases().filter(|held| held.session.id == *session);
        let leases: Vec<LeaseId> = of_it.map(|held| held.lease.id.clone()).collect();
        let leases = leases.iter();
        // In this order on file, so that each lease has its own reason there.
        let leases = leases.filter_map(|lease| self.end_for_good(lease, End::Lost(loss)));
        let leases: Vec<Held> = leases.collect();
        self.env.out.push(Effect::Persist(Record::SessionOver));
        let report = Report::SessionLost(session.clone(), loss, leases.len());
        self.env.out.report(report);
        let promised = leases.iter().map(|held| held.lease.told_until()).max();
        let promised = promised.unwrap_or(now).max(self.releases.promised_until());
        let mut releases = Vec::new();
        for mut held in leases {
            self.report_loss(held.summary(now), loss);
            // There is nothing to wait for: it takes until the session is over for everybody.
            self.answer(held.closing.take().unwrap_or_default());
            releases.push(held.into_release());
        }
        let warm = self.own.take_warm_of(session).into_iter();
        releases.extend(warm.map(|(resource, warm)| ReleaseOf {
            // It is released because its session is lost.
            request: None,
            ..warm.into_release(resource)
        }));
        (promised, releases)
    }

    /// Releases the grants of a lost session, once its last promise has passed.
    pub(super) fn release_lost(&mut self, grants: Vec<ReleaseOf>, promised_until: Moment) {
        for what in grants {
            let what = ReleaseOf {
                not_before: promised_until,
                // By then others have taken over.
                give_up_at: Some(promised_until.after(REFUSED_FOR)),
                ..what
            };
            self.release(what, Vec::new());
        }
    }

    /// Releases a warm grant, if there is one.
    pub(in crate::agent) fn release_warm(&mut self, resource: &Resource) {
        if let Some(warm) = self.own.take_warm(resource) {
            self.release(warm.into_release(resource.clone()), Vec::new());
        }
    }

    /// Releases every warm grant.
    pub(in crate::agent) fn release_all_warm(&mut self) {
        let warm = self.own.warm_grants();
        let warm: Vec<Resource> = warm.map(|(resource, _)| resource.clone()).collect();
        for resource in &warm {
            self.release_warm(resource);
        }
    }

    /// Begins to release a grant.
    pub(in crate::agent) fn release(&mut self, what: ReleaseOf, requests: Vec<CallId>) {
        let record = &mut releases::Record {
            history: self.history,
            session: self.session.live(),
        };
        self.releases.release(what, requests, record, &mut self.env);
    }

    /// Returns the local deadline of a session; `None` if it is not (or no longer) the live one.
    pub(super) fn deadline_of(&self, session: &SessionId) -> Option<Moment> {
        let live = self.session.live().filter(|live| live.id() == session)?;
        Some(live.valid_until())
    }

    /// Removes a lease whose grant is released or gone, and records how it ended.
    pub(super) fn end_for_good(&mut self, lease: &LeaseId, end: End) -> Option<Held> {
        self.own.lease_mut(lease)?.tenure.release_sent();
        self.remove(lease, end)
    }

    /// Reports a lease that its app did not end.
    pub(super) fn report_loss(&mut self, summary: Summary, loss: Loss) {
        self.env.out.report(Report::LeaseLost(summary, loss));
    }

    /// A lease of an election's lock began or ended: what is known of its leader is old.
    pub(super) fn lead_changed(&mut self, resource: &Resource) {
        if is_election(resource) {
            let changed = Effect::LeadChanged(resource.clone(), self.env.now);
            self.env.out.push(changed);
        }
    }

    /// Ends a lease, if the clock has ended it.
    pub(in crate::agent) fn end_by_clock(&mut self, lease: &LeaseId) {
        let Some(held) = self.own.lease(lease) else {
            return;
        };
        let now = self.env.now;
        if held.unheard_until.is_some_and(|until| now >= until) {
            return self.end_unheard(lease);
        }
        if held.closing.is_some() {
            if now >= held.readers_until {
                self.end_now(lease, EndedBy::App, None);
            }
            return;
        }
        let loss = match self.deadline_of(&held.session.id) {
            Some(deadline) => held.lease.lost(now, deadline),
            None => Some(Loss::SessionExpired),
        };
        let Some(loss) = loss else { return };
        // Only this lease. A caller of this pod that waits may get its grant.
        if let Some((summary, grant)) = self.end_or_keep(lease, End::Lost(loss)) {
            self.report_loss(summary, loss);
            if let Some(held) = grant {
                self.release(held.into_release(), Vec::new());
            }
        }
    }

    fn end_by(&mut self, lease: &LeaseId, by: EndedBy, request: Option<CallId>) -> bool {
        let now = self.env.now;
        let Some(held) = self.own.lease_mut(lease) else {
            return false;
        };
        if let EndedBy::Agent { leaves_promised } = by {
            if leaves_promised && held.is_promised(now) {
                return false;
            }
            if held.closing.is_none() {
                self.own.record_stopped(lease.clone());
            }
            return self.end_now(lease, by, request);
        }
        if by == EndedBy::HangUp && held.replayed {
            return false;
        }
        // A campaign's lease is the whole pod's: an app that ends it ends it for all.
        let ends_for_all = by == EndedBy::App && held.life == Life::Campaign;
        let has_readers = now < held.readers_until && !ends_for_all;
        if has_readers && held.closing.is_some() {
            return false;
        }
        // Removed from the lease too: neither its end nor the record of that has it then.
        let unheard = held.request.take_if(|_| by == EndedBy::HangUp);
        if let Some(key) = unheard {
            // The first repetition that comes is answered as if it were the request.
            let record = Record::Unheard(key.clone());
            self.env.out.push(Effect::Persist(record));
            self.history.forget_answer(&key);
        }
        if !has_readers {
            return self.end_now(lease, by, request);
        }
        self.close(lease);
        let held = self.own.lease_mut(lease);
        if let Some(calls) = held.and_then(|held| held.closing.as_mut()) {
            calls.extend(request);
        }
        true
    }

    /// Ends a lease, and begins to release its grant unless that is kept.
    fn end_now(&mut self, lease: &LeaseId, by: EndedBy, request: Option<CallId>) -> bool {
        let closing = self
            .own
            .lease_mut(lease)
            .and_then(|held| held.closing.take());
        let requests = request.into_iter().chain(closing.unwrap_or_default());
        let requests: Vec<CallId> = requests.collect();
        let Some((summary, grant)) = self.end_or_keep(lease, End::Releasing) else {
            return false;
        };
        let is_kept = grant.is_none();
        self.env.out.report(Report::LeaseReleased(summary, is_kept));
        match grant {
            Some(held) => {
                let answers_request = matches!(by, EndedBy::App | EndedBy::Request);
                self.release(held.into_last_release(answers_request), requests);
            }
            // There is nothing to wait for.
            None => self.answer(requests),
        }
        true
    }

    fn answer(&mut self, requests: Vec<CallId>) {
        for request in requests {
            self.env.out.push(Effect::Reply(request, Reply::Done));
        }
    }

    /// Ends a lease. Its grant is kept if a caller may come for it; otherwise it is returned with the
    /// lease, to be released.
    fn end_or_keep(&mut self, lease: &LeaseId, end: End) -> Option<(Summary, Option<Held>)> {
        let now = self.env.now;
        let Some(kept_for) = self.keep_for(lease, end) else {
            let held = self.end_for_good(lease, end)?;
            return Some((held.summary(now), Some(held)));
        };
        // There is nothing to wait for.
        let end = match end {
            End::Releasing => End::Released,
            end => end,
        };
        let held = self.remove(lease, end)?;
        let summary = held.summary(now);
        let warm = Warm::new(held, kept_for, now);
        self.own.keep(summary.resource.clone(), warm);
        Some((summary, None))
    }

    fn keep_for(&self, lease: &LeaseId, end: End) -> Option<KeptFor> {
        let held = self.own.lease(lease)?;
        let (resource, now) = (&held.stored.value.resource, self.env.now);
        let deadline = self.deadline_of(&held.session.id);
        let is_valid = deadline.is_some_and(|deadline| now < deadline);
        let is_asked = held.release_request().is_some();
        if self.session.is_draining() || !is_valid || !held.tenure.may_serve() || is_asked {
            return None;
        }
        let grant = held.stored.value.grant.as_ref();
        let is_for_app = !matches!(end, End::Lost(_))
            && grant.is_some_and(|grant| grant.kept)
            && !held.keep.is_zero()
            && !held.share.others_wait()
            && self.own.warm_len() < WARM_MAX;
        if is_for_app {
            return Some(KeptFor::App(now.after(held.keep)));
        }
        // A term may last for days: it goes to the first waiter in the queue, and under its own name.
        let is_for_caller = !is_election(resource)
            && !held.share.is_used_up(now)
            && self.acquiring.is_awaited(resource, now);
        is_for_caller.then_some(KeptFor::Caller)
    }

    fn remove(&mut self, lease: &LeaseId, end: End) -> Option<Held> {
        // On file first: what is in neither place would never be released.
        let record = Own::end_record(self.own.lease(lease)?, end);
        self.env.out.push(Effect::Persist(Record::Ended(record)));
        let held = self.own.remove(lease)?;
        let resource = held.stored.value.resource.clone();
        self.lead_changed(&resource);
        self.changed.insert(resource);
        self.env.out.push(Effect::LeaseOver(lease.clone()));
        self.env.out.push(Effect::SomethingEnded);
        let request = held.request.clone();
        if let Some(request) = &request {
            self.history.answer_ended(request);
        }
        self.history
            .record_end(lease.clone(), end, request, self.env.now);
        Some(held)
    }
}

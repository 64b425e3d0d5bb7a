//! Grants that are kept between two leases: for the next caller of this pod that stands in line,
//! or for an app that asked for it and may come back. The next lease then costs no write.
//!
//! What it does not do: keep a grant that others wait for longer than their share of waiting
//! (`protocol::fair_share`). Invariant: a kept grant serves no lease, so no app believes in it, and
//! it may be given back at any moment; once that has begun it serves nobody again.
//!
//! `keepSeconds` keeps only a grant that says so in the store from its first write on (`lease.kept`): a
//! caller of another pod that finds it held then queues for a moment instead of being refused. A grant that
//! was handed over does not say so, because a lock that others want is not worth keeping. A restarted agent
//! resumes no kept grant: the state file does not tell whether its last lease is over.

use std::time::Duration;

use crate::protocol::election::is_election;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::Tenure;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::{Stored, within};

use super::core::release::ReleaseOf;
use super::driver::Deferred;
use super::state::{End, Ended, Held, State};
use super::{Agent, CALL_LIMIT};

/// How many grants an agent keeps; the next one is given back at once.
const KEPT_MAX: usize = 1_000;
/// A line takes a grant that was kept for it at once, if it lives.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// A grant without a lease.
pub(super) struct Kept {
    pub(super) tenure: Tenure,
    pub(super) session: SessionKey,
    /// The lock as last seen with this grant.
    pub(super) stored: Stored<Lock>,
    pub(super) share: FairShare,
    /// Since when it serves nobody.
    since: Moment,
    whom: For,
}

/// Whom a grant is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// The next in line of this pod.
    Line,
    /// An app that may come back until then; the next in line is served too.
    App(Moment),
}

impl Kept {
    /// When it is given back, if nobody comes for it.
    pub(super) fn goes_at(&self) -> Moment {
        match self.whom {
            For::Line => self.since.after(TAKEN_WITHIN),
            For::App(until) => until,
        }
    }

    /// The grant, as this pod's.
    pub(super) fn key(&self) -> GrantKey {
        GrantKey {
            id: self.tenure.grant().clone(),
            session: self.session.clone(),
        }
    }

    pub(super) fn into_release(self, resource: Resource) -> ReleaseOf {
        ReleaseOf {
            resource,
            grant: self.key(),
            request: self.asked().cloned(),
            known: Some(self.stored),
            ending: None,
            may_be_applied: false,
            not_before: Moment::default(),
            give_up_at: None,
        }
    }
}

impl State {
    /// Takes a lease out that its app or the clock ended. Its grant is kept where somebody may come
    /// for it; else it is given back, and the lease comes out with it.
    pub(super) fn end_or_keep(
        &mut self,
        lease: &LeaseId,
        end: End,
        now: Moment,
    ) -> Option<(Resource, Ended, Option<Held>)> {
        let whom = self.resource_of.get(lease).and_then(|resource| {
            let app_ended = !matches!(end, End::Lost(_));
            self.keep_for(resource, app_ended, now)
        });
        let Some(whom) = whom else {
            let (resource, held) = self.end(lease, end, now)?;
            return Some((resource, held.ended(), Some(held)));
        };
        // Nothing is left to be said to the store.
        let end = match end {
            End::Releasing => End::Released,
            end => end,
        };
        let (resource, held) = self.take_out(lease, end, now)?;
        let ended = held.ended();
        let kept = Kept {
            tenure: held.tenure,
            session: held.session,
            stored: held.stored,
            share: held.share,
            since: now,
            whom,
        };
        self.kept.insert(resource.clone(), kept);
        Some((resource, ended, None))
    }

    fn keep_for(&self, resource: &Resource, app_ended: bool, now: Moment) -> Option<For> {
        let held = self.held.get(resource)?;
        let is_valid = self
            .deadline_of(&held.session.id)
            .is_some_and(|until| now < until);
        if self.is_draining() || !is_valid || !held.tenure.may_serve() || held.asked().is_some() {
            return None;
        }
        let is_marked = held.stored.value.grant.as_ref().is_some_and(|g| g.kept);
        let is_for_app = app_ended
            && is_marked
            && !held.keep.is_zero()
            && !held.share.others_wait()
            && self.kept.len() < KEPT_MAX;
        // A term may last for days: it goes to whoever is first in the queue, and under its own name.
        let is_for_line = !is_election(resource)
            && !held.share.is_used_up(now)
            && self.someone_is_in_line(resource, now);
        if is_for_app {
            Some(For::App(now.after(held.keep)))
        } else {
            is_for_line.then_some(For::Line)
        }
    }

    /// Takes a kept grant out, to be released in the same step.
    fn take_kept(&mut self, resource: &Resource, now: Moment) -> Option<ReleaseOf> {
        let kept = self.kept.remove(resource)?;
        self.idle_since = now;
        Some(kept.into_release(resource.clone()))
    }

    /// Whether a kept grant is to go before the sweeper wakes by itself.
    pub(super) fn is_kept_due_before_sweep(&self, resource: &Resource) -> bool {
        let kept = self.kept.get(resource);
        kept.is_some_and(|kept| kept.goes_at() < self.next_sweep)
    }

    /// At this revision the session did not hold the lock: a grant that was kept before is gone.
    /// No app believed in it, so there is nothing to be told.
    pub(super) fn forget_kept_before(&mut self, resource: &Resource, at: Revision, now: Moment) {
        let kept = self.kept.get(resource);
        if kept.is_some_and(|kept| kept.stored.version < at) {
            self.kept.remove(resource);
            self.idle_since = now;
            if let Some(line) = self.lines.get(resource) {
                line.changed.notify_one();
            }
            tracing::warn!(%resource, "warm grant lost");
        }
    }

    /// The lock as it was seen with a grant that is kept; none when it is another one's. Says
    /// whether the grant is to be given back: somebody asks for that, or others wait for it, and no
    /// line of this pod is on its way to it, which would see to that.
    pub(super) fn note_kept(&mut self, seen: &Stored<Lock>, now: Moment) -> Option<bool> {
        let resource = &seen.value.resource;
        let has_line = self.someone_is_in_line(resource, now);
        let kept = self.kept.get_mut(resource)?;
        if !seen.value.is_held_by(&kept.key()) {
            return None;
        }
        if kept.stored.version < seen.version {
            kept.stored = seen.clone();
            let others = others_wait(&kept.stored.value, &kept.session);
            kept.share.note_others(others, now);
        }
        Some(kept.asked().is_some() || (kept.share.others_wait() && !has_line))
    }

    /// Whether the agent has this grant, with a lease or kept.
    pub(super) fn serves(&self, resource: &Resource, grant: &GrantId) -> bool {
        let held = self.held.get(resource).map(|held| held.tenure.grant());
        let kept = self.kept.get(resource).map(|kept| kept.tenure.grant());
        held == Some(grant) || kept == Some(grant)
    }

    /// The kept grants of a session that ended, on their way back.
    pub(super) fn take_kept_of(&mut self, session: &SessionId) -> Vec<ReleaseOf> {
        let of_it = |_: &Resource, kept: &mut Kept| kept.session.id == *session;
        let gone = self.kept.extract_if(.., of_it);
        gone.map(|(resource, kept)| ReleaseOf {
            // It goes because its session went.
            request: None,
            ..kept.into_release(resource)
        })
        .collect()
    }
}

impl Agent {
    /// Gives a kept grant back, if there is one.
    pub(super) fn give_back_kept(&self, resource: &Resource) {
        let now = self.now();
        let mut deferred = Deferred::default();
        {
            let mut state = self.state();
            let Some(what) = state.take_kept(resource, now) else {
                return;
            };
            self.begin_release(&mut state, what, None);
            self.execute_effects(&mut state, &mut deferred);
        }
        self.run_deferred(deferred);
    }

    /// The grant of a resource that is kept here.
    pub(super) fn kept_grant(&self, resource: &Resource) -> Option<GrantKey> {
        let state = self.state();
        Some(state.kept.get(resource)?.key())
    }

    /// A grant that was kept before a read, and that the read no longer shows, is gone.
    pub(super) fn notice_kept_gone(
        &self,
        resource: &Resource,
        kept: Option<GrantKey>,
        read: Option<&Stored<Lock>>,
    ) {
        let Some(kept) = kept else { return };
        let now = self.now();
        let at = match read {
            Some(stored) if stored.value.is_held_by(&kept) => return,
            Some(stored) => stored.version,
            None => Revision(u64::MAX),
        };
        let mut state = self.state();
        let is_same = |other: &Kept| other.key() == kept;
        if state.kept.get(resource).is_some_and(is_same) {
            state.forget_kept_before(resource, at, now);
        }
    }

    /// The line is gone: what was kept for it alone, or what others wait for, is given back.
    pub(super) fn give_back_if_for_line(&self, resource: &Resource) {
        let is_for_line = {
            let state = self.state();
            let kept = state.kept.get(resource);
            kept.is_some_and(|kept| kept.whom == For::Line || kept.share.others_wait())
        };
        if is_for_line {
            self.give_back_kept(resource);
        }
    }

    /// Gives every kept grant back.
    pub(super) fn give_back_all_kept(&self) {
        let kept: Vec<Resource> = self.state().kept.keys().cloned().collect();
        for resource in &kept {
            self.give_back_kept(resource);
        }
    }

    /// Lists from time to time what the session holds, while grants are kept or used again: who waits
    /// for one is told of by the watch, and a watch can be silent without being broken. Without a
    /// write nothing else would show it.
    pub(super) fn spawn_look_at_kept(&self, session: SessionId) {
        let agent = self.clone();
        self.spawn_supervised("the look at kept grants", move || {
            let (agent, session) = (agent.clone(), session.clone());
            async move {
                tokio::select! {
                    biased;
                    () = agent.0.stop.cancelled() => {}
                    () = agent.look_at_kept(&session) => {}
                }
            }
        });
    }

    async fn look_at_kept(&self, session: &SessionId) {
        let third = self.0.config.session_ttl.get() / 3;
        loop {
            let jitter = 0.9 + 0.2 * self.random().fraction();
            tokio::time::sleep(third.mul_f64(jitter)).await;
            if self.session_deadline(session).is_none() {
                return;
            }
            let now = self.now();
            let is_idle = |kept: &Kept| now.since(kept.since) >= third;
            let is_needed = {
                let mut state = self.state();
                std::mem::take(&mut state.reused_a_grant) || state.kept.values().any(is_idle)
            };
            if !is_needed {
                continue;
            }
            let before = self.seen_before_list();
            match within(CALL_LIMIT, self.0.locks.list_held_by(session)).await {
                Ok(page) => {
                    if self.observe_list(before, page.revision).is_ok() {
                        self.note_listed(session, page);
                    }
                }
                Err(error) => tracing::debug!(%session, %error, "listing warm grants failed"),
            }
        }
    }
}

/// Whether other sessions than this stand in the lock's queue.
pub(super) fn others_wait(lock: &Lock, session: &SessionKey) -> bool {
    let mut waiters = lock.waiters.entries().iter();
    waiters.any(|waiter| waiter.claimant.key() != *session)
}

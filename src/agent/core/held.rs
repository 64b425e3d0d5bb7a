//! A lease that is served, with the grant that it is served from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::api::{LeaseView, Life};
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::OwnerId;
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::{Lease, Loss, Tenure, Told};
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};

use super::effect::CallId;
use super::env::Env;
use super::gone::{Ending, GoneGrant};
use super::history::RequestKey;
use super::release::ReleaseOf;
use super::report::Summary;

/// A lease that is served.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Held {
    /// The lease and what its app was promised.
    pub(in crate::agent) lease: Lease,
    /// The grant that it is served from.
    pub(in crate::agent) tenure: Tenure,
    /// The session that it depends on.
    pub(in crate::agent) session: SessionKey,
    /// The owner, as its app named it.
    pub(in crate::agent) owner: OwnerId,
    /// What keeps it alive, beside the session.
    pub(in crate::agent) life: Life,
    /// How long its grant is kept after it.
    pub(in crate::agent) keep: Duration,
    /// What its app wrote about itself.
    pub(in crate::agent) metadata: BTreeMap<String, String>,
    /// When it was granted. Informational.
    pub(in crate::agent) acquired_at: WallTime,
    /// The lock as last seen with this grant, from the write that granted it on.
    pub(in crate::agent) stored: Stored<Lock>,
    /// For how long its grant may still be used while others wait.
    pub(in crate::agent) share: FairShare,
    /// When it was granted.
    pub(in crate::agent) since: Moment,
    /// The request that it answered.
    pub(in crate::agent) request: Option<RequestKey>,
    /// Whether a repetition of that request was answered with it too.
    pub(in crate::agent) replayed: bool,
    /// Until when readers of an election may believe in it, who received no answer that names it.
    /// Its end by its app does not end that.
    pub(in crate::agent) readers_until: Moment,
    /// Its app has ended it, and only its readers' time is not over yet: the requests to answer
    /// then. No answer and no stream shows it any more.
    pub(in crate::agent) closing: Option<Vec<CallId>>,
    /// No client received it: until when it is kept for a repetition of its request.
    pub(in crate::agent) unheard_until: Option<Moment>,
}

impl Held {
    /// Returns whether an app may act by it now: a promise was given and has not passed.
    pub(in crate::agent) fn is_promised(&self, now: Moment) -> bool {
        if self.closing.is_some() {
            return now < self.readers_until;
        }
        match self.life {
            // An app that was started by the answer (`gate-lock`) does not ask again.
            Life::Campaign => self.readers_until > Moment::default(),
            Life::Ttl(_) | Life::Connection { .. } => {
                now < self.lease.told_until().max(self.readers_until)
            }
        }
    }

    /// Returns the grant that it is served from.
    pub(in crate::agent) fn key(&self) -> GrantKey {
        GrantKey {
            id: self.tenure.grant().clone(),
            session: self.session.clone(),
        }
    }

    /// Returns what a person asks of its app.
    pub(in crate::agent) fn release_request(&self) -> Option<&Arc<ReleaseRequest>> {
        self.stored.value.settings.asked_of(self.tenure.grant())
    }

    /// Returns when its app is asked to release, because it has held for nearly as long as it may: a
    /// period before the end, or after half of the time if that is later.
    pub(in crate::agent) fn warn_at(&self, period: Duration) -> Option<Moment> {
        let Life::Connection { max_hold } = self.life else {
            return None;
        };
        let ends_at = self.lease.hold_ends_at()?;
        Some(ends_at.before(period.min(max_hold / 2)))
    }

    /// Returns when it ends, if nothing extends it and its session lives.
    pub(super) fn ends_at(&self) -> Moment {
        // Its readers were promised no more than its app was.
        let ends_at = match &self.closing {
            Some(_) => self.readers_until,
            None => self.lease.gives_up_at(),
        };
        self.unheard_until
            .map_or(ends_at, |until| until.min(ends_at))
    }

    /// Lets the lease live as it was requested. Returns what its app is told first.
    ///
    /// # Errors
    /// The loss, if its session's deadline has passed.
    pub(super) fn begin(
        &mut self,
        arrived: Moment,
        now: Moment,
        session_until: Moment,
    ) -> Result<Told, Loss> {
        let ttl = match self.life {
            Life::Ttl(ttl) => ttl,
            Life::Connection { max_hold } => {
                self.lease.bind_to_connection(now.after(max_hold));
                max_hold
            }
            Life::Campaign => {
                self.lease.bind_to_session();
                Duration::MAX
            }
        };
        self.lease.tell(arrived, now, ttl, session_until)
    }

    /// Returns until when an answer at this time may promise the lease, which its session's deadline
    /// bounds. A lead is promised for a period at most. It can be moved only after every promise has
    /// passed, and readers of an election ask often.
    pub(super) fn promised_at_most(
        &self,
        now: Moment,
        session_until: Moment,
        period: Duration,
    ) -> Moment {
        match self.life {
            Life::Campaign => session_until.min(now.after(period)),
            Life::Ttl(_) | Life::Connection { .. } => session_until,
        }
    }

    /// Returns the lease as its app sees it.
    pub(super) fn view(&self, told: Told, arrived: Moment, env: &Env) -> LeaseView {
        let left = told.until.since(env.now);
        LeaseView {
            resource: self.stored.value.resource.clone(),
            owner: self.owner.clone(),
            lease: self.lease.id.clone(),
            token: self.lease.token,
            valid_for: told.valid_for,
            expires_at: wall_after(env.wall, left),
            renew_after: env.now.since(arrived) + left / 3,
            completed: self.stored.value.completed.clone(),
            asked: self.release_request().cloned(),
        }
    }

    /// Returns what is logged of it.
    pub(super) fn summary(&self, now: Moment) -> Summary {
        Summary {
            resource: self.stored.value.resource.clone(),
            lease: self.lease.id.clone(),
            owner: self.owner.clone(),
            token: self.lease.token,
            lasted: now.since(self.since),
        }
    }

    /// Returns its grant, as an incident may name it.
    pub(super) fn gone(&self) -> GoneGrant {
        GoneGrant {
            grant: self.tenure.grant().clone(),
            base: self.stored.value.token,
        }
    }

    /// Returns the release of its grant.
    pub(super) fn into_release(self) -> ReleaseOf {
        let resource = self.stored.value.resource.clone();
        ReleaseOf::new(resource, self.key(), Some(self.stored))
    }

    /// Returns the release of its grant that completes its end. `answers_request` says whether that
    /// may be the answer to a release request.
    pub(super) fn into_last_release(self, answers_request: bool) -> ReleaseOf {
        let ending = Ending {
            lease: self.lease.id.clone(),
            gone: self.gone(),
            session: self.session.id.clone(),
            seen_at: self.stored.version,
            promised_until: self.lease.told_until(),
        };
        let request = self.release_request().filter(|_| answers_request);
        ReleaseOf {
            request: request.cloned(),
            ending: Some(ending),
            ..self.into_release()
        }
    }
}

fn wall_after(wall: WallTime, time: Duration) -> WallTime {
    let time = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    WallTime(wall.0.saturating_add(time))
}

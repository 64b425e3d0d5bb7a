//! A lease that is served, with the grant that it is served from. No I/O and no decisions.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use super::RequestKey;
use crate::agent::Life;
use crate::agent::core::stream::Over;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::{LeaseId, OwnerId};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::{Lease, Tenure};
use crate::protocol::lock::Lock;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::Token;
use crate::store::Stored;

/// A lease that is served.
pub(in crate::agent) struct Held {
    /// The lease and what its app was promised.
    pub(in crate::agent) lease: Lease,
    /// The grant it is served from.
    pub(in crate::agent) tenure: Tenure,
    /// The session with which it lives and dies.
    pub(in crate::agent) session: SessionKey,
    /// Who the app said it is.
    pub(in crate::agent) owner: OwnerId,
    /// What keeps it alive, beside the session.
    pub(in crate::agent) life: Life,
    /// How long its grant is kept after it.
    pub(in crate::agent) keep: Duration,
    /// What the app wrote about itself.
    pub(in crate::agent) metadata: BTreeMap<String, String>,
    /// When it was granted, for people.
    pub(in crate::agent) acquired_at: WallTime,
    /// The lock as last seen with this grant, from the write that granted it on.
    pub(in crate::agent) stored: Stored<Lock>,
    /// What its grant may still do while others wait.
    pub(in crate::agent) share: FairShare,
    /// When it was granted.
    pub(in crate::agent) since: Moment,
    /// The request that it answered.
    pub(in crate::agent) request: Option<RequestKey>,
    /// Whether a repetition of that request was answered with it too.
    pub(in crate::agent) replayed: bool,
    /// Until when those may believe in it who were told of it by an election's answer, and not by
    /// a call that names it. Its holder's end does not end that.
    pub(in crate::agent) readers_until: Moment,
    /// Its holder has ended it. No answer and no stream shows it any more; it is here only until its
    /// readers' time is over.
    pub(in crate::agent) is_closing: bool,
    /// Tells its streams of events, if there were any, that it is over.
    pub(in crate::agent) over: Option<watch::Sender<Option<Over>>>,
}

/// What is said of a lease that ended.
pub(in crate::agent) struct Ended {
    pub(in crate::agent) lease: LeaseId,
    pub(in crate::agent) owner: OwnerId,
    pub(in crate::agent) token: Token,
    pub(in crate::agent) since: Moment,
}

impl Held {
    /// Whether an app may act by it now: a promise was given and has not passed.
    pub(in crate::agent) fn is_promised(&self, now: Moment) -> bool {
        if self.is_closing {
            return now < self.readers_until;
        }
        match self.life {
            // An app that was let in by the answer (`gate-lock`) does not ask again.
            Life::Campaign => self.readers_until > Moment::default(),
            Life::Ttl(_) | Life::Connection { .. } => {
                now < self.lease.told_until().max(self.readers_until)
            }
        }
    }

    /// The grant that it is served from, as this pod's.
    pub(in crate::agent) fn key(&self) -> GrantKey {
        GrantKey {
            id: self.tenure.grant().clone(),
            session: self.session.clone(),
        }
    }

    pub(in crate::agent) fn ended(&self) -> Ended {
        Ended {
            lease: self.lease.id.clone(),
            owner: self.owner.clone(),
            token: self.lease.token,
            since: self.since,
        }
    }
}

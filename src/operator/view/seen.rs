//! What the view gives: single objects as they were seen, and what is known of a session.

use std::sync::Arc;

use crate::protocol::observed::Observed;
use crate::protocol::session::{RevokeReason, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::fleet::{Object, ObjectRef};

/// What there is to decide about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A session.
    Session(ObjectRef),
    /// A lock.
    Lock(ObjectRef),
    /// The label of an election's leader, by the election's namespace and name.
    Label(ObjectRef),
    /// The pod that leads an election, by the election's namespace and name.
    Leader(ObjectRef),
    /// The binding of the sidecar's role in a namespace.
    Binding(Arc<str>),
    /// A pod that asks for a sidecar and has none.
    UninjectedPod(ObjectRef),
}

/// A session as it was seen last.
#[derive(Clone, Debug)]
pub struct SeenSession {
    /// It.
    pub session: Arc<Object<Session>>,
    /// What it was seen to be, and since when.
    pub observed: Observed,
    /// When it was last seen to be renewed, or first seen.
    pub alive_at: Moment,
    /// When a lock last ceased to name it, or when it was first seen.
    pub named_until: Moment,
    /// The version whose pod was looked at already.
    pub pod_looked_at: Option<Revision>,
}

/// An object that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The object's own id.
    pub uid: Arc<str>,
    /// What is wrong with it.
    pub why: String,
}

/// What is known of a claimant's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is there, and its own.
    Session(Observed),
    /// It is there, and revoked.
    Revoked {
        /// Why.
        reason: RevokeReason,
        /// By whom.
        by: Arc<str>,
        /// Since when that has been seen.
        since: Moment,
    },
    /// It was seen to be missing, or to be another pod's.
    Missing(Observed),
    /// It was not seen: its lock was told of first, or it is gone.
    Unseen,
}

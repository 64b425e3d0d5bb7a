//! The keys of the work queue, and the observations of single objects.

use std::fmt;
use std::sync::Arc;

use crate::protocol::observed::Observed;
use crate::protocol::session::{RevokeReason, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;
use crate::store::fleet::{Object, ObjectRef};

/// What a plan is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::operator) enum Key {
    /// A session.
    Session(ObjectRef),
    /// A lock.
    Lock(ObjectRef),
    /// The label of an election's leader, by the election's namespace and name.
    Label(ObjectRef),
    /// The pod of an election's leader, by the election's namespace and name.
    Leader(ObjectRef),
    /// The binding of the sidecar's role in a namespace.
    Binding(Arc<str>),
    /// A pod that requests a sidecar and has none.
    UninjectedPod(ObjectRef),
}

impl Key {
    /// Returns the name of its kind in metrics and logs.
    pub(in crate::operator) const fn kind(&self) -> &'static str {
        match self {
            Self::Session(_) => "session",
            Self::Lock(_) => "lock",
            Self::Label(_) => "label",
            Self::Leader(_) => "leader",
            Self::Binding(_) => "binding",
            Self::UninjectedPod(_) => "asking_pod",
        }
    }

    /// Returns the object for logs: `namespace/name`, or the namespace of a binding.
    pub(in crate::operator) fn object(&self) -> &dyn fmt::Display {
        match self {
            Self::Session(object)
            | Self::Lock(object)
            | Self::Label(object)
            | Self::Leader(object)
            | Self::UninjectedPod(object) => object,
            Self::Binding(namespace) => namespace,
        }
    }
}

/// The last observation of a session.
#[derive(Clone, Debug)]
pub(in crate::operator) struct SessionObservation {
    /// The session.
    pub(in crate::operator) session: Arc<Object<Session>>,
    /// Its observed version, and since when.
    pub(in crate::operator) observed: Observed,
    /// When its last renewal was observed, or its first version.
    pub(in crate::operator) alive_at: Moment,
    /// When a lock last named it, or when it was first observed.
    pub(in crate::operator) referenced_until: Moment,
    /// The session's version for which its pod was last read.
    pub(in crate::operator) pod_checked_at: Option<Revision>,
}

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) struct Unreadable {
    /// The object's uid.
    pub(in crate::operator) uid: Arc<str>,
    /// Why it cannot be read.
    pub(in crate::operator) why: String,
}

/// The observed state of a claimant's session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::operator) enum SessionState {
    /// It exists, belongs to the claimant and is not revoked. It may be silent.
    Unrevoked(Observed),
    /// It is revoked.
    Revoked {
        /// The reason.
        reason: RevokeReason,
        /// The pod or user that revoked it.
        by: Arc<str>,
        /// Since when the revocation has been observed.
        since: Moment,
        /// When its last renewal was observed.
        alive_at: Moment,
    },
    /// It was observed not to exist, or to belong to another pod.
    Missing(Observed),
    /// It was not observed: its lock was observed first, or it was deleted.
    Unknown,
}

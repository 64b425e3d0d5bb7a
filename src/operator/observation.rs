//! What the operator observes: the events of its feeds, and the answers to its own requests.

use std::sync::Arc;

use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::token::Revision;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::{FeedEvent, NodeReport, Object, ObjectRef, PodReport};
use crate::store::namespaces::{Binding, UninjectedPod};

/// The kind of object that a feed is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FeedKind {
    Lock,
    Session,
    Pod,
    Node,
    Namespace,
    Account,
    Binding,
    UninjectedPod,
}

impl FeedKind {
    pub(super) const ALL: [Self; 8] = [
        Self::Lock,
        Self::Session,
        Self::Pod,
        Self::Node,
        Self::Namespace,
        Self::Account,
        Self::Binding,
        Self::UninjectedPod,
    ];

    /// Returns the name for metrics and logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Session => "session",
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Namespace => "namespace",
            Self::Account => "account",
            Self::Binding => "binding",
            Self::UninjectedPod => "asking_pod",
        }
    }

    /// Returns whether the operator works without this feed: it only makes one case faster.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self, Self::Node)
    }

    /// Returns whether a replica that cannot watch this feed is not ready: it is of no use to pods.
    pub(super) const fn is_needed_throughout(self) -> bool {
        matches!(self, Self::Lock | Self::Session | Self::Pod)
    }
}

/// What a feed or an action observed. An action observes an object as its feed would.
#[derive(Debug)]
pub(super) enum Observation {
    Lock(FeedEvent<Object<Lock>>),
    Session(FeedEvent<Object<Session>>),
    Pod(FeedEvent<PodReport>),
    Node(FeedEvent<NodeReport>),
    Namespace(FeedEvent<Object<()>>),
    Account(FeedEvent<Object<()>>),
    Binding(FeedEvent<Object<Binding>>),
    UninjectedPod(FeedEvent<Object<UninjectedPod>>),
    /// The pod of this version of a session, if it exists.
    PodOfSession {
        session: ObjectRef,
        version: Revision,
        report: Option<PodReport>,
    },
    /// No pod but that of this grant has the label of an election's leader.
    LabelRemoved {
        election: ObjectRef,
        grant: Option<GrantId>,
        /// Whether the pod of the grant has the label.
        is_labelled: bool,
    },
    /// The pod of this grant has the label, or no longer exists.
    LabelAdded {
        election: ObjectRef,
        grant: GrantId,
    },
    /// Which pods have the label is unknown.
    LabelUnknown(ObjectRef),
    /// The pod of the leading grant; `None` if the pod no longer exists.
    Leader {
        election: ObjectRef,
        grant: GrantId,
        pod: Option<CandidatePod>,
    },
    /// Whether any pod of this namespace has a sidecar.
    Sidecars(Arc<str>, bool),
}

/// Returns the event with which a feed would deliver what a request found: an object, or none.
pub(super) fn event_of<T>(
    object_ref: &ObjectRef,
    found: Option<Object<T>>,
) -> FeedEvent<Object<T>> {
    found.map_or_else(
        || FeedEvent::Deleted(object_ref.clone()),
        |found| FeedEvent::Applied(Box::new(found)),
    )
}

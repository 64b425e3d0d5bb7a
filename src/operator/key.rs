//! The keys of the work queue.

use std::fmt;
use std::sync::Arc;

use crate::store::fleet::ObjectRef;

/// What a plan is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
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
    pub(super) const fn kind(&self) -> &'static str {
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
    pub(super) fn object(&self) -> &dyn fmt::Display {
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

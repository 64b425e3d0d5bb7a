//! What the operator can do about an object, and when: the result of planning it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::protocol::ids::GrantId;
use crate::protocol::incident::IncidentKind;
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::Moment;
use crate::store::cluster::PodIdentity;
use crate::store::fleet::{Object, ObjectRef, ObjectVersion};
use crate::store::namespaces::{Binding, Subject};

/// What to do now, and when to plan again if nothing changes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// What to do now.
    pub(super) action: Option<Action>,
    /// When to plan again.
    pub(super) requeue_at: Option<Moment>,
}

/// An action.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Write the session as revoked, on exactly this version.
    Revoke {
        /// The observed session.
        current: Arc<Object<Session>>,
        /// What to write.
        next: Box<Session>,
    },
    /// Write the lock, on exactly this version.
    Write {
        /// The observed lock.
        current: Arc<Object<Lock>>,
        /// What to write.
        next: Box<Lock>,
        /// The reason of the write.
        why: WriteReason,
    },
    /// Read the kubelet's report of the pod of a session that missed a renewal.
    ReadPod(Arc<Object<Session>>),
    /// Read the session of a lock's holder or waiter, which was not observed.
    ReadSession(ObjectRef),
    /// Delete an idle lock's object.
    DeleteLock(ObjectVersion),
    /// Delete an ended session's object.
    DeleteSession(Arc<Object<Session>>),
    /// Remove the label of an election's leader from all pods but this one.
    RemoveLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The leading grant; `None` without a leader.
        grant: Option<GrantId>,
        /// Its pod, if it has one.
        keep: Option<PodIdentity>,
    },
    /// Add the label to the leader's pod, after it was removed from all others.
    AddLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The leading grant.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
    },
    /// Check the pod of an election's leader. Request the leader's resignation if the pod has not
    /// been Ready since the previous check and another candidate's pod is Ready. The request is
    /// written on exactly this version of the lock.
    CheckLeader {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The observed lock, which is held.
        current: Arc<Object<Lock>>,
        /// The leading grant.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
        /// The pods of the other candidates, in the order of the queue.
        others: Vec<PodIdentity>,
        /// Since when the pod was not Ready at the previous check; `None` if it was Ready, or at
        /// the first check.
        unready_since: Option<Arc<str>>,
    },
    /// Create the binding of the sidecar's role in a namespace.
    CreateBinding {
        /// The namespace.
        namespace: Arc<str>,
        /// Its subjects.
        subjects: BTreeSet<Subject>,
    },
    /// Replace the subjects of a binding, on exactly this version.
    UpdateBinding {
        /// The observed binding.
        current: Arc<Object<Binding>>,
        /// The new subjects.
        subjects: BTreeSet<Subject>,
    },
    /// Check whether any pod of a namespace has a sidecar.
    FindSidecars(Arc<str>),
    /// Delete a binding, on exactly this version.
    DeleteBinding(Arc<Object<Binding>>),
}

/// The reason of a lock's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteReason {
    /// The session of its holder has ended.
    Reclaim {
        /// How it ended.
        kind: IncidentKind,
        /// The last observed renewal of the session.
        last_seen: Moment,
        /// From when on the lock could be taken over.
        due: Moment,
    },
    /// A person ended the grant.
    Force,
    /// The grant has become long-held, or is not any more.
    LongHeld,
}

impl Plan {
    /// Writes a lock, if there is something to write.
    pub(super) fn write(current: &Arc<Object<Lock>>, next: Option<Lock>, why: WriteReason) -> Self {
        next.map_or_else(Self::default, |next| {
            Self::act(Action::Write {
                current: current.clone(),
                next: Box::new(next),
                why,
            })
        })
    }

    pub(super) fn act(action: Action) -> Self {
        Self {
            action: Some(action),
            requeue_at: None,
        }
    }

    pub(super) fn requeue_at(moment: Moment) -> Self {
        Self {
            action: None,
            requeue_at: Some(moment),
        }
    }

    /// Returns the first action, and the earlier time to plan again.
    pub(super) fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self.action.is_some() {
            return self;
        }
        let other = other();
        Self {
            requeue_at: match (self.requeue_at, other.requeue_at) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            ..other
        }
    }
}

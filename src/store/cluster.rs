//! Ports for what only a cluster has: Events, labels of pods, and the readiness of candidates.
//!
//! The holder of a lock does not depend on them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use super::fleet::{Object, ObjectRef};
use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::lock::Lock;
use crate::protocol::time::WallTime;
use crate::protocol::token::Token;

/// The kind of object that an Event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regarding {
    /// A lock.
    Lock,
    /// The binding of the sidecar's role in a namespace.
    Binding,
    /// A pod.
    Pod,
}

/// An Event about a lock or a related object, for `kubectl describe` and `kubectl events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name of the Event, derived from its content, so that a repetition finds it.
    pub name: Arc<str>,
    /// The kind of the object.
    pub regarding: Regarding,
    /// The object that it is about.
    pub object_ref: ObjectRef,
    /// The uid of that object.
    pub uid: Arc<str>,
    /// The related pod, by name and, if known, uid.
    pub pod: Option<(Arc<str>, Option<Arc<str>>)>,
    /// Whether a user should look at it.
    pub is_warning: bool,
    /// What happened, as one word.
    pub reason: &'static str,
    /// What was done, as one word.
    pub action: &'static str,
    /// What happened, as text.
    pub message: String,
    /// The time, informational.
    pub at: WallTime,
}

/// The store of Events, which keeps them for about an hour.
#[async_trait]
pub trait EventStore: Send + Sync + 'static {
    /// Returns the names of the operator's own Events.
    async fn list_own(&self) -> Result<BTreeSet<ObjectRef>, StoreError>;

    /// Writes an Event. An existing one of that name is not changed.
    async fn write(&self, note: &Event) -> Result<(), StoreError>;
}

/// The maximum length of [`RefusedWrite::guard`].
pub const GUARD_MAX_BYTES: usize = 128;

/// A write that a guarded resource refused, because its token is stale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// The resource of the token.
    pub resource: Resource,
    /// The token of the write.
    pub token: Token,
    /// The newest token that the guarded resource has seen, if the report has it.
    pub latest: Option<Token>,
    /// The guarded resource, in words.
    pub guard: Option<Arc<str>>,
}

/// The Events of an agent about refused writes.
#[async_trait]
pub trait RefusalEvents: Send + Sync + 'static {
    /// Writes the Event of a refused write. `latest` is the newest known token of the lock. There is one Event for each
    /// token of a lock: an existing one is not changed.
    async fn write(
        &self,
        refused: &RefusedWrite,
        latest: Token,
        at: WallTime,
    ) -> Result<(), StoreError>;
}

/// A pod, by name and uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace and name.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
}

/// One label of pods, whose value is always `true`.
#[async_trait]
pub trait PodLabels: Send + Sync + 'static {
    /// Returns the pods of a namespace that have the label, by a consistent list.
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError>;

    /// Adds the label to a pod. `NotFound` or `Conflict` if it is another pod now.
    async fn add(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError>;

    /// Removes the label from a pod. `NotFound` or `Conflict` if it is another pod now.
    async fn remove(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError>;
}

/// The pod of an election candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidatePod {
    /// Whether its annotation `elect-always` names the election, and no gate waits for it.
    pub elects_always: bool,
    /// Since when it is not Ready, as its object has it; only to compare. `None` while it is Ready.
    pub unready_since: Option<Arc<str>>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl CandidatePod {
    /// Returns whether it is Ready and not being deleted.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.unready_since.is_none() && !self.is_deleted
    }
}

/// The pods of election candidates.
#[async_trait]
pub trait Candidates: Send + Sync + 'static {
    /// Returns the pod of a candidate; `None` if this pod no longer exists.
    async fn pod(
        &self,
        pod: &PodIdentity,
        election: &str,
    ) -> Result<Option<CandidatePod>, StoreError>;

    /// Requests that the holder of this grant resigns, if the lock is still at this version.
    async fn request_resignation(
        &self,
        current: &Object<Lock>,
        grant: &GrantId,
        reason: &str,
    ) -> Result<(), StoreError>;
}

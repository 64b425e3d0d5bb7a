//! The operator's other ports: what it tells people, the labels of pods, and candidates' readiness.
//!
//! Only a cluster has them; nothing about who holds a lock hangs on either.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::StoreError;
use super::fleet::{Object, ObjectRef};
use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::time::WallTime;

/// What kind of object a note is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regarding {
    /// A lock.
    Lock,
    /// The binding of the sidecar's role in a namespace.
    Binding,
    /// A pod.
    Pod,
}

/// Something that happened to a lock, or to what the operator looks after beside them, for `kubectl describe` and `kubectl events`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The name of its object, made from what happened, so that a repetition finds it there.
    pub name: Arc<str>,
    /// What it is about.
    pub regarding: Regarding,
    /// Where that is.
    pub object_ref: ObjectRef,
    /// That object's own id.
    pub uid: Arc<str>,
    /// The pod that has to do with it, by name and, where it is known, uid.
    pub pod: Option<(Arc<str>, Option<Arc<str>>)>,
    /// Whether somebody should look.
    pub is_warning: bool,
    /// What happened, in one word.
    pub reason: &'static str,
    /// What was done, in one word.
    pub action: &'static str,
    /// What happened, in words.
    pub message: String,
    /// When, for people.
    pub at: WallTime,
}

/// Where notes are kept, for an hour or so.
#[async_trait]
pub trait EventStore: Send + Sync + 'static {
    /// Where the operator's own notes are, by namespace and name.
    async fn list_own(&self) -> Result<BTreeSet<ObjectRef>, StoreError>;

    /// Writes a note. One of that name that is there already is left as it is.
    async fn write(&self, note: &Event) -> Result<(), StoreError>;
}

/// A pod that has a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Where it is.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
}

/// One label of pods, whose value is always `true`.
#[async_trait]
pub trait PodLabels: Send + Sync + 'static {
    /// The pods of a namespace that have it, by a consistent listing.
    async fn list_pods(&self, namespace: &str, key: &str) -> Result<Vec<PodIdentity>, StoreError>;

    /// Gives it to a pod, if the pod is still this one. `NotFound` or `Conflict` when it is not.
    async fn add(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError>;

    /// Takes it from a pod, if the pod is still this one. `NotFound` or `Conflict` when it is not.
    async fn remove(&self, pod: &PodIdentity, key: &str) -> Result<(), StoreError>;
}

/// A pod that runs for an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CandidatePod {
    /// Whether its annotation `elect-always` names the election, and no gate waits for it.
    pub elects_always: bool,
    /// Since when it is not Ready, as its object has it; to be compared, and not calculated with. None while it
    /// is Ready.
    pub unready_since: Option<Arc<str>>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl CandidatePod {
    /// Whether it is Ready, and is to stay.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.unready_since.is_none() && !self.is_deleted
    }
}

/// The pods that run for elections.
#[async_trait]
pub trait Candidates: Send + Sync + 'static {
    /// A pod that runs for the election of this name; none where this very pod is gone.
    async fn pod(
        &self,
        pod: &PodIdentity,
        election: &str,
    ) -> Result<Option<CandidatePod>, StoreError>;

    /// Asks the holder of this grant to resign, if the lock is still at this version.
    async fn request_resignation(
        &self,
        current: &Object<Lock>,
        grant: &GrantId,
        reason: &str,
    ) -> Result<(), StoreError>;
}

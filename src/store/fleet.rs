//! The port of the operator: all locks and sessions of all namespaces, told as they change.
//!
//! A feed never ends. It says what there is, then what changes; where it lost the thread it says
//! everything anew. It may be late, and nothing may be concluded from its silence: who acts on
//! what it told writes by compare-and-swap, or asks first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::{StoreError, Stored};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::WallTime;
use crate::protocol::token::{Revision, Token};

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An object and where it is.
#[derive(Clone, Debug)]
pub struct Object<T> {
    /// Where.
    pub object_ref: ObjectRef,
    /// The object's own id: one that is made anew under the same name has another.
    pub uid: Arc<str>,
    /// Whether somebody deleted it, and a finalizer keeps it.
    pub is_deleted: bool,
    /// Whether it is a lock under another name than agents give the lock of its resource. They
    /// never look at it.
    pub is_misnamed: bool,
    /// When a field of it was last set, by the store's own clock and where it says so. A write that
    /// only removes fields does not count.
    pub set_at: Option<WallTime>,
    /// The object.
    pub stored: Stored<T>,
}

impl<T> Object<T> {
    /// This object, at this version.
    #[must_use]
    pub fn object_version(&self) -> ObjectVersion {
        ObjectVersion {
            object_ref: self.object_ref.clone(),
            uid: self.uid.clone(),
            version: self.stored.version,
        }
    }
}

/// One version of one object: what a delete compares with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Where it is.
    pub object_ref: ObjectRef,
    /// The object's own id.
    pub uid: Arc<str>,
    /// Its version.
    pub version: Revision,
}

/// A lock that cannot be read, as far as it is certain that it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableFreeLock {
    /// Its version.
    pub version: Revision,
    /// Its token.
    pub token: Token,
    /// How long its spec says that it is to be kept.
    pub retain: Option<Duration>,
    /// Whether somebody deleted it, and a finalizer keeps it.
    pub is_deleted: bool,
    /// As in [`Object`].
    pub set_at: Option<WallTime>,
}

/// What a feed tells.
#[derive(Clone, Debug)]
pub enum FeedEvent<T> {
    /// All that there is follows. What is not among it by [`FeedEvent::ListDone`] is gone.
    ListStarted,
    /// This is there, newly or changed.
    Applied(Box<T>),
    /// This is there and makes no sense.
    Unreadable {
        /// Where.
        object_ref: ObjectRef,
        /// The object's own id.
        uid: Arc<str>,
        /// What is wrong with it.
        why: String,
        /// What is certain of it, where it is a lock that is free.
        free: Option<Box<UnreadableFreeLock>>,
    },
    /// This is not there any more.
    Deleted(ObjectRef),
    /// That was all.
    ListDone,
    /// The feed cannot tell just now, and tries on by itself.
    Interrupted(StoreError),
}

/// What is told, in the order of each object's revisions.
pub type Feed<T> = BoxStream<'static, FeedEvent<T>>;

/// What the kubelet reports of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReport {
    /// Where it is.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
    /// Whether its phase is Succeeded or Failed.
    pub is_terminal: bool,
    /// Whether somebody deletes it.
    pub is_deleted: bool,
    /// Whether its end was written by another than the kubelet: the garbage collector of pods, or
    /// a controller that gave its node up.
    pub is_presumed: bool,
    /// How many containers its spec has, of all kinds that run while or before it does.
    pub declared: usize,
    /// What is reported of them.
    pub containers: Vec<ContainerReport>,
}

/// What the kubelet reports of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerReport {
    /// It runs, or waits to.
    Alive,
    /// It ended.
    Terminated,
    /// The kubelet lost sight of it, and says that it ended.
    Unknown,
}

/// All locks and sessions, and the pods that hold them.
#[async_trait]
pub trait FleetStore: Send + Sync + 'static {
    /// All locks.
    fn locks(&self) -> Feed<Object<Lock>>;

    /// All sessions.
    fn sessions(&self) -> Feed<Object<Session>>;

    /// The pods whose phase says that they ended, and no others.
    fn ended_pods(&self) -> Feed<PodReport>;

    /// The revision of the store, by a consistent listing of locks.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// A lock, as of now; none when there is none.
    async fn lock(&self, object_ref: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError>;

    /// A session, as of now; none when there is none.
    async fn session(&self, object_ref: &ObjectRef) -> Result<Option<Object<Session>>, StoreError>;

    /// A pod, as of now; none when there is none.
    async fn pod(&self, object_ref: &ObjectRef) -> Result<Option<PodReport>, StoreError>;

    /// Compare-and-swap on the version of `current`.
    async fn update_lock(
        &self,
        current: &Object<Lock>,
        next: &Lock,
    ) -> Result<Object<Lock>, StoreError>;

    /// Compare-and-swap on the version of `current`.
    async fn update_session(
        &self,
        current: &Object<Session>,
        next: &Session,
    ) -> Result<Object<Session>, StoreError>;

    /// Deletes the object if it is still this one, at this version. `Conflict` when it is not,
    /// `NotFound` when there is none.
    async fn delete_lock(&self, current: &ObjectVersion) -> Result<(), StoreError>;

    /// Deletes the object if it is still this one, at this version. `Conflict` when it is not,
    /// `NotFound` when there is none.
    async fn delete_session(&self, current: &Object<Session>) -> Result<(), StoreError>;
}

//! The operator's port to all locks and sessions of all namespaces, as feeds of changes.
//!
//! A feed never ends. It lists everything and then delivers changes; after an interruption it lists
//! again. It may be late, and its silence proves nothing: the operator acts on an event by
//! compare-and-swap, or reads first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};

use super::{StoreError, Stored};
use crate::protocol::lock::Lock;
use crate::protocol::session::Session;
use crate::protocol::time::WallTime;
use crate::protocol::token::{Revision, Token};

/// A reference to an object: its namespace and name.
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

/// An object, with its reference.
#[derive(Clone, Debug)]
pub struct Object<T> {
    /// Its namespace and name.
    pub object_ref: ObjectRef,
    /// Its uid: a recreated object of the same name has another.
    pub uid: Arc<str>,
    /// Whether it is being deleted, and a finalizer keeps it.
    pub is_deleted: bool,
    /// Whether it is a lock whose name is not the one of its resource. Agents never read such a
    /// lock.
    pub is_misnamed: bool,
    /// When a field was last set, by the store's own clock, if it is known. A write that only
    /// removes fields does not count.
    pub set_at: Option<WallTime>,
    /// The content.
    pub stored: Stored<T>,
}

impl<T> Object<T> {
    /// Returns the reference to this version.
    #[must_use]
    pub fn object_version(&self) -> ObjectVersion {
        ObjectVersion {
            object_ref: self.object_ref.clone(),
            uid: self.uid.clone(),
            version: self.stored.version,
        }
    }
}

/// One version of one object: the preconditions of a delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Its namespace and name.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
    /// Its version.
    pub version: Revision,
}

/// What is known of an unreadable lock that is certainly free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableFreeLock {
    /// Its version.
    pub version: Revision,
    /// Its token.
    pub token: Token,
    /// How long it is kept, according to its spec.
    pub retain: Option<Duration>,
    /// Whether it is being deleted, and a finalizer keeps it.
    pub is_deleted: bool,
    /// As in [`Object`].
    pub set_at: Option<WallTime>,
}

/// An event of a feed.
#[derive(Clone, Debug)]
pub enum FeedEvent<T> {
    /// A list of all objects follows. An object that is not in it by [`FeedEvent::ListDone`] was
    /// deleted.
    ListStarted,
    /// The object exists, and is new or changed.
    Applied(Box<T>),
    /// The object exists and cannot be read.
    Unreadable {
        /// Its namespace and name.
        object_ref: ObjectRef,
        /// Its uid.
        uid: Arc<str>,
        /// Why it cannot be read.
        why: String,
        /// What is known of it, if it is a lock that is certainly free.
        free: Option<Box<UnreadableFreeLock>>,
    },
    /// The object does not exist any more.
    Deleted(ObjectRef),
    /// The list is complete.
    ListDone,
    /// The feed is interrupted, and retries.
    Interrupted(StoreError),
}

/// A stream of events, in the order of each object's revisions.
pub type Feed<T> = BoxStream<'static, FeedEvent<T>>;

/// The kubelet's report of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodReport {
    /// Its namespace and name.
    pub object_ref: ObjectRef,
    /// Its uid.
    pub uid: Arc<str>,
    /// Whether its phase is Succeeded or Failed.
    pub is_terminal: bool,
    /// Whether it is being deleted.
    pub is_deleted: bool,
    /// Whether its end was not reported by the kubelet, but by the pod garbage collector, or by a
    /// controller that considers its node lost.
    pub is_presumed: bool,
    /// The number of containers in its spec, including init and ephemeral ones.
    pub declared: usize,
    /// The reports of the containers.
    pub containers: Vec<ContainerReport>,
}

/// The taint by which an administrator affirms that a node is shut down. Kubernetes ignores its value
/// and effect, too.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// What a node says about whether it is out of service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it has the taint [`OUT_OF_SERVICE_TAINT`].
    pub is_tainted: bool,
    /// Whether its condition `Ready` is true. The node controller sets it to unknown when the kubelet
    /// is silent.
    pub is_ready: bool,
}

/// The kubelet's report of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerReport {
    /// It runs, or waits to run.
    Alive,
    /// It has ended.
    Terminated,
    /// The kubelet lost track of it, and reports its end.
    Unknown,
}

/// All locks and sessions, and their pods.
#[async_trait]
pub trait FleetStore: Send + Sync + 'static {
    /// Returns a feed of all locks.
    fn locks(&self) -> Feed<Object<Lock>>;

    /// Returns a feed of all sessions.
    fn sessions(&self) -> Feed<Object<Session>>;

    /// Returns a feed of the pods in a terminal phase.
    fn ended_pods(&self) -> Feed<PodReport>;

    /// Returns a feed of all nodes, which lists them again after each interruption. The default is a
    /// store without nodes.
    fn nodes(&self) -> Feed<NodeReport> {
        let listed = [FeedEvent::ListStarted, FeedEvent::ListDone];
        stream::iter(listed).chain(stream::pending()).boxed()
    }

    /// Returns the revision of the store, by a consistent list of locks.
    async fn revision(&self) -> Result<Revision, StoreError>;

    /// Returns a current lock; `None` if it does not exist.
    async fn lock(&self, object_ref: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError>;

    /// Returns a current session; `None` if it does not exist.
    async fn session(&self, object_ref: &ObjectRef) -> Result<Option<Object<Session>>, StoreError>;

    /// Returns a current pod; `None` if it does not exist.
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

    /// Deletes the object if it still has this uid and version. `Conflict` if it has not,
    /// `NotFound` if it does not exist.
    async fn delete_lock(&self, current: &ObjectVersion) -> Result<(), StoreError>;

    /// Deletes the object if it still has this uid and version. `Conflict` if it has not,
    /// `NotFound` if it does not exist.
    async fn delete_session(&self, current: &Object<Session>) -> Result<(), StoreError>;
}

//! The part of the cluster that a command has read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::Value;

use crate::crd::lock::{DistributedLockSpec, DistributedLockStatus};
use crate::crd::session::{LockSessionSpec, LockSessionStatus};

/// Something that may be unknown because the user must not read it.
#[derive(Clone, Debug, PartialEq)]
pub enum Known<T> {
    /// It was read.
    Seen(T),
    /// It was not, for this reason, which names the missing right.
    Unknown(String),
}

impl<T> Known<T> {
    /// Returns what was read.
    pub const fn seen(&self) -> Option<&T> {
        match self {
            Self::Seen(value) => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// Returns why it is unknown.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Seen(_) => None,
            Self::Unknown(why) => Some(why),
        }
    }
}

/// A lock object, as far as it can be read.
#[derive(Clone, Debug, PartialEq)]
pub struct LockSeen {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// Its uid: a recreated object has another one.
    pub uid: String,
    /// When the API server created the object.
    pub created: Option<Timestamp>,
    /// Whether the object is being deleted.
    pub is_being_deleted: bool,
    /// What users set. Only the resource is certain to be there.
    pub spec: DistributedLockSpec,
    /// Holder and queue; the error if the status cannot be read.
    pub status: Result<DistributedLockStatus, String>,
}

impl LockSeen {
    /// Reads an object. One that cannot be read has the error in its status.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let resource = object["spec"]["resource"].as_str().unwrap_or_default();
        let nothing_set = || DistributedLockSpec {
            resource: resource.to_owned(),
            retain_seconds: None,
            long_held_seconds: None,
            release_request: None,
        };
        let status = match &object["status"] {
            // A lock that was created and never held.
            Value::Null => Ok(DistributedLockStatus::default()),
            status => DistributedLockStatus::deserialize(status),
        };
        let metadata = &object["metadata"];
        Self {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            uid: text(&metadata["uid"]),
            created: time(&metadata["creationTimestamp"]),
            is_being_deleted: !metadata["deletionTimestamp"].is_null(),
            spec: DistributedLockSpec::deserialize(&object["spec"])
                .unwrap_or_else(|_| nothing_set()),
            status: status.map_err(|error| format!("status: {error}")),
        }
    }

    /// Returns the session that holds the lock; `None` if it is free or cannot be read.
    #[must_use]
    pub fn holder_session(&self) -> Option<&str> {
        let holder = self.status.as_ref().ok()?.holder.as_ref()?;
        Some(&holder.session)
    }
}

/// A session object.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionSeen {
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// When the API server created the object.
    pub created: Option<Timestamp>,
    /// The last renewal, as the API server has stamped it in the `managedFields`; never older than `created`. `None`
    /// if the server keeps no stamps.
    pub renewed: Option<Timestamp>,
    /// The agent that the session belongs to.
    pub spec: LockSessionSpec,
    /// The renewals, and the end.
    pub status: LockSessionStatus,
}

impl SessionSeen {
    /// Reads an object.
    ///
    /// # Errors
    /// The field that cannot be read.
    pub fn read(object: &Value) -> Result<Self, serde_json::Error> {
        let metadata = &object["metadata"];
        let stamps = metadata["managedFields"].as_array();
        // A renewal changes a field of the status, and so the stamp of its writer.
        let stamps = stamps.map(|entries| {
            let of_status = entries.iter().filter(|one| one["subresource"] == "status");
            of_status.filter_map(|entry| time(&entry["time"])).max()
        });
        let created = time(&metadata["creationTimestamp"]);
        Ok(Self {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            created,
            renewed: stamps.flatten().max(created),
            spec: LockSessionSpec::deserialize(&object["spec"])?,
            status: match &object["status"] {
                Value::Null => LockSessionStatus::default(),
                status => LockSessionStatus::deserialize(status)?,
            },
        })
    }
}

/// A pod, as far as it matters for its locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSeen {
    /// Its uid: a recreated pod has another one.
    pub uid: String,
    /// Its phase, in Kubernetes' words: `Running`, `Pending`, …
    pub phase: String,
    /// Whether it is being deleted.
    pub is_terminating: bool,
    /// The node that it runs on; empty before it was scheduled.
    pub node: String,
    /// Why a container of it waits, if one does: `CrashLoopBackOff`, `ImagePullBackOff`, …
    pub waiting: Option<String>,
}

impl PodSeen {
    /// Reads an object.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let containers = object["status"]["containerStatuses"].as_array();
        let waiting = containers.and_then(|all| {
            let mut reasons = all.iter().map(|one| &one["state"]["waiting"]["reason"]);
            reasons.find_map(Value::as_str).map(str::to_owned)
        });
        Self {
            uid: text(&object["metadata"]["uid"]),
            phase: text(&object["status"]["phase"]),
            is_terminating: !object["metadata"]["deletionTimestamp"].is_null(),
            node: text(&object["spec"]["nodeName"]),
            waiting,
        }
    }
}

/// A node, as far as it matters for the locks of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSeen {
    /// The status of its condition `Ready`: `True`, `False` or `Unknown`.
    pub ready: String,
    /// Whether an administrator has affirmed, by the taint `out-of-service`, that it is shut down.
    pub is_out_of_service: bool,
}

impl NodeSeen {
    /// Reads an object.
    #[must_use]
    pub fn read(object: &Value) -> Self {
        let each = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let conditions = each(&object["status"]["conditions"]);
        let ready = conditions.iter().find(|one| one["type"] == "Ready");
        let taints = each(&object["spec"]["taints"]);
        Self {
            ready: ready.map_or_else(|| "Unknown".to_owned(), |one| text(&one["status"])),
            is_out_of_service: taints
                .iter()
                .any(|taint| taint["key"] == "node.kubernetes.io/out-of-service"),
        }
    }
}

/// The active replica of the operator: the leader of its election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorSeen {
    /// This pod leads, and its session is renewed.
    Active {
        /// The namespace of the operator.
        namespace: String,
        /// The pod that leads.
        pod: String,
        /// Its version.
        version: String,
    },
    /// None leads; this is why.
    Absent(String),
}

/// What a command has read, and when.
#[derive(Clone, Debug)]
pub struct World {
    /// The API server's time.
    pub now: Timestamp,
    /// The locks, all of their namespaces.
    pub locks: Vec<LockSeen>,
    /// The sessions, by namespace and name.
    pub sessions: Known<BTreeMap<(String, String), SessionSeen>>,
    /// The pods that were asked for, by namespace and name; `None` if it does not exist.
    pub pods: BTreeMap<(String, String), Known<Option<PodSeen>>>,
    /// The nodes that were asked for, by name.
    pub nodes: BTreeMap<String, Known<Option<NodeSeen>>>,
    /// Whether an operator acts.
    pub operator: Known<OperatorSeen>,
}

impl World {
    /// Returns one of which nothing was read yet.
    #[must_use]
    pub fn empty(now: Timestamp) -> Self {
        let not_read = || "not read".to_owned();
        Self {
            now,
            locks: Vec::new(),
            sessions: Known::Unknown(not_read()),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            operator: Known::Unknown(not_read()),
        }
    }

    /// Returns the locks of a namespace.
    pub fn of_namespace(&self, namespace: &str) -> impl Iterator<Item = &LockSeen> {
        let all = self.locks.iter();
        all.filter(move |lock| lock.namespace == namespace)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Reads a time of RFC 3339.
fn time(value: &Value) -> Option<Timestamp> {
    value.as_str().and_then(|text| text.parse().ok())
}

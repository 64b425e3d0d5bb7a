//! `DistributedLock` as the API server stores it.
//!
//! Times are strings here: they are informational, nothing is decided by them, and one that cannot
//! be read must not make a lock unreadable. Incident kinds are strings for the same reason: a
//! newer version may write kinds that this one does not know.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{REASON_MAX, SPEC_SECONDS_MAX, rules};
use crate::protocol::completed::{COMPLETED_MAX, COMPLETION_KEY_MAX_BYTES};
use crate::protocol::ids::{
    METADATA_MAX_ENTRIES, METADATA_VALUE_MAX_BYTES, OWNER_ID_MAX_BYTES, RESOURCE_MAX_BYTES,
};

/// The resource of a lock and the settings of its object. Agents set only `resource`, when they create
/// the object; the other fields are set by users and their tools.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "DistributedLock",
    namespaced,
    shortname = "dlock",
    category = "leasehold",
    status = "DistributedLockStatus",
    derive = "PartialEq",
    doc = "The lock of a resource: its holder, its fencing token and its queue. Created and \
           written by Leasehold's agents; read it with `kubectl get dlock`. Deleting the object of \
           a held lock or editing its status breaks mutual exclusion; to end a grant, stop its app \
           or delete its pod.",
    selectable = ".status.holder.session",
    printcolumn(
        name = "Holder",
        type_ = "string",
        json_path = ".status.holder.ownerId",
        description = "The holder; empty if the lock is free"
    ),
    printcolumn(
        name = "Pod",
        type_ = "string",
        json_path = ".status.holder.pod",
        description = "The pod of the holder"
    ),
    printcolumn(
        name = "Token",
        type_ = "integer",
        json_path = ".status.token",
        description = "The first fencing token of the current or last grant"
    ),
    printcolumn(
        name = "Held-Since",
        type_ = "date",
        json_path = ".status.lease.acquiredAt",
        description = "How long the holder has had it"
    ),
    printcolumn(
        name = "Resource",
        type_ = "string",
        json_path = ".spec.resource",
        description = "What the lock guards"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "How long ago the lock object was made"
    ),
    validation = rules::resource_fits(),
    validation = rules::resource_never_changes(),
    validation = rules::token_never_goes_back(),
    validation = rules::new_grant_has_larger_token(),
    validation = rules::grant_keeps_its_holder(),
    validation = rules::holder_and_lease_together(),
    validation = rules::free_lock_has_no_waiters(),
    validation = rules::no_grant_waits_for_itself(),
    validation = rules::one_entry_per_session(),
    validation = rules::metadata_keys_fit(),
)]
#[serde(rename_all = "camelCase")]
pub struct DistributedLockSpec {
    /// The resource that apps lock: 1 to 512 bytes of printable text, like
    /// `tenant_123:billing-close:2026-04`. Immutable.
    #[schemars(
        length(min = 1, max = RESOURCE_MAX_BYTES),
        extend("x-kubernetes-validations" = [rules::resource_is_printable()])
    )]
    pub resource: String,

    /// How many seconds a free and idle lock object is kept before the operator deletes it. Default:
    /// the operator's setting (--retain-seconds), and at least seven days if `status.completed` has keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = SPEC_SECONDS_MAX))]
    pub retain_seconds: Option<i32>,

    /// A lock that is held longer than this many seconds gets the condition `LongHeld`, an Event and
    /// a metric. Its holder is not affected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = SPEC_SECONDS_MAX))]
    pub long_held_seconds: Option<i32>,

    /// Asks or forces the holder to release the lock. Only users with the verb `force-release` on
    /// distributedlocks may write it, and the operator, to ask the leader of an election to resign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_request: Option<ReleaseRequest>,
}

/// A recorded request to end a grant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseRequest {
    /// The grant to end: its `status.lease.id`. A request for a grant that has ended has no effect.
    #[schemars(length(min = 1, max = 64))]
    pub lease_id: String,
    /// `Ask` notifies the app, which then decides. `Force` ends the grant even if its app is still
    /// working: from then on only the fencing token protects the resource.
    pub mode: ReleaseMode,
    /// The reason. It is recorded in the lock's incidents, the Event and the audit log.
    #[schemars(length(min = 1, max = REASON_MAX))]
    pub reason: String,
    /// The user who writes the request, by the name that the API server has authenticated.
    #[schemars(length(min = 1, max = 512))]
    pub actor: String,
}

/// The mode of a release request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReleaseMode {
    /// The app is notified and decides.
    Ask,
    /// The grant ends.
    Force,
}

/// The holder of the lock and its queue. Written by agents and the operator; every write carries the
/// resourceVersion that it is based on, except one that only adds a waiter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DistributedLockStatus {
    /// The holder. Absent if the lock is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Holder>,

    /// The current grant. Absent if the lock is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseRecord>,

    /// The first fencing token of the current or last grant, which owns it and the 999 after it. Every
    /// grant has larger tokens than the previous one. Never removed, never decreased.
    #[schemars(range(min = 0, max = 9_007_199_254_739_992_i64))]
    pub token: i64,

    /// The queue, oldest entry first (in an election preferred candidates before all others), with at
    /// most one entry per session. The lock is handed over to the first waiter in the same write that
    /// releases it, so a free lock has no waiters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    // As a map by session, each entry has its own managedFields: at 32 waiters half of what a write
    // costs the API server.
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "atomic"))]
    pub waiters: Vec<WaiterRecord>,

    /// The last 8 incidents, oldest first: grants that ended without a release by their holder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "atomic"))]
    pub incidents: Vec<IncidentRecord>,

    /// The last 32 keys under which the guarded work has succeeded, oldest first. A holder records a key
    /// before it releases the lock; later holders skip work whose key is here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = COMPLETED_MAX), extend("x-kubernetes-list-type" = "atomic"))]
    pub completed: Vec<CompletionRecord>,

    /// The conditions of the lock. `LongHeld` is present while one grant has lasted longer than
    /// `longHeldSeconds`: the operator writes it once, and it is removed with the grant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 8),
        extend("x-kubernetes-list-type" = "map"),
        extend("x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<ConditionRecord>,

    /// The number of grants since the object was created.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub transitions: i64,
}

/// The holder of a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// Written as a whole: managedFields that name each field would be longer than the fields.
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Holder {
    /// The name that the app gave.
    #[schemars(length(max = OWNER_ID_MAX_BYTES))]
    pub owner_id: String,
    /// The pod whose agent holds the lock.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The uid of that pod, verified by its token. Empty for an agent outside of a pod.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The node of the pod, if its agent knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// The `LockSession` object that the grant belongs to: when the session ends, the grant ends.
    #[schemars(length(min = 1, max = 253))]
    pub session: String,
    /// The TTL of that session, with which it expires even after its object was deleted.
    #[schemars(range(min = 3, max = 3600))]
    pub session_ttl_seconds: i32,
    /// Informational key-value pairs of the app, at most 16 entries.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        extend("maxProperties" = METADATA_MAX_ENTRIES),
        extend("additionalProperties" = {"type": "string", "maxLength": METADATA_VALUE_MAX_BYTES})
    )]
    pub metadata: BTreeMap<String, String>,
}

/// The current grant of a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
// Written as a whole: managedFields that name each field would be longer than the fields.
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LeaseRecord {
    /// The id of the grant. The id of an app's lease is this id, a dot and a number.
    #[schemars(length(min = 1, max = 64))]
    pub id: String,
    /// When it was written, by the wall clock of the agent.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub acquired_at: String,
    /// Whether the agent keeps the grant while its app does not use it. It is handed over to the first
    /// waiter.
    #[serde(default)]
    pub kept: bool,
}

/// An entry in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaiterRecord {
    /// The id that the grant will have.
    #[schemars(length(min = 1, max = 64))]
    pub lease_id: String,
    /// The name that the app gave.
    #[schemars(length(max = OWNER_ID_MAX_BYTES))]
    pub owner_id: String,
    /// The pod whose agent waits.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The uid of that pod, verified by its token. Empty for an agent outside of a pod.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The `LockSession` object that the entry belongs to: when the session ends, the entry is removed.
    #[schemars(length(min = 1, max = 253))]
    pub session: String,
    /// The TTL of that session.
    #[schemars(range(min = 3, max = 3600))]
    pub session_ttl_seconds: i32,
    /// When it was written, by the wall clock of the agent.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub queued_at: String,
    /// Whether it is queued before waiters that are not preferred. Only in elections.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub preferred: bool,
}

/// The end of a grant without a release by its holder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IncidentRecord {
    /// The time, by the wall clock of the writer.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub at: String,
    /// The kind: `Expired` (its session was not renewed in time), `PodEnded`, `ForceReleased` (a person
    /// ended it), `ReleasedOnRequest` (a person requested it, the app released).
    #[schemars(length(max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub kind: String,
    /// The grant that ended: its `status.lease.id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    pub lease_id: Option<String>,
    /// The first fencing token of the grant that ended.
    #[schemars(range(min = 0, max = 9_007_199_254_739_992_i64))]
    pub token: i64,
    /// The owner who held the lock.
    #[schemars(length(max = OWNER_ID_MAX_BYTES))]
    pub owner_id: String,
    /// The holder's pod.
    #[schemars(length(max = 253))]
    pub pod: String,
    /// The pod or user that ended the grant.
    #[schemars(length(max = 512))]
    pub actor: String,
    /// The reason, as text.
    #[schemars(length(max = REASON_MAX))]
    pub reason: String,
}

/// Work that has succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletionRecord {
    /// The name of the work: 1 to 128 printable ASCII characters.
    #[schemars(
        length(min = 1, max = COMPLETION_KEY_MAX_BYTES),
        regex(pattern = "^[ -~]*[!-~][ -~]*$")
    )]
    pub key: String,
    /// When it was recorded, by the wall clock of the agent.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub completed_at: String,
    /// The fencing token that the work had.
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub token: i64,
    /// The owner who held the lock.
    #[schemars(length(max = OWNER_ID_MAX_BYTES))]
    pub owner_id: String,
}

/// A condition, in the form of Kubernetes' own kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConditionRecord {
    /// The type of the condition: `LongHeld`.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub r#type: String,
    /// The status of the condition: `True`, `False` or `Unknown`.
    #[schemars(length(max = 7), regex(pattern = "^(True|False|Unknown)$"))]
    pub status: String,
    /// The reason, as one word.
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub reason: String,
    /// The reason, as text.
    #[schemars(length(max = REASON_MAX))]
    pub message: String,
    /// The time of the last transition, by the wall clock of the operator.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub last_transition_time: String,
}

//! `LockSession` as the API server stores it.
//!
//! A kind of our own and not a `coordination.k8s.io` Lease, because RBAC cannot narrow rights on
//! Leases to some of them, and every kubelet's and controller's heartbeat is one.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{REASON_MAX, rules};

/// The agent that the session belongs to. Immutable.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "leasehold.dev",
    version = "v1alpha1",
    kind = "LockSession",
    namespaced,
    shortname = "lsession",
    category = "leasehold",
    status = "LockSessionStatus",
    derive = "PartialEq",
    doc = "The session of a running agent, which renews it. When it ends, all locks of the agent are \
           released. Created, renewed and ended by Leasehold's agents; deleting a session does not \
           release its locks any sooner.",
    printcolumn(
        name = "Pod",
        type_ = "string",
        json_path = ".spec.pod",
        description = "The pod of the agent"
    ),
    printcolumn(
        name = "TTL",
        type_ = "integer",
        json_path = ".spec.ttlSeconds",
        description = "How many seconds after its last renewal it expires"
    ),
    printcolumn(
        name = "Renewed",
        type_ = "date",
        json_path = ".status.renewedAt",
        description = "How long ago it was last renewed"
    ),
    printcolumn(
        name = "Revoked",
        type_ = "string",
        json_path = ".status.revoked.reason",
        description = "Why it ended; empty while it lives"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp",
        description = "How long ago it began"
    ),
    validation = rules::session_never_changes(),
    validation = rules::revoked_is_final(),
    validation = rules::revoked_is_not_renewed(),
    validation = rules::renewals_never_go_back(),
)]
#[serde(rename_all = "camelCase")]
pub struct LockSessionSpec {
    /// The pod of the agent.
    #[schemars(length(min = 1, max = 253))]
    pub pod: String,
    /// The uid of that pod, verified by its token. Empty for an agent outside of a pod.
    #[schemars(length(max = 64))]
    pub pod_uid: String,
    /// The node of the pod, if the agent knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// How many seconds after its last renewal the session expires. Its agent stops using it a little
    /// earlier, and others may revoke it a little later.
    #[schemars(range(min = 3, max = 3600))]
    pub ttl_seconds: i32,
    /// The version of the agent that created it.
    #[schemars(length(max = 64))]
    pub agent_version: String,
}

/// The renewals of the session, and its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockSessionStatus {
    /// The number of renewals. Every renewal increases it, so that each one changes the object.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub renewals: i64,
    /// When it was last renewed, by its agent's wall clock. Informational: expiry depends on how long the
    /// object has not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub renewed_at: Option<String>,
    /// The failed renewals before the last successful one, reported by its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewal_failures: Option<RenewalFailuresRecord>,
    /// The end of the session. Once written it is never changed or removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<RevocationRecord>,
}

/// Failed renewals.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RenewalFailuresRecord {
    /// The number of failures since the session started.
    #[serde(default)]
    #[schemars(range(min = 0, max = 9_007_199_254_740_991_i64))]
    pub count: i64,
    /// The last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = REASON_MAX))]
    pub last_reason: Option<String>,
    /// The time of the last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub last_at: Option<String>,
}

/// The end of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevocationRecord {
    /// The time, by the wall clock of the writer.
    #[schemars(length(max = 40), extend("format" = "date-time"))]
    pub at: String,
    /// The pod or user that revoked it.
    #[schemars(length(max = 512))]
    pub by: String,
    /// The reason: `Expired` (not renewed in time), `PodEnded`, `NodeOutOfService` (the taint of that
    /// name), `Ended` (by its own agent).
    #[schemars(length(max = 64), regex(pattern = "^[A-Z][A-Za-z]*$"))]
    pub reason: String,
}

//! The document of a session.

use serde::{Deserialize, Serialize};

use super::Unknown;
use crate::protocol::session::{PodRef, RenewalFailures, Revocation, RevokeReason, Session};
use crate::protocol::time::{SessionTtl, WallTime};

/// A session. Times are microseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::store::embedded) struct SessionRecord {
    id: String,
    /// The uid of the object; a recreated one has another. `None` in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    pod: String,
    pod_uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    ttl_seconds: u64,
    agent_version: String,
    #[serde(default)]
    renewals: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    renewed_at: Option<i64>,
    #[serde(default)]
    renewal_failures: FailuresRecord,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked: Option<RevocationRecord>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FailuresRecord {
    #[serde(default)]
    count: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_at: Option<i64>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RevocationRecord {
    at: i64,
    by: String,
    reason: String,
    #[serde(flatten)]
    unknown: Unknown,
}

impl SessionRecord {
    /// Returns the document of a new session. As on the API server it has no status, even if
    /// `session` has renewals or an end.
    pub(in crate::store::embedded) fn new(session: &Session, uid: Option<&str>) -> Self {
        Self {
            id: session.id.to_string(),
            uid: uid.map(str::to_owned),
            pod: session.pod.name.to_string(),
            pod_uid: session.pod.uid.to_string(),
            node: session.pod.node.as_deref().map(str::to_owned),
            ttl_seconds: session.ttl.as_secs(),
            agent_version: session.agent_version.to_string(),
            renewals: 0,
            renewed_at: None,
            renewal_failures: FailuresRecord::default(),
            revoked: None,
            unknown: Unknown::new(),
        }
    }

    /// Returns the uid of the object, if it has one.
    pub(in crate::store::embedded) fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Reads the session.
    pub(in crate::store::embedded) fn session(&self) -> Session {
        let failures = &self.renewal_failures;
        Session {
            id: self.id.as_str().into(),
            pod: PodRef {
                name: self.pod.as_str().into(),
                uid: self.pod_uid.as_str().into(),
                node: self.node.as_deref().map(Into::into),
            },
            ttl: SessionTtl::clamped(self.ttl_seconds),
            agent_version: self.agent_version.as_str().into(),
            renewals: self.renewals,
            renewed_at: self.renewed_at.map(WallTime),
            failures: RenewalFailures {
                count: failures.count,
                last_reason: failures.last_reason.as_deref().map(Into::into),
                last_at: failures.last_at.map(WallTime),
            },
            revoked: self.revoked.as_ref().map(RevocationRecord::revocation),
        }
    }

    /// Returns the document of `next`, with the unknown fields of this one. The spec of a session
    /// never changes, only its status.
    pub(in crate::store::embedded) fn updated(&self, next: &Session) -> Self {
        let failures = &next.failures;
        Self {
            renewals: next.renewals,
            renewed_at: next.renewed_at.map(|at| at.0),
            renewal_failures: FailuresRecord {
                count: failures.count,
                last_reason: failures.last_reason.as_deref().map(str::to_owned),
                last_at: failures.last_at.map(|at| at.0),
                unknown: self.renewal_failures.unknown.clone(),
            },
            revoked: next.revoked.as_ref().map(|revocation| {
                let before = self.revoked.as_ref();
                let unknown = before.map(|before| before.unknown.clone());
                RevocationRecord::new(revocation, unknown.unwrap_or_default())
            }),
            ..self.clone()
        }
    }
}

impl RevocationRecord {
    fn new(revocation: &Revocation, unknown: Unknown) -> Self {
        let reason = match &revocation.reason {
            RevokeReason::Expired => "Expired",
            RevokeReason::PodEnded => "PodEnded",
            RevokeReason::NodeOutOfService => "NodeOutOfService",
            RevokeReason::Ended => "Ended",
            RevokeReason::Other(other) => other,
        };
        Self {
            at: revocation.at.0,
            by: revocation.by.to_string(),
            reason: reason.to_owned(),
            unknown,
        }
    }

    fn revocation(&self) -> Revocation {
        Revocation {
            at: WallTime(self.at),
            by: self.by.as_str().into(),
            reason: match self.reason.as_str() {
                "Expired" => RevokeReason::Expired,
                "PodEnded" => RevokeReason::PodEnded,
                "NodeOutOfService" => RevokeReason::NodeOutOfService,
                "Ended" => RevokeReason::Ended,
                other => RevokeReason::Other(other.into()),
            },
        }
    }
}

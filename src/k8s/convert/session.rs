//! Converts sessions.

use serde_json::Value;

use super::{
    Fields, as_read, bounded, count, fields_mut, optional, overlay, required, session_ttl, stored,
    time_text, truncate, ttl_seconds, wall_time,
};
use crate::crd::REASON_MAX;
use crate::crd::session::{LockSessionSpec, RenewalFailuresRecord, RevocationRecord};
use crate::k8s::errors::one_line;
use crate::protocol::session::{PodRef, RenewalFailures, Revocation, RevokeReason, Session};
use crate::store::{StoreError, Stored};

const FAILURES: &[&str] = &["count", "lastReason", "lastAt"];
const REVOKED: &[&str] = &["at", "by", "reason"];

/// Reads a session.
///
/// # Errors
/// `Unreadable` with the name of the session and the invalid field.
pub fn read(object: Value) -> Result<Stored<Session>, StoreError> {
    let Value::Object(object) = object else {
        return Err(StoreError::Unreadable(
            "a session that is no JSON object".to_owned(),
        ));
    };
    let metadata: Fields = required(&object, "session", "metadata")?;
    let name: String = required(&metadata, "metadata", "name")?;
    let value = session(&name, &object).map_err(|error| match error {
        StoreError::Unreadable(what) => {
            StoreError::Unreadable(one_line(&format!("session {name:?}: {what}")))
        }
        other => other,
    })?;
    stored(object, value)
}

fn session(name: &str, object: &Fields) -> Result<Session, StoreError> {
    let spec: LockSessionSpec = required(object, "session", "spec")?;
    let status: Fields = optional(object, "session", "status")?.unwrap_or_default();
    let renewed_at: Option<String> = optional(&status, "status", "renewedAt")?;
    let failures: Option<RenewalFailuresRecord> = optional(&status, "status", "renewalFailures")?;
    let revoked: Option<RevocationRecord> = optional(&status, "status", "revoked")?;
    Ok(Session {
        id: name.into(),
        pod: PodRef {
            name: spec.pod.into(),
            uid: spec.pod_uid.into(),
            node: spec.node.map(Into::into),
        },
        ttl: session_ttl(spec.ttl_seconds),
        agent_version: spec.agent_version.into(),
        renewals: count(optional(&status, "status", "renewals")?.unwrap_or_default()),
        renewed_at: renewed_at.as_deref().map(wall_time),
        failures: failures.map(Into::into).unwrap_or_default(),
        revoked: revoked.map(Into::into),
    })
}

/// Returns the object that changes the session to `next`, if it is still at `current`'s version.
///
/// # Errors
/// `Invalid` if `current` was not read by this adapter.
pub fn write(current: &Stored<Session>, next: &Session) -> Result<Value, StoreError> {
    let mut object = as_read(current)?;
    let before = session(current.value.id.as_str(), &object)?;
    let status = fields_mut(&mut object, "status");
    status.insert("renewals".to_owned(), bounded(next.renewals).into());
    if before.renewed_at != next.renewed_at {
        match next.renewed_at {
            Some(at) => status.insert("renewedAt".to_owned(), time_text(at).into()),
            None => status.remove("renewedAt"),
        };
    }
    if before.failures != next.failures {
        let record = RenewalFailuresRecord::from(&next.failures);
        let failures = overlay(status.get("renewalFailures"), FAILURES, &record)?;
        status.insert("renewalFailures".to_owned(), failures);
    }
    if before.revoked != next.revoked {
        match &next.revoked {
            Some(revocation) => {
                let record = overlay(None, REVOKED, &RevocationRecord::from(revocation))?;
                status.insert("revoked".to_owned(), record)
            }
            None => status.remove("revoked"),
        };
    }
    Ok(Value::Object(object))
}

impl From<&Session> for LockSessionSpec {
    fn from(session: &Session) -> Self {
        Self {
            pod: session.pod.name.to_string(),
            pod_uid: session.pod.uid.to_string(),
            node: session.pod.node.as_deref().map(str::to_owned),
            ttl_seconds: ttl_seconds(session.ttl),
            agent_version: truncate(&session.agent_version, 64),
        }
    }
}

impl From<RenewalFailuresRecord> for RenewalFailures {
    fn from(record: RenewalFailuresRecord) -> Self {
        Self {
            count: count(record.count),
            last_reason: record.last_reason.map(Into::into),
            last_at: record.last_at.as_deref().map(wall_time),
        }
    }
}

impl From<&RenewalFailures> for RenewalFailuresRecord {
    fn from(failures: &RenewalFailures) -> Self {
        Self {
            count: bounded(failures.count),
            last_reason: failures
                .last_reason
                .as_deref()
                .map(|reason| truncate(reason, REASON_MAX)),
            last_at: failures.last_at.map(time_text),
        }
    }
}

impl From<RevocationRecord> for Revocation {
    fn from(record: RevocationRecord) -> Self {
        Self {
            at: wall_time(&record.at),
            by: record.by.into(),
            reason: match record.reason.as_str() {
                "Expired" => RevokeReason::Expired,
                "PodEnded" => RevokeReason::PodEnded,
                "NodeOutOfService" => RevokeReason::NodeOutOfService,
                "Ended" => RevokeReason::Ended,
                other => RevokeReason::Other(other.into()),
            },
        }
    }
}

impl From<&Revocation> for RevocationRecord {
    fn from(revocation: &Revocation) -> Self {
        let reason = match &revocation.reason {
            RevokeReason::Expired => "Expired",
            RevokeReason::PodEnded => "PodEnded",
            RevokeReason::NodeOutOfService => "NodeOutOfService",
            RevokeReason::Ended => "Ended",
            RevokeReason::Other(other) => other,
        };
        Self {
            at: time_text(revocation.at),
            by: truncate(&revocation.by, 512),
            reason: reason.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::time::WallTime;
    use serde_json::json;

    fn object(status: Value) -> Value {
        let mut object = json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockSession", "new": 1,
            "metadata": {"name": "a-1", "resourceVersion": "7", "labels": {"x": "y"},
                "managedFields": [{"manager": "m"}]},
            "spec": {"pod": "a", "podUid": "u", "ttlSeconds": 15, "agentVersion": "0", "new": 2},
        });
        if !status.is_null() {
            object["status"] = status;
        }
        object
    }

    fn revocation() -> Revocation {
        Revocation {
            at: WallTime(0),
            by: "b".into(),
            reason: RevokeReason::Expired,
        }
    }

    #[test]
    fn a_session_without_a_status_was_never_renewed() {
        let stored = read(object(Value::Null)).unwrap();
        assert_eq!((stored.value.renewals, &stored.value.revoked), (0, &None));
        assert_eq!(stored.value.ttl.as_secs(), 15);
    }

    #[test]
    fn renewal_keeps_unknown_fields() {
        let stored = read(object(json!({
            "renewals": 3, "new": 3, "renewedAt": "2026-01-01T00:00:00.123456789Z",
            "renewalFailures": {"count": 1, "new": 4},
        })))
        .unwrap();
        let failures = RenewalFailures {
            count: 2,
            last_reason: Some("timeout".into()),
            last_at: None,
        };
        let next = stored.value.renewed(WallTime(0), failures).unwrap();
        let mut expected = object(json!({
            "renewals": 4, "new": 3, "renewedAt": "1970-01-01T00:00:00.000000Z",
            "renewalFailures": {"count": 2, "lastReason": "timeout", "new": 4},
        }));
        expected["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(write(&stored, &next).unwrap(), expected);
    }

    #[test]
    fn revocation_keeps_all_other_fields() {
        let status = json!({"renewals": 3, "renewedAt": "2026-01-01T00:00:00.123456789Z"});
        let stored = read(object(status.clone())).unwrap();
        let written = write(&stored, &stored.value.revoked(revocation()).unwrap()).unwrap();
        let mut expected = status;
        expected["revoked"] =
            json!({"at": "1970-01-01T00:00:00.000000Z", "by": "b", "reason": "Expired"});
        assert_eq!(written["status"], expected);
        assert_eq!(written["metadata"]["resourceVersion"], "7");
    }

    #[test]
    fn unknown_reason_still_counts_as_a_revocation() {
        let revoked = json!({"at": "x", "by": "b", "reason": "Tired", "new": 1});
        let stored = read(object(json!({"renewals": 1, "revoked": revoked}))).unwrap();
        let read = stored.value.revoked.clone().unwrap();
        assert_eq!(read.reason, RevokeReason::Other("Tired".into()));
        let written = write(&stored, &stored.value).unwrap();
        assert_eq!(written["status"]["revoked"]["new"], 1);
    }

    #[test]
    fn a_long_failure_does_not_stop_a_renewal() {
        let stored = read(object(Value::Null)).unwrap();
        let failures = RenewalFailures {
            count: 1,
            last_reason: Some("é".repeat(5000).into()),
            last_at: None,
        };
        let next = stored.value.renewed(WallTime(0), failures).unwrap();
        let written = write(&stored, &next).unwrap();
        let reason = written["status"]["renewalFailures"]["lastReason"]
            .as_str()
            .unwrap();
        assert_eq!(reason.chars().count(), REASON_MAX);
    }

    #[test]
    fn unreadable_field_is_named() {
        for (status, field) in [
            (json!({"renewals": "many"}), "status.renewals"),
            (json!({"revoked": {"by": "b"}}), "status.revoked"),
            (json!([]), "session.status"),
        ] {
            let Err(StoreError::Unreadable(what)) = read(object(status)) else {
                panic!("{field} was accepted");
            };
            assert!(what.contains(field) && what.contains("\"a-1\""), "{what}");
        }
    }
}

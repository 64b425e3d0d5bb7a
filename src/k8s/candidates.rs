//! The pods of election candidates, and requests that a leader resigns.
//!
//! The request is the same `spec.releaseRequest` that a user writes. The write is a merge patch
//! with the lock's uid and resourceVersion, which the API server treats as preconditions.

use std::collections::BTreeMap;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::binding::OPERATOR;
use super::convert::truncate;
use super::errors::one_line;
use crate::crd::{DistributedLock, REASON_MAX};
use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::store::StoreError;
use crate::store::cluster::{CandidatePod, Candidates, PodIdentity};
use crate::store::fleet::Object;

/// The annotation with a comma-separated list of elections.
const ALWAYS: &str = "config.leasehold.dev/elect-always";
/// The annotation with the election that the app waits for before it starts. Such an app relies on
/// the lead until it ends.
const GATE: &str = "config.leasehold.dev/gate-lock";

/// The candidates of a cluster.
#[derive(Clone)]
pub struct K8sCandidates {
    client: Client,
    /// The operator's user name. An admission policy rejects requests under any other name.
    actor: String,
}

impl K8sCandidates {
    /// Creates an adapter for an operator in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            actor: format!("system:serviceaccount:{namespace}:{OPERATOR}"),
        }
    }
}

#[async_trait]
impl Candidates for K8sCandidates {
    async fn pod(
        &self,
        pod: &PodIdentity,
        election: &str,
    ) -> Result<Option<CandidatePod>, StoreError> {
        let calls = Calls::new::<Pod>(self.client.clone(), &pod.object_ref.namespace);
        let Some(object) = calls.get(&pod.object_ref.name).await? else {
            return Ok(None);
        };
        let is_same = object["metadata"]["uid"].as_str() == Some(&*pod.uid);
        is_same.then(|| candidate(object, election)).transpose()
    }

    async fn request_resignation(
        &self,
        current: &Object<Lock>,
        grant: &GrantId,
        reason: &str,
    ) -> Result<(), StoreError> {
        let patch = json!({
            "metadata": {
                "uid": &*current.uid,
                "resourceVersion": current.stored.version.to_string(),
            },
            "spec": {"releaseRequest": {
                "leaseId": grant.as_str(), "mode": "Ask", "actor": self.actor,
                "reason": truncate(reason, REASON_MAX),
            }},
        });
        let object_ref = &current.object_ref;
        let calls = Calls::new::<DistributedLock>(self.client.clone(), &object_ref.namespace);
        calls.merge(&object_ref.name, &patch).await
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PartialPod {
    metadata: Metadata,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    annotations: BTreeMap<String, String>,
    deletion_timestamp: Option<Time>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    last_transition_time: Option<Time>,
}

/// Reads a candidate's pod. A pod without the condition is not known to its kubelet yet, so it is
/// not Ready.
fn candidate(object: Value, election: &str) -> Result<CandidatePod, StoreError> {
    let partial: PartialPod = serde_json::from_value(object)
        .map_err(|error| StoreError::Unreadable(one_line(&format!("invalid pod: {error}"))))?;
    let Metadata {
        annotations,
        deletion_timestamp,
    } = partial.metadata;
    let names_election = |key| {
        annotations.get(key).is_some_and(|names| {
            let mut names = names.split(',').map(str::trim);
            names.any(|name| name == election)
        })
    };
    let mut conditions = partial.status.conditions.into_iter();
    let ready = conditions
        .find(|condition| condition.r#type == "Ready")
        .unwrap_or_default();
    let since = ready.last_transition_time.map(|time| time.0.to_string());
    Ok(CandidatePod {
        elects_always: names_election(ALWAYS) && !names_election(GATE),
        unready_since: (ready.status != "True")
            .then(|| since.unwrap_or_else(|| "its creation".to_owned()).into()),
        is_deleted: deletion_timestamp.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_is_read_from_annotations_and_conditions() {
        let at = "2026-01-02T03:04:05Z";
        let condition = |status: &str| {
            json!([
                {"type": "Initialized", "status": "True"},
                {"type": "Ready", "status": status, "lastTransitionTime": at},
            ])
        };
        let (none, made) = (json!([]), Some("its creation"));
        let gate = json!({ALWAYS: "jobs", GATE: "jobs"});
        for (always, conditions, elects_always, since) in [
            (json!({}), condition("True"), false, None),
            (json!({ALWAYS: "jobs"}), condition("True"), true, None),
            (
                json!({ALWAYS: "web, jobs"}),
                condition("False"),
                true,
                Some(at),
            ),
            (
                json!({ALWAYS: "job,jobs2"}),
                condition("Unknown"),
                false,
                Some(at),
            ),
            (json!({ALWAYS: "jobs"}), none, true, made),
            (gate, condition("False"), false, Some(at)),
        ] {
            let pod = json!({
                "metadata": {"annotations": always}, "status": {"conditions": conditions},
            });
            let expected = CandidatePod {
                elects_always,
                unready_since: since.map(Into::into),
                is_deleted: false,
            };
            assert_eq!(candidate(pod.clone(), "jobs").unwrap(), expected, "{pod}");
        }
        let deleted = json!({"metadata": {"deletionTimestamp": at},
            "status": {"conditions": condition("True")}});
        assert!(!candidate(deleted, "jobs").unwrap().is_ready());
        let broken = candidate(json!({"status": {"conditions": 7}}), "jobs").unwrap_err();
        assert!(matches!(broken, StoreError::Unreadable(_)), "{broken}");
    }
}

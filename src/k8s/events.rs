//! Events (`events.k8s.io/v1`), which `kubectl describe` shows with the lock: those of the operator, and the form of
//! all.
//!
//! Each Event has a name that its writer chose. The recorder of kube is not used, because it counts
//! repetitions in one object. A repeated Event must exist once, and two incidents must not become
//! one. The API server deletes Events after about an hour.
//!
//! A namespace that is being deleted accepts no new Events. They are written to the namespace
//! `default` instead, about the namespace in place of the lock, where Events about cluster-scoped
//! objects are. So the next replica finds that they were written.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::{self, api_version, binding, time_text};
use super::errors::NamespaceUnavailable;
use crate::store::StoreError;
use crate::store::cluster::{Event, EventStore, Regarding};
use crate::store::fleet::ObjectRef;

/// The namespace of Events about cluster-scoped objects; the API server accepts them in no other.
const FALLBACK_NAMESPACE: &str = "default";
/// The annotation on such an Event with the namespace in which it should be.
const NAMESPACE: &str = "leasehold.dev/namespace";
/// The reporting controller of the operator's Events. An admission policy allows it to no other account.
const OPERATOR: &str = "leasehold.dev/operator";
/// The reporting controller of the Events of sidecars.
pub(super) const SIDECAR: &str = "leasehold.dev/sidecar";
/// The maximum length of the text, in bytes.
const NOTE_MAX: usize = 1024;
/// The maximum length of the reporting instance, in bytes.
const INSTANCE_MAX: usize = 128;

/// The operator's Events, in the namespaces of the locks that they are about.
#[derive(Clone)]
pub struct K8sEvents {
    client: Client,
    instance: String,
    timeout: Duration,
}

impl K8sEvents {
    /// Creates an adapter. `instance` names the replica that writes: its pod's name.
    #[must_use]
    pub fn new(client: Client, instance: &str) -> Self {
        Self {
            client,
            instance: instance.to_owned(),
            timeout: Duration::from_secs(5),
        }
    }

    /// Sets the timeout of each call (default: 5 seconds).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

#[async_trait]
impl EventStore for K8sEvents {
    async fn list_own(&self) -> Result<BTreeSet<ObjectRef>, StoreError> {
        let calls = Calls::everywhere::<ApiEvent>(self.client.clone()).with_timeout(self.timeout);
        let own = ListParams::default().fields(&format!("reportingController={OPERATOR}"));
        let found = calls.metadata_of(own).await?;
        Ok(found.iter().map(event_ref).collect())
    }

    async fn write(&self, event: &Event) -> Result<(), StoreError> {
        let calls = Calls::new::<ApiEvent>(self.client.clone(), &event.object_ref.namespace);
        let calls = calls.with_timeout(self.timeout);
        let object = event_json(event, OPERATOR, &self.instance);
        match calls.create_in_live_namespace(&object).await {
            Ok(Err(NamespaceUnavailable::Terminating)) => self.write_to_fallback(event).await,
            // The objects of a namespace are deleted with it.
            Ok(Ok(_) | Err(NamespaceUnavailable::Missing)) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl K8sEvents {
    async fn write_to_fallback(&self, event: &Event) -> Result<(), StoreError> {
        let calls = Calls::new::<ApiEvent>(self.client.clone(), FALLBACK_NAMESPACE)
            .with_timeout(self.timeout);
        let object = event_of_namespace(event, &self.instance);
        match calls.create(&object).await {
            Ok(_) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns where an Event is, or would be if its namespace was not being deleted.
fn event_ref(metadata: &Value) -> ObjectRef {
    let object_ref = convert::object_ref(metadata);
    match metadata["annotations"][NAMESPACE].as_str() {
        Some(namespace) => ObjectRef {
            namespace: namespace.into(),
            ..object_ref
        },
        None => object_ref,
    }
}

/// Returns the Event about a namespace that is being deleted, in place of the one about an object
/// in it.
fn event_of_namespace(event: &Event, instance: &str) -> Value {
    let mut object = event_json(event, OPERATOR, instance);
    let namespace = &*event.object_ref.namespace;
    let (_, _, noun) = kind_of(event.regarding);
    let message = format!("{noun} {}: {}", event.object_ref.name, event.message);
    object["metadata"]["namespace"] = FALLBACK_NAMESPACE.into();
    object["metadata"]["annotations"] = json!({NAMESPACE: namespace});
    object["regarding"] = json!({"apiVersion": "v1", "kind": "Namespace", "name": namespace});
    object["related"] = Value::Null;
    object["note"] = cut(&message, NOTE_MAX).into();
    object
}

/// Returns the `apiVersion` and `kind` of an object, and what users call it.
fn kind_of(regarding: Regarding) -> (String, &'static str, &'static str) {
    match regarding {
        Regarding::Lock => (api_version(), "DistributedLock", "lock"),
        Regarding::Pod => ("v1".to_owned(), "Pod", "pod"),
        Regarding::Binding => (binding::api_version(), binding::KIND, "role binding"),
    }
}

/// Returns the object of an Event. `instance` names the process that writes it.
pub(super) fn event_json(event: &Event, controller: &str, instance: &str) -> Value {
    let (api, kind, _) = kind_of(event.regarding);
    let mut object = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": &*event.name, "namespace": &*event.object_ref.namespace},
        "eventTime": time_text(event.at),
        "reportingController": controller,
        "reportingInstance": cut(instance, INSTANCE_MAX),
        "regarding": {
            "apiVersion": api, "kind": kind,
            "namespace": &*event.object_ref.namespace, "name": &*event.object_ref.name,
            "uid": &*event.uid,
        },
        "type": if event.is_warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "action": event.action,
        "note": cut(&event.message, NOTE_MAX),
    });
    if let Some((name, uid)) = &event.pod {
        object["related"] = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": &*event.object_ref.namespace,
            "name": &**name, "uid": uid.as_deref(),
        });
    }
    object
}

/// Truncates text to a number of bytes, with a mark if something is missing.
fn cut(text: &str, longest: usize) -> String {
    const MARK: &str = "…";

    if text.len() <= longest {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(longest - MARK.len());
    format!("{}{MARK}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::time::WallTime;

    fn note() -> Event {
        Event {
            name: "res.1".into(),
            regarding: Regarding::Lock,
            object_ref: ObjectRef {
                namespace: "team-a".into(),
                name: "res".into(),
            },
            uid: "u-1".into(),
            pod: Some(("p".into(), None)),
            is_warning: true,
            reason: "Expired",
            action: "Revoke",
            message: "m".to_owned(),
            at: WallTime(1_767_225_600_123_456),
        }
    }

    #[test]
    fn event_names_the_lock_the_pod_and_the_reporter() {
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "res.1", "namespace": "team-a"},
            "eventTime": "2026-01-01T00:00:00.123456Z",
            "reportingController": "leasehold.dev/operator", "reportingInstance": "me",
            "regarding": {"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
                "namespace": "team-a", "name": "res", "uid": "u-1"},
            "related": {"apiVersion": "v1", "kind": "Pod", "namespace": "team-a", "name": "p",
                "uid": null},
            "type": "Warning", "reason": "Expired", "action": "Revoke", "note": "m",
        });
        assert_eq!(event_json(&note(), OPERATOR, "me"), expected);
        let about_no_pod = Event {
            pod: None,
            is_warning: false,
            ..note()
        };
        let written = event_json(&about_no_pod, OPERATOR, "me");
        assert_eq!(
            (&written["related"], &written["type"]),
            (&Value::Null, &json!("Normal"))
        );
    }

    #[test]
    fn event_of_a_terminating_namespace_regards_the_namespace() {
        let event = event_of_namespace(&note(), "me");
        let regarding = json!({"apiVersion": "v1", "kind": "Namespace", "name": "team-a"});
        assert_eq!(event["regarding"], regarding);
        assert_eq!(event["metadata"]["namespace"], "default");
        assert_eq!(event["note"], "lock res: m");
        assert_eq!(event["related"], Value::Null);
        let usual = super::event_json(&note(), OPERATOR, "me");
        let known = event_ref(&event["metadata"]);
        assert_eq!(known, event_ref(&usual["metadata"]));
        assert_eq!(&*known.namespace, "team-a");
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        for (text, length) in [("é".repeat(512), 1024), ("é".repeat(513), 1023)] {
            let written = event_json(
                &Event {
                    message: text,
                    ..note()
                },
                OPERATOR,
                "me",
            );
            let note = written["note"].as_str().unwrap();
            assert_eq!(note.len(), length);
            assert_eq!(note.ends_with('…'), length < NOTE_MAX);
        }
    }
}

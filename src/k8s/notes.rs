//! The operator's notes as Events (`events.k8s.io/v1`), which `kubectl describe` shows with the lock.
//!
//! Each note is an object of its own under a name that its writer chose. kube's recorder, which
//! counts repetitions in one object, is not used: a note that is written twice must be there once,
//! and two incidents must not become one. The API server forgets Events after an hour or so.
//!
//! A namespace that is being deleted takes no new ones. What happens there is noted in the namespace
//! `default`, with the namespace in the place of the lock, where Events about things without a
//! namespace are: so whoever comes next knows that it was told.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::{api_version, binding, place_of, time_text};
use super::errors::NamespaceEnd;
use crate::store::StoreError;
use crate::store::cluster::{Note, Notes, Regarding};
use crate::store::fleet::Place;

/// Where Events about things without a namespace are; the API server takes them nowhere else.
const NOWHERE: &str = "default";
/// On an Event there: the namespace that it would be in.
const NAMESPACE: &str = "leasehold.dev/namespace";
/// Whose Events they are.
const CONTROLLER: &str = "leasehold.dev/operator";
/// The API server takes no longer text, in bytes.
const NOTE_MAX: usize = 1024;
/// Nor a longer name of who reports, in bytes.
const INSTANCE_MAX: usize = 128;

/// The operator's Events, in the namespaces of the locks that they are about.
#[derive(Clone)]
pub struct K8sNotes {
    client: Client,
    instance: String,
    timeout: Duration,
}

impl K8sNotes {
    /// Those that `client` reaches. `instance` says which replica writes: its pod's name.
    #[must_use]
    pub fn new(client: Client, instance: &str) -> Self {
        Self {
            client,
            instance: cut(instance, INSTANCE_MAX),
            timeout: Duration::from_secs(5),
        }
    }

    /// The same with another limit on each call (5 seconds unless it is set).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

#[async_trait]
impl Notes for K8sNotes {
    async fn known(&self) -> Result<BTreeSet<Place>, StoreError> {
        let calls = Calls::everywhere::<Event>(self.client.clone()).with_timeout(self.timeout);
        let own = ListParams::default().fields(&format!("reportingController={CONTROLLER}"));
        let found = calls.metadata_of(own).await?;
        Ok(found.iter().map(place_of_note).collect())
    }

    async fn write(&self, note: &Note) -> Result<(), StoreError> {
        let calls = Calls::new::<Event>(self.client.clone(), &note.place.namespace);
        let calls = calls.with_timeout(self.timeout);
        let object = event(note, &self.instance);
        match calls.create_if_namespace_stays(&object).await {
            Ok(Err(NamespaceEnd::Terminating)) => self.write_nowhere(note).await,
            // Where the namespace is gone, what is in it is, too.
            Ok(Ok(_) | Err(NamespaceEnd::Gone)) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl K8sNotes {
    async fn write_nowhere(&self, note: &Note) -> Result<(), StoreError> {
        let calls = Calls::new::<Event>(self.client.clone(), NOWHERE).with_timeout(self.timeout);
        let object = event_of_namespace(note, &self.instance);
        match calls.create(&object).await {
            Ok(_) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Where a note is, or would be if its namespace stayed.
fn place_of_note(metadata: &Value) -> Place {
    let place = place_of(metadata);
    match metadata["annotations"][NAMESPACE].as_str() {
        Some(namespace) => Place {
            namespace: namespace.into(),
            ..place
        },
        None => place,
    }
}

/// The Event about a namespace that is being deleted, in the place of the one about what is in it.
fn event_of_namespace(note: &Note, instance: &str) -> Value {
    let mut event = event(note, instance);
    let namespace = &*note.place.namespace;
    let (_, _, called) = kind_of(note.regarding);
    let words = format!("{called} {}: {}", note.place.name, note.message);
    event["metadata"]["namespace"] = NOWHERE.into();
    event["metadata"]["annotations"] = json!({NAMESPACE: namespace});
    event["regarding"] = json!({"apiVersion": "v1", "kind": "Namespace", "name": namespace});
    event["related"] = Value::Null;
    event["note"] = cut(&words, NOTE_MAX).into();
    event
}

/// An object's `apiVersion` and `kind`, and what people call it.
fn kind_of(regarding: Regarding) -> (String, &'static str, &'static str) {
    match regarding {
        Regarding::Lock => (api_version(), "DistributedLock", "lock"),
        Regarding::Pod => ("v1".to_owned(), "Pod", "pod"),
        Regarding::Binding => (binding::api_version(), binding::KIND, "role binding"),
    }
}

fn event(note: &Note, instance: &str) -> Value {
    let (api, kind, _) = kind_of(note.regarding);
    let mut event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": {"name": &*note.name, "namespace": &*note.place.namespace},
        "eventTime": time_text(note.at),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "regarding": {
            "apiVersion": api, "kind": kind,
            "namespace": &*note.place.namespace, "name": &*note.place.name,
            "uid": &*note.uid,
        },
        "type": if note.is_warning { "Warning" } else { "Normal" },
        "reason": note.reason,
        "action": note.action,
        "note": cut(&note.message, NOTE_MAX),
    });
    if let Some((name, uid)) = &note.pod {
        event["related"] = json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": &*note.place.namespace,
            "name": &**name, "uid": uid.as_deref(),
        });
    }
    event
}

/// At most so many bytes, with a mark where something is missing.
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

    fn note() -> Note {
        Note {
            name: "res.1".into(),
            regarding: Regarding::Lock,
            place: Place {
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
        assert_eq!(event(&note(), "me"), expected);
        let about_no_pod = Note {
            pod: None,
            is_warning: false,
            ..note()
        };
        let written = event(&about_no_pod, "me");
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
        let usual = super::event(&note(), "me");
        let known = place_of_note(&event["metadata"]);
        assert_eq!(known, place_of_note(&usual["metadata"]));
        assert_eq!(&*known.namespace, "team-a");
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        for (text, length) in [("é".repeat(512), 1024), ("é".repeat(513), 1023)] {
            let written = event(
                &Note {
                    message: text,
                    ..note()
                },
                "me",
            );
            let note = written["note"].as_str().unwrap();
            assert_eq!(note.len(), length);
            assert_eq!(note.ends_with('…'), length < NOTE_MAX);
        }
    }
}

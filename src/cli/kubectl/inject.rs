//! `kubectl leasehold inject`: what the webhook would do to the pods of a manifest, without a cluster.
//!
//! The decision is the webhook's own. The result is for reading and for a diff: in a cluster the webhook injects.

use std::io::{Read as _, stdin};
use std::path::PathBuf;

use serde::Deserialize as _;
use serde_json::Value;

use super::failure::Failure;
use super::terminal;
use crate::text::escape;
use crate::webhook::{Decision, Injection, decide};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The manifest, as YAML or JSON; -: standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,
    /// The installation's settings of sidecars: `injection.yaml` of its config map leasehold-injection. Default: the
    /// chart's.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
}

/// Where the kinds of Kubernetes have their pod.
const PODS: [(&str, &str); 8] = [
    ("Pod", ""),
    ("Deployment", "/spec/template"),
    ("StatefulSet", "/spec/template"),
    ("DaemonSet", "/spec/template"),
    ("ReplicaSet", "/spec/template"),
    ("ReplicationController", "/spec/template"),
    ("Job", "/spec/template"),
    ("CronJob", "/spec/jobTemplate/spec/template"),
];

/// Prints the manifest with sidecars, and on standard error what was decided about each pod.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let settings = settings(args)?;
    let text = if args.filename.as_os_str() == "-" {
        let mut text = String::new();
        stdin().lock().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(&args.filename)
    };
    let name = args.filename.display();
    let text = text.map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    let mut out = String::new();
    let mut denied = 0;
    for document in serde_yaml::Deserializer::from_str(&text) {
        let object = Value::deserialize(document)
            .map_err(|error| Failure::Usage(format!("{name} is not YAML: {error}")))?;
        if object.is_null() {
            continue;
        }
        let reviewed = review_all(object, &settings)?;
        for note in &reviewed.notes {
            terminal::complain(note);
        }
        denied += u32::from(reviewed.is_denied);
        let text = serde_yaml::to_string(&reviewed.object)
            .map_err(|error| Failure::Usage(format!("cannot print the result: {error}")))?;
        out.extend(["---\n", &text]);
    }
    match denied {
        0 => terminal::print(&out),
        // No part of it: a program that reads it would create pods without their sidecar.
        _ => Err(Failure::Unfulfilled(
            "the webhook would reject a pod; see above what to change".to_owned(),
        )),
    }
}

fn settings(args: &Args) -> Result<Injection, Failure> {
    let text = match &args.settings {
        None => format!(
            "image: ghcr.io/leasehold/leasehold:{}",
            env!("CARGO_PKG_VERSION")
        ),
        Some(file) => std::fs::read_to_string(file)
            .map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))?,
    };
    Injection::from_yaml(&text).map_err(|error| Failure::Usage(error.to_string()))
}

/// An object after its review.
struct Reviewed {
    object: Value,
    /// What was decided, in words.
    notes: Vec<String>,
    is_denied: bool,
}

/// Reviews an object, or each object of a list, as `kubectl get` prints it.
fn review_all(mut object: Value, settings: &Injection) -> Result<Reviewed, Failure> {
    let Some(items) = object["items"].as_array_mut().map(std::mem::take) else {
        return review(object, settings);
    };
    let (mut notes, mut is_denied, mut reviewed) = (Vec::new(), false, Vec::new());
    for item in items {
        let one = review(item, settings)?;
        notes.extend(one.notes);
        is_denied |= one.is_denied;
        reviewed.push(one.object);
    }
    object["items"] = Value::Array(reviewed);
    Ok(Reviewed {
        object,
        notes,
        is_denied,
    })
}

fn review(mut object: Value, settings: &Injection) -> Result<Reviewed, Failure> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let name = format!("{} {}", escape(&kind), escape(name));
    let place = PODS.iter().find(|(known, _)| *known == kind);
    let Some(pod) = place.and_then(|(_, place)| object.pointer_mut(place)) else {
        return Ok(Reviewed {
            object,
            notes: vec![format!(
                "{name}: not changed; its kind is none with a pod that this command knows"
            )],
            is_denied: false,
        });
    };
    let reviewed = decide(pod, settings)
        .map_err(|error| Failure::Usage(format!("{name} has no valid pod: {error}")))?;
    let is_requested = pod["metadata"]["labels"]["leasehold.dev/inject"] == "true";
    let mut is_denied = false;
    let mut notes: Vec<_> = reviewed
        .warnings
        .iter()
        .map(|warning| format!("{name}: warning: {warning}"))
        .collect();
    notes.push(match reviewed.decision {
        Decision::Inject(adds) | Decision::Complete(adds) => {
            let adds =
                serde_json::to_value(adds).and_then(serde_json::from_value::<json_patch::Patch>);
            let adds = adds.map_err(|error| error.to_string());
            adds.and_then(|adds| json_patch::patch(pod, &adds).map_err(|error| error.to_string()))
                .map_err(|error| {
                    Failure::Usage(format!("{name}: the sidecar cannot be added: {error}"))
                })?;
            let values = if is_requested {
                "on-request or enabled"
            } else {
                "enabled"
            };
            format!(
                "{name}: injected in a namespace with the label leasehold.dev/injection={values}"
            )
        }
        Decision::LeaveAlone => format!("{name}: not changed"),
        Decision::Skip => format!("{name}: not injected"),
        Decision::Deny(why) => {
            is_denied = true;
            format!("{name}: rejected: {why}")
        }
    });
    Ok(Reviewed {
        object,
        notes,
        is_denied,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reviewed(object: Value) -> Reviewed {
        let settings = Injection::from_yaml("image: registry.example/leasehold:1").unwrap();
        review(object, &settings).unwrap()
    }

    fn pod(labels: &Value) -> Value {
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "app"}]}})
    }

    #[test]
    fn sidecar_is_added_where_a_kind_has_its_pod() {
        for (kind, place) in PODS {
            let mut object = json!({"kind": kind, "metadata": {"name": "x"},
                "spec": {"template": {}, "jobTemplate": {"spec": {"template": {}}}}});
            let wanted = pod(&json!({"leasehold.dev/inject": "true"}));
            if place.is_empty() {
                object["spec"] = wanted["spec"].clone();
                object["metadata"] = wanted["metadata"].clone();
            } else {
                *object.pointer_mut(place).unwrap() = wanted;
            }
            let reviewed = reviewed(object);
            let added = reviewed
                .object
                .pointer(&format!("{place}/spec/initContainers/0/image"));
            assert_eq!(
                added,
                Some(&json!("registry.example/leasehold:1")),
                "{kind}"
            );
            assert!(
                reviewed.notes[0].contains("injected"),
                "{:?}",
                reviewed.notes
            );
        }
    }

    #[test]
    fn pods_of_a_list_get_the_sidecar() {
        let mut pod = pod(&json!({}));
        pod["kind"] = json!("Pod");
        let settings = Injection::from_yaml("image: registry.example/leasehold:1").unwrap();
        let list = json!({"kind": "List", "items": [pod, {"kind": "Service"}]});
        let reviewed = review_all(list, &settings).unwrap();
        let added = reviewed
            .object
            .pointer("/items/0/spec/initContainers/0/image");
        assert_eq!(added, Some(&json!("registry.example/leasehold:1")));
        assert_eq!(reviewed.object["items"][1], json!({"kind": "Service"}));
        assert!(
            reviewed.notes[0].ends_with("=enabled"),
            "{:?}",
            reviewed.notes
        );
    }

    #[test]
    fn refused_pod_and_other_objects_are_not_changed() {
        let mut refused = pod(&json!({"leasehold.dev/inject": "true"}));
        refused["kind"] = json!("Pod");
        refused["metadata"]["annotations"] = json!({"config.leasehold.dev/session-ttl": "1"});
        let other = json!({"kind": "Service", "metadata": {"name": "x"}, "spec": {}});
        for (object, is_denied) in [(refused, true), (other, false)] {
            let reviewed = reviewed(object.clone());
            assert_eq!((reviewed.object, reviewed.is_denied), (object, is_denied));
        }
    }
}

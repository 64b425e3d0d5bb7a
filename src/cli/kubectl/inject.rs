//! `kubectl leasehold inject`: what the webhook would do to the pods of a manifest, without a cluster.
//!
//! The decision is the webhook's own. The result is for reading and for a diff: in a cluster the webhook injects.

use std::io::{Read as _, stdin};
use std::path::PathBuf;

use serde::Deserialize as _;
use serde_json::Value;

use super::failure::Failure;
use super::terminal;
use crate::kubectl::format::table::escape;
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
        let reviewed = review(object, &settings)?;
        for note in &reviewed.notes {
            terminal::complain(note);
        }
        denied += u32::from(reviewed.is_denied);
        let text = serde_yaml::to_string(&reviewed.object)
            .map_err(|error| Failure::Usage(format!("cannot print the result: {error}")))?;
        out.extend(["---\n", &text]);
    }
    terminal::print(&out)?;
    match denied {
        0 => Ok(()),
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

fn review(mut object: Value, settings: &Injection) -> Result<Reviewed, Failure> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let name = format!("{} {}", escape(&kind), escape(name));
    let place = PODS.iter().find(|(known, _)| *known == kind);
    let Some(pod) = place.and_then(|(_, place)| object.pointer_mut(place)) else {
        return Ok(Reviewed {
            object,
            notes: vec![format!("{name}: has no pod")],
            is_denied: false,
        });
    };
    let reviewed = decide(pod, settings)
        .map_err(|error| Failure::Usage(format!("{name} has no valid pod: {error}")))?;
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
            format!("{name}: injected, if its namespace is labelled leasehold.dev/injection")
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

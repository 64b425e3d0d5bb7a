//! Annotations of a pod, one `name: value` per line. Each is accepted, or the pod is refused with a
//! message that names it. An added sidecar can start.

use std::collections::BTreeMap;

use leasehold::protocol::election::ElectionName;
use leasehold::protocol::time::SessionTtl;
use leasehold::telemetry;
use leasehold::webhook::{ANNOTATIONS, Decision, Injection, Review, decide};
use serde_json::{Value, json};

use super::{Outcome, Target, no_seeds};

/// A message is short enough for a person to read.
const SENTENCE_MAX_BYTES: usize = 8 * 1024;
const PREFIX: &str = "config.leasehold.dev/";

pub(crate) const TARGET: Target = Target {
    name: "annotations",
    run: |input| target(input, |verdict| verdict),
    broken: |input| target(input, as_it_is_written),
    seeds: no_seeds,
    words: &[
        "image: ",
        "log-level: ",
        "ports: ",
        "unix-socket: ",
        "resources: ",
        "session-ttl: ",
        "elect: ",
        "elect-always: ",
        "elect-preferred: ",
        "gate-lock: ",
        "gate-rollout: ",
        "accept",
        "true",
        "false",
        "api=",
        "admin=",
        "7373",
        "debug",
        "leasehold::agent=trace",
        "off",
        "cpu",
        "memory",
        "requests",
        "limits",
        "10m",
        "64Mi",
        "1e3",
        "registry.example/leasehold:0.1.0",
        "@sha256:",
        "jobs",
        "ephemeral-storage",
        "hugepages-2Mi",
        "$(LEASEHOLD_NODE_NAME)",
    ],
    tries: 12_000,
};

fn target(input: &[u8], change: fn(Review) -> Review) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let mut annotations = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(": ") {
            annotations.insert(format!("{PREFIX}{name}"), value.to_owned());
        }
    }
    let pod = json!({
        "metadata": {"name": "p", "labels": {"leasehold.dev/inject": "true"}, "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "i"}]},
    });
    let installation = Injection::from_yaml("image: i").unwrap();
    let verdict = change(decide(&pod, &installation).expect("it is a pod"));
    match verdict.decision {
        Decision::Inject(patch) => {
            let patch = serde_json::to_value(patch).unwrap();
            Outcome::Taken(injected(&annotations, &patch))
        }
        Decision::Deny(sentence) => Outcome::Refused(denied(&annotations, &sentence)),
        other => panic!("a pod that asks for a sidecar was answered with {other:?}"),
    }
}

/// Checks a refusal, and returns which annotations it names.
fn denied(annotations: &BTreeMap<String, String>, sentence: &str) -> String {
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
    let is_named = |name: &str| {
        let name: String = name.chars().take(40).collect();
        sentence.contains(&format!("annotation {}", name.escape_debug()))
    };
    let named: Vec<_> = annotations.keys().filter(|name| is_named(name)).collect();
    assert!(
        !named.is_empty(),
        "{sentence} names none of {annotations:?}"
    );
    assert!(
        sentence.len() < SENTENCE_MAX_BYTES,
        "{} bytes: {sentence}",
        sentence.len()
    );
    let known = |name: &str| {
        ANNOTATIONS
            .iter()
            .find(|annotation| name.ends_with(annotation.name))
    };
    let told: Vec<_> = named
        .iter()
        .map(|name| known(name).map_or("?", |one| one.name))
        .collect();
    let word = sentence.split(": ").nth(1).unwrap_or_default();
    format!(
        "{told:?} {}",
        word.split(' ').next_back().unwrap_or_default().len()
    )
}

/// Checks that the added containers can start, and returns which annotations were set.
fn injected(annotations: &BTreeMap<String, String>, patch: &Value) -> String {
    let known: Vec<_> = ANNOTATIONS
        .iter()
        .map(|annotation| annotation.name)
        .collect();
    for name in annotations.keys() {
        assert!(
            known.contains(&&name[PREFIX.len()..]),
            "{name} is unknown, and was accepted"
        );
    }
    let container = added(patch, "leasehold").expect("there is a sidecar");
    let gate = added(patch, "leasehold-gate");
    assert_eq!(
        gate.is_some(),
        annotations.contains_key(&format!("{PREFIX}gate-lock"))
    );
    for part in std::iter::once(container).chain(gate) {
        assert_can_start(part);
    }
    let set: Vec<_> = annotations
        .keys()
        .map(|name| &name[PREFIX.len()..])
        .collect();
    format!("{set:?}")
}

fn added<'a>(patch: &'a Value, name: &str) -> Option<&'a Value> {
    let operations = patch.as_array().into_iter().flatten();
    let mut values = operations.flat_map(|operation| match &operation["value"] {
        Value::Array(elements) => elements.iter().collect(),
        value => vec![value],
    });
    values.find(|value| value["name"] == name && value["image"].is_string())
}

/// Checks each setting with the parser of the component that reads it.
fn assert_can_start(container: &Value) {
    let image = container["image"].as_str().unwrap();
    assert!(
        !image.is_empty() && !image.contains(char::is_whitespace),
        "{image:?}"
    );
    for variable in container["env"].as_array().into_iter().flatten() {
        let (name, value) = (
            variable["name"].as_str().unwrap(),
            variable["value"].as_str().unwrap_or_default(),
        );
        // Kubernetes would expand it as a reference to another variable.
        assert!(!value.contains("$("), "{name}={value:?}");
        match name {
            "LEASEHOLD_LOG_LEVEL" => assert!(telemetry::filter(value).is_ok(), "{value:?}"),
            "LEASEHOLD_SESSION_TTL" => {
                assert!(
                    SessionTtl::from_secs(value.parse().unwrap()).is_ok(),
                    "{value:?}"
                );
            }
            "LEASEHOLD_ELECT" => {
                assert!(
                    value
                        .split(',')
                        .all(|name| ElectionName::parse(name).is_ok()),
                    "{value:?}"
                );
            }
            _ => {}
        }
    }
    for list in ["requests", "limits"] {
        for amount in container["resources"][list]
            .as_object()
            .into_iter()
            .flat_map(|amounts| amounts.values())
        {
            let amount = amount.as_str().expect("Kubernetes takes amounts as texts");
            assert!(
                amount.starts_with(['+', '.']) || amount.starts_with(|c: char| c.is_ascii_digit()),
                "{amount}"
            );
        }
    }
}

/// Planted fault: does not report a bad log level by its annotation's name.
fn as_it_is_written(mut verdict: Review) -> Review {
    if let Decision::Deny(sentence) = &mut verdict.decision {
        *sentence = sentence.replace("config.leasehold.dev/log-level", "the log level");
    }
    verdict
}

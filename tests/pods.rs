//! The pods of `golden/webhook`, and what the injection makes of them: `it` compares that with the
//! files beside them, `e2e` asks a real API server whether it takes it.

#![cfg(test)]
#![allow(dead_code, reason = "each of its users takes what it needs of it")]

use std::fs;
use std::path::Path;

use leasehold::webhook::{Decision, Injection, Review, decide};
use serde_json::Value;

/// Where they are, in the repository.
pub(crate) const FOLDER: &str = "tests/golden/webhook";
/// How the files are named that say what becomes of a pod.
pub(crate) const EXPECTED: &str = ".expected.yaml";

/// A pod as it comes to the webhook.
pub(crate) struct Case {
    /// Its file's name, without its ending.
    pub(crate) name: String,
    /// The pod.
    pub(crate) pod: Value,
}

/// All of them, by name.
pub(crate) fn all() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let mut cases = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if file.ends_with(EXPECTED) {
            continue;
        }
        cases.push(Case {
            name: file.strip_suffix(".yaml").unwrap().to_owned(),
            pod: serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap(),
        });
    }
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

/// What the installation sets.
pub(crate) fn installation() -> Injection {
    Injection::from_yaml(
        "{image: 'registry.example/leasehold:0.1.0', imagePullPolicy: IfNotPresent}",
    )
    .unwrap()
}

/// What is decided about a pod.
pub(crate) fn decided(pod: &Value) -> Review {
    decide(pod, &installation()).unwrap()
}

/// The pod with a patch applied by a third-party library.
pub(crate) fn apply(pod: &Value, patch: &Value) -> Value {
    let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

/// The operations that are decided, if there are any.
pub(crate) fn patch(verdict: &Review) -> Option<Value> {
    match &verdict.decision {
        Decision::Inject(adds) | Decision::Complete(adds) => {
            Some(serde_json::to_value(adds).unwrap())
        }
        Decision::LeaveAlone | Decision::Skip | Decision::Deny(_) => None,
    }
}

/// The pod as it is made in the end; none where it is refused.
pub(crate) fn made(pod: &Value) -> Option<Value> {
    let verdict = decided(pod);
    if matches!(verdict.decision, Decision::Deny(_)) {
        return None;
    }
    let patch = patch(&verdict);
    Some(patch.map_or_else(|| pod.clone(), |patch| apply(pod, &patch)))
}

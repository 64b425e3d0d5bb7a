//! The pods of `golden/webhook`, and the result of their injection. `it` compares the result with
//! the files beside them; `e2e` checks whether a real API server accepts it.

#![cfg(test)]
#![allow(dead_code, reason = "each of its users takes what it needs of it")]

use std::fs;
use std::path::Path;

use leasehold::webhook::{Decision, Injection, Review, decide};
use serde_json::Value;

/// Their folder in the repository.
pub(crate) const FOLDER: &str = "tests/golden/webhook";
/// The suffix of the files with the expected result of a pod.
pub(crate) const EXPECTED: &str = ".expected.yaml";

/// A pod as the webhook receives it.
pub(crate) struct Case {
    /// The name of its file, without the suffix.
    pub(crate) name: String,
    /// The pod.
    pub(crate) pod: Value,
}

/// Returns all pods, sorted by name.
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

/// Returns the settings of the installation.
pub(crate) fn installation() -> Injection {
    Injection::from_yaml(
        "{image: 'registry.example/leasehold:0.1.0', imagePullPolicy: IfNotPresent}",
    )
    .unwrap()
}

/// Returns the decision about a pod.
pub(crate) fn decided(pod: &Value) -> Review {
    decide(pod, &installation()).unwrap()
}

/// Returns the pod with a patch applied by a third-party library.
pub(crate) fn apply(pod: &Value, patch: &Value) -> Value {
    let patch: json_patch::Patch = serde_json::from_value(patch.clone()).unwrap();
    let mut pod = pod.clone();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

/// Returns the operations of the decision, if any.
pub(crate) fn patch(verdict: &Review) -> Option<Value> {
    match &verdict.decision {
        Decision::Inject(adds) | Decision::Complete(adds) => {
            Some(serde_json::to_value(adds).unwrap())
        }
        Decision::LeaveAlone | Decision::Skip | Decision::Deny(_) => None,
    }
}

/// Returns the resulting pod, or `None` if it is refused.
pub(crate) fn made(pod: &Value) -> Option<Value> {
    let verdict = decided(pod);
    if matches!(verdict.decision, Decision::Deny(_)) {
        return None;
    }
    let patch = patch(&verdict);
    Some(patch.map_or_else(|| pod.clone(), |patch| apply(pod, &patch)))
}

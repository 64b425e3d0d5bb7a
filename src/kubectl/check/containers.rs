//! Finds the sidecar and the operator in a pod, and the settings that they are started with.

use serde_json::Value;

/// The name of the container that injection adds.
const SIDECAR: &str = "leasehold";
/// The variable that identifies the pod to an agent; only our containers have it.
const POD_UID: &str = "LEASEHOLD_POD_UID";

/// Returns the sidecar of a pod: the injected container, or one of the pod's own manifest.
#[must_use]
pub fn sidecar(pod: &Value) -> Option<&Value> {
    let is_ours = |container: &&Value| {
        container["name"] == SIDECAR
            || container["args"][0] == "sidecar"
            || each(&container["env"]).any(|variable| variable["name"] == POD_UID)
    };
    containers(&pod["spec"]).find(is_ours)
}

/// Returns the container of the operator.
#[must_use]
pub fn operator(deployment: &Value) -> Option<&Value> {
    let spec = &deployment["spec"]["template"]["spec"];
    each(&spec["containers"]).find(|container| container["args"][0] == "operator")
}

/// Returns the value of a setting: the flag, else the variable.
#[must_use]
pub fn setting<'a>(container: &'a Value, flag: &str, variable: &str) -> Option<&'a str> {
    let args = || each(&container["command"]).chain(each(&container["args"]));
    let mut words = args().filter_map(Value::as_str);
    while let Some(word) = words.next() {
        match word.strip_prefix(flag) {
            Some("") => return words.next(),
            Some(rest) if rest.starts_with('=') => return Some(&rest[1..]),
            _ => {}
        }
    }
    let variable = each(&container["env"]).find(|one| one["name"] == variable)?;
    variable["value"].as_str()
}

/// Returns whether a pod has ended: what it was started with no longer matters.
#[must_use]
pub fn has_ended(pod: &Value) -> bool {
    matches!(
        pod["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    )
}

/// Returns the name of an object.
#[must_use]
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the namespace of an object.
#[must_use]
pub fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// Returns the elements of a list; none if it is not one.
pub(super) fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    each(&spec["initContainers"]).chain(each(&spec["containers"]))
}

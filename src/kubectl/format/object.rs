//! Whole objects, as kubectl prints them with `-o json`, `-o yaml` and `-o name`.

use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Serializer, Value, json};

/// An object could not be serialized.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// As JSON.
    #[error("failed to write the object as JSON")]
    Json(#[from] serde_json::Error),
    /// As YAML.
    #[error("failed to write the object as YAML")]
    Yaml(#[from] serde_yaml::Error),
}

/// Returns the objects as the list that kubectl prints for several, and executes templates on.
#[must_use]
pub fn list(items: Vec<Value>) -> Value {
    let mut list = json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {"resourceVersion": ""},
    });
    // The macro would copy the objects.
    list["items"] = Value::Array(items);
    list
}

/// Returns JSON with kubectl's indentation and a line break at its end.
pub fn json(object: &Value) -> Result<String, ObjectError> {
    let mut text = Vec::new();
    let indented = PrettyFormatter::with_indent(b"    ");
    object.serialize(&mut Serializer::with_formatter(&mut text, indented))?;
    text.push(b'\n');
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns YAML with a line break at its end.
pub fn yaml(object: &Value) -> Result<String, ObjectError> {
    Ok(serde_yaml::to_string(object)?)
}

/// Returns what `-o name` prints for an object: `distributedlock.leasehold.dev/orders`, without the
/// line break. The core group has no name: `pod/web`.
#[must_use]
pub fn name(object: &Value) -> String {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let kind = text("/kind").unwrap_or_default().to_lowercase();
    let name = text("/metadata/name").unwrap_or_default();
    match text("/apiVersion").and_then(|version| version.split_once('/')) {
        Some((group, _)) => format!("{kind}.{group}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock() -> Value {
        json!({
            "apiVersion": "leasehold.dev/v1",
            "kind": "DistributedLock",
            "metadata": {"name": "orders"},
            "spec": {"resource": "no\u{1b}[2J"},
        })
    }

    #[test]
    fn json_is_indented_by_four_and_escaped() {
        let expected = r#"{
    "apiVersion": "leasehold.dev/v1",
    "kind": "DistributedLock",
    "metadata": {
        "name": "orders"
    },
    "spec": {
        "resource": "no\u001b[2J"
    }
}
"#;
        assert_eq!(json(&lock()).unwrap(), expected);
    }

    #[test]
    fn yaml_is_escaped() {
        let expected = r#"apiVersion: leasehold.dev/v1
kind: DistributedLock
metadata:
  name: orders
spec:
  resource: "no\e[2J"
"#;
        assert_eq!(yaml(&lock()).unwrap(), expected);
    }

    #[test]
    fn name_has_the_kind_and_its_group() {
        assert_eq!(name(&lock()), "distributedlock.leasehold.dev/orders");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}});
        assert_eq!(name(&pod), "pod/web");
    }

    #[test]
    fn several_objects_are_a_list() {
        let list = list(vec![lock()]);
        assert_eq!(list["kind"], "List");
        assert_eq!(list["items"][0]["metadata"]["name"], "orders");
    }
}

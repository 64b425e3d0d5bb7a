//! A JSON patch (RFC 6902) that only adds.
//!
//! An `add` replaces an existing member, so existing values are looked up first: no operation
//! changes a value of the pod.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Add {
    op: Op,
    /// A JSON pointer.
    path: String,
    value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Op {
    Add,
}

/// An object, and the additions to it.
pub(super) struct Draft {
    object: Value,
    adds: Vec<Add>,
}

impl Draft {
    pub(super) fn new(object: Value) -> Self {
        Self {
            object,
            adds: Vec::new(),
        }
    }

    /// Returns the patch from the original to the current object.
    pub(super) fn into_patch(self) -> Vec<Add> {
        self.adds
    }

    /// Adds a member to the object at `pointer`, which is created if it is missing.
    ///
    /// # Errors
    /// The existing value, which stays.
    pub(super) fn member(&mut self, pointer: &str, name: &str, value: Value) -> Result<(), Value> {
        let path = format!("{pointer}/{}", escaped(name));
        match self.object.pointer(&path) {
            // The API server treats null as absent.
            Some(there) if !there.is_null() => Err(there.clone()),
            _ => {
                self.put(path, value);
                Ok(())
            }
        }
    }

    /// Inserts an element into the array at `pointer`, which is created if it is missing.
    pub(super) fn insert(&mut self, pointer: &str, at: usize, value: Value) {
        let Some(Value::Array(elements)) = self.object.pointer_mut(pointer) else {
            return self.put(pointer.to_owned(), json!([value]));
        };
        let at = at.min(elements.len());
        elements.insert(at, value.clone());
        self.record(format!("{pointer}/{at}"), value);
    }

    /// Adds a value, with the missing objects around it.
    fn put(&mut self, path: String, value: Value) {
        let Some((parent, name)) = path.rsplit_once('/') else {
            return;
        };
        let name = name.replace("~1", "/").replace("~0", "~");
        if let Some(Value::Object(members)) = self.object.pointer_mut(parent) {
            members.insert(name, value.clone());
            return self.record(path, value);
        }
        let around = Value::Object(Map::from_iter([(name, value)]));
        self.put(parent.to_owned(), around);
    }

    fn record(&mut self, path: String, value: Value) {
        self.adds.push(Add {
            op: Op::Add,
            path,
            value,
        });
    }
}

/// Escapes a name for a JSON pointer (RFC 6901).
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(draft: Draft) -> Value {
        serde_json::to_value(draft.into_patch()).unwrap()
    }

    #[test]
    fn missing_parents_are_created_with_a_member() {
        let mut draft = Draft::new(json!({"spec": {"volumes": null}}));
        draft.member("/metadata/labels", "a/b", json!("1")).unwrap();
        draft.member("/metadata/labels", "c", json!("2")).unwrap();
        draft.insert("/spec/volumes", 7, json!({"name": "v"}));
        draft.insert("/spec/volumes", 0, json!({"name": "w"}));
        assert_eq!(
            patch(draft),
            json!([
                {"op": "add", "path": "/metadata", "value": {"labels": {"a/b": "1"}}},
                {"op": "add", "path": "/metadata/labels/c", "value": "2"},
                {"op": "add", "path": "/spec/volumes", "value": [{"name": "v"}]},
                {"op": "add", "path": "/spec/volumes/0", "value": {"name": "w"}},
            ])
        );
    }

    #[test]
    fn existing_member_stays() {
        let mut draft = Draft::new(json!({"metadata": {"labels": {"a~/b": "1"}}}));
        let there = draft.member("/metadata/labels", "a~/b", json!("2"));
        assert_eq!(there, Err(json!("1")));
        assert_eq!(patch(draft), json!([]));
    }
}

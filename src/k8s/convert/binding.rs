//! Converts role bindings.
//!
//! Reading is lenient: a binding is either what the operator would write, another state of the
//! operator's binding, or another user's binding.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Fields, as_read, required, stored};
use crate::store::namespaces::{Binding, Subject};
use crate::store::{StoreError, Stored};

/// The name of the role, and of the operator's bindings to it.
pub const NAME: &str = "leasehold-sidecar";
/// The label that names the manager of an object.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value on the operator's bindings.
pub(in crate::k8s) const OPERATOR: &str = "leasehold-operator";
/// The kind of the bindings.
pub const KIND: &str = "RoleBinding";
const GROUP: &str = "rbac.authorization.k8s.io";
/// The prefix of the group of all service accounts in a namespace.
const ACCOUNTS_OF: &str = "system:serviceaccounts:";

/// Reads a binding.
///
/// # Errors
/// `Unreadable` if it is not an object in a namespace.
pub fn read(object: Value) -> Result<Stored<Binding>, StoreError> {
    let Value::Object(object) = object else {
        let words = "a role binding that is no JSON object".to_owned();
        return Err(StoreError::Unreadable(words));
    };
    let metadata: Fields = required(&object, "binding", "metadata")?;
    let namespace: String = required(&metadata, "metadata", "namespace")?;
    let labels = metadata.get("labels").unwrap_or(&Value::Null);
    let subjects = object.get("subjects").and_then(Value::as_array);
    let subjects = subjects.into_iter().flatten();
    let value = Binding {
        is_ours: labels[MANAGED_BY] == OPERATOR,
        binds_role: object.get("roleRef") == Some(&role()),
        subjects: subjects.map(|who| subject(&namespace, who)).collect(),
    };
    stored(object, value)
}

fn subject(namespace: &str, who: &Value) -> Subject {
    let says = |field: &str| who[field].as_str().unwrap_or_default();
    match (says("kind"), says("apiGroup")) {
        ("Group", GROUP) if says("name").strip_prefix(ACCOUNTS_OF) == Some(namespace) => {
            Subject::AllAccounts
        }
        ("ServiceAccount", "") if says("namespace") == namespace => {
            Subject::Account(says("name").into())
        }
        _ => Subject::Other,
    }
}

/// Returns the `apiVersion` of role bindings.
#[must_use]
pub fn api_version() -> String {
    format!("{GROUP}/v1")
}

fn role() -> Value {
    json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": NAME})
}

/// Returns the object to create.
#[must_use]
pub fn new_object(namespace: &str, subjects: &BTreeSet<Subject>) -> Value {
    json!({
        "apiVersion": api_version(), "kind": KIND,
        "metadata": {"name": NAME, "namespace": namespace, "labels": {MANAGED_BY: OPERATOR}},
        "roleRef": role(),
        "subjects": written(namespace, subjects),
    })
}

/// Returns the object that binds these subjects, if it is still at `current`'s version.
///
/// # Errors
/// `Invalid` if `current` was not read by this adapter.
pub fn write(
    current: &Stored<Binding>,
    namespace: &str,
    subjects: &BTreeSet<Subject>,
) -> Result<Value, StoreError> {
    let mut object = as_read(current)?;
    // Objects in a list have neither field.
    object.insert("apiVersion".to_owned(), api_version().into());
    object.insert("kind".to_owned(), KIND.into());
    object.insert("subjects".to_owned(), written(namespace, subjects));
    Ok(Value::Object(object))
}

fn written(namespace: &str, subjects: &BTreeSet<Subject>) -> Value {
    let written = subjects.iter().filter_map(|subject| match subject {
        Subject::AllAccounts => Some(json!({
            "apiGroup": GROUP, "kind": "Group", "name": format!("{ACCOUNTS_OF}{namespace}"),
        })),
        Subject::Account(name) => Some(json!({
            "kind": "ServiceAccount", "name": &**name, "namespace": namespace,
        })),
        Subject::Other => None,
    });
    written.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(subjects: &[Subject]) -> Value {
        let mut object = new_object("team-a", &subjects.iter().cloned().collect());
        object["metadata"]["resourceVersion"] = "7".into();
        object
    }

    #[test]
    fn created_binding_reads_back_unchanged() {
        for subjects in [
            vec![],
            vec![Subject::AllAccounts],
            vec![Subject::Account("a".into()), Subject::Account("b".into())],
        ] {
            let read = read(made(&subjects)).unwrap().value;
            let expected = Binding {
                is_ours: true,
                binds_role: true,
                subjects: subjects.into_iter().collect(),
            };
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn subject_of_another_kind_or_namespace_is_foreign() {
        let namespace = "team-a";
        for who in [
            json!({"kind": "Group", "apiGroup": GROUP, "name": "system:serviceaccounts"}),
            json!({"kind": "Group", "apiGroup": GROUP, "name": "system:serviceaccounts:team-b"}),
            json!({"kind": "User", "apiGroup": GROUP, "name": "system:serviceaccounts:team-a"}),
            json!({"kind": "ServiceAccount", "name": "a", "namespace": "team-b"}),
            json!({"kind": "ServiceAccount", "name": "a"}),
            json!(7),
        ] {
            assert_eq!(subject(namespace, &who), Subject::Other, "{who}");
        }
    }

    #[test]
    fn other_role_or_missing_label_is_recognised() {
        for (path, value) in [
            ("/roleRef/name", "admin"),
            ("/roleRef/kind", "Role"),
            ("/roleRef/apiGroup", "x"),
        ] {
            let mut object = made(&[]);
            *object.pointer_mut(path).unwrap() = value.into();
            assert!(!read(object).unwrap().value.binds_role, "{path}");
        }
        let mut object = made(&[]);
        object["metadata"]["labels"] = json!({MANAGED_BY: "Helm"});
        assert!(!read(object).unwrap().value.is_ours);
    }

    #[test]
    fn update_keeps_foreign_fields_and_carries_the_version() {
        let mut object = made(&[Subject::AllAccounts]);
        object["metadata"]["annotations"] = json!({"note": "keep"});
        object["metadata"]["managedFields"] = json!([{}]);
        let mut listed = object.clone();
        listed.as_object_mut().unwrap().remove("kind");
        let current = read(listed).unwrap();
        let next = [Subject::Account("a".into())].into();
        let written = write(&current, "team-a", &next).unwrap();
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        object["subjects"] = json!([
            {"kind": "ServiceAccount", "name": "a", "namespace": "team-a"},
        ]);
        assert_eq!(written, object);
    }
}

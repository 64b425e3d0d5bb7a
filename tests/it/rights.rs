//! The rights that we ship, word by word: whoever widens one changes this file, so it is seen.
//!
//! That they are enough is shown by `e2e`, where nobody has others.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// Each role, API group, resource and its verbs.
const RULES: &[&str] = &[
    "leasehold-lock-admin: leasehold.dev distributedlocks: force-release get list patch update watch",
    "leasehold-operator-leader-labels: core pods: patch",
    "leasehold-operator: core pods: get list watch",
    "leasehold-operator: events.k8s.io events: create list",
    "leasehold-operator: leasehold.dev distributedlocks/status: update",
    "leasehold-operator: leasehold.dev distributedlocks: delete get list watch",
    "leasehold-operator: leasehold.dev locksessions/status: update",
    "leasehold-operator: leasehold.dev locksessions: delete get list watch",
    "leasehold-sidecar: leasehold.dev distributedlocks/status: patch",
    "leasehold-sidecar: leasehold.dev distributedlocks/status: update",
    "leasehold-sidecar: leasehold.dev distributedlocks: create get list watch",
    "leasehold-sidecar: leasehold.dev locksessions/status: update",
    "leasehold-sidecar: leasehold.dev locksessions: create get list watch",
];

/// Who has which role where.
const BINDINGS: &[&str] = &[
    "leasehold-operator everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-leader-labels everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-sidecar in leasehold-system: ServiceAccount leasehold-system/leasehold-operator",
];

#[test]
fn the_roles_that_we_ship_give_these_rights_and_no_others() {
    let mut given: Vec<String> = Vec::new();
    for (_, role) in shipped().iter().filter(|(kind, _)| kind == "ClusterRole") {
        let name = text(&role["metadata"]["name"]);
        // Either would give the role, or others, rights that do not stand here.
        assert_eq!(role["aggregationRule"], Value::Null, "{name}");
        assert_eq!(role["metadata"]["labels"], Value::Null, "{name}");
        for rule in each(&role["rules"]) {
            assert_eq!(rule.as_object().unwrap().len(), 3, "{name}: {rule}");
            let mut verbs: Vec<&str> = each(&rule["verbs"]).iter().map(text).collect();
            verbs.sort_unstable();
            let verbs = verbs.join(" ");
            for group in each(&rule["apiGroups"]).iter().map(text) {
                let group = if group.is_empty() { "core" } else { group };
                for resource in each(&rule["resources"]).iter().map(text) {
                    given.push(format!("{name}: {group} {resource}: {verbs}"));
                }
            }
        }
    }
    given.sort_unstable();
    assert_eq!(given, RULES);
}

#[test]
fn the_roles_that_we_ship_are_bound_to_the_operator_only() {
    let mut bound: Vec<String> = Vec::new();
    for (_, binding) in shipped()
        .iter()
        .filter(|(kind, _)| kind.ends_with("Binding"))
    {
        let place = match &binding["metadata"]["namespace"] {
            Value::Null => "everywhere".to_owned(),
            namespace => format!("in {}", text(namespace)),
        };
        assert_eq!(binding["roleRef"]["kind"], "ClusterRole");
        let role = text(&binding["roleRef"]["name"]);
        for subject in each(&binding["subjects"]) {
            let [kind, namespace, name] =
                ["kind", "namespace", "name"].map(|field| text(&subject[field]));
            bound.push(format!("{role} {place}: {kind} {namespace}/{name}"));
        }
    }
    bound.sort_unstable();
    assert_eq!(bound, BINDINGS);
}

#[test]
fn nothing_but_rights_is_shipped_among_the_rights() {
    for (kind, object) in shipped() {
        let known = ["ClusterRole", "ClusterRoleBinding", "RoleBinding"];
        assert!(known.contains(&&*kind), "{object}");
    }
}

/// Every object in the folder, by kind.
fn shipped() -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/leasehold/files/rbac");
    let mut objects = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let yaml = fs::read_to_string(file.unwrap().path()).unwrap();
        for document in serde_yaml::Deserializer::from_str(&yaml) {
            let object = Value::deserialize(document).unwrap();
            objects.push((text(&object["kind"]).to_owned(), object));
        }
    }
    objects
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[track_caller]
fn each(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

//! The shipped rights, one by one. A change that extends a right also changes this file, so it is
//! visible.
//!
//! `e2e` shows that they suffice: its processes have no others.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// Each role, API group, resource and its verbs. Brackets contain the only names that a rule
/// applies to.
const RULES: &[&str] = &[
    "leasehold-edit: leasehold.dev distributedlocks: create delete patch update",
    "leasehold-lock-admin: leasehold.dev distributedlocks: force-release get list patch update watch",
    "leasehold-operator-accounts: core serviceaccounts: get list watch",
    "leasehold-operator-bindings: rbac.authorization.k8s.io clusterroles [leasehold-sidecar]: bind",
    "leasehold-operator-bindings: rbac.authorization.k8s.io rolebindings [leasehold-sidecar]: delete list update watch",
    "leasehold-operator-bindings: rbac.authorization.k8s.io rolebindings: create",
    "leasehold-operator-certificates in leasehold-system: core secrets [leasehold-webhook-cert]: get list update watch",
    "leasehold-operator-certificates in leasehold-system: core secrets: create",
    "leasehold-operator-certificates: admissionregistration.k8s.io mutatingwebhookconfigurations [leasehold-injector]: get list patch watch",
    "leasehold-operator-leader-labels: core pods: patch",
    "leasehold-operator-leader-labels: leasehold.dev distributedlocks: patch",
    "leasehold-operator-namespaces: core namespaces: get list watch",
    "leasehold-operator: core nodes: list watch",
    "leasehold-operator: core pods: get list watch",
    "leasehold-operator: events.k8s.io events: create list",
    "leasehold-operator: leasehold.dev distributedlocks/status: update",
    "leasehold-operator: leasehold.dev distributedlocks: delete get list watch",
    "leasehold-operator: leasehold.dev locksessions/status: update",
    "leasehold-operator: leasehold.dev locksessions: delete get list watch",
    "leasehold-sidecar-events: events.k8s.io events: create",
    "leasehold-sidecar: leasehold.dev distributedlocks/status: patch",
    "leasehold-sidecar: leasehold.dev distributedlocks/status: update",
    "leasehold-sidecar: leasehold.dev distributedlocks: create get list watch",
    "leasehold-sidecar: leasehold.dev locksessions/status: update",
    "leasehold-sidecar: leasehold.dev locksessions: create get list watch",
    "leasehold-view: leasehold.dev distributedlocks: get list watch",
    "leasehold-view: leasehold.dev locksessions: get list watch",
];

/// The bindings of each role.
const BINDINGS: &[&str] = &[
    "leasehold-operator everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-accounts everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-bindings everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-certificates everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-certificates in leasehold-system: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-leader-labels everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-operator-namespaces everywhere: ServiceAccount leasehold-system/leasehold-operator",
    "leasehold-sidecar in leasehold-system: ServiceAccount leasehold-system/leasehold-operator",
];

/// The roles of Kubernetes that include ours, by the suffixes of their labels.
const AGGREGATED: &[&str] = &[
    "leasehold-edit to admin",
    "leasehold-edit to edit",
    "leasehold-view to admin",
    "leasehold-view to edit",
    "leasehold-view to view",
];

#[test]
fn shipped_roles_grant_exactly_these_rights() {
    let mut given: Vec<String> = Vec::new();
    for (_, role) in shipped().iter().filter(|(kind, _)| kind.ends_with("Role")) {
        let name = text(&role["metadata"]["name"]);
        // It would add rights that are not listed here.
        assert_eq!(role["aggregationRule"], Value::Null, "{name}");
        let place = match &role["metadata"]["namespace"] {
            Value::Null => String::new(),
            namespace => format!(" in {}", text(namespace)),
        };
        for rule in each(&role["rules"]) {
            for right in rights(rule) {
                given.push(format!("{name}{place}: {right}"));
            }
        }
    }
    given.sort_unstable();
    assert_eq!(given, RULES);
}

/// Returns the rights of one rule of a role, one line per resource.
fn rights(rule: &Value) -> Vec<String> {
    let names = match &rule["resourceNames"] {
        Value::Null => String::new(),
        names => format!(" [{}]", words(names)),
    };
    let fields = if names.is_empty() { 3 } else { 4 };
    assert_eq!(rule.as_object().unwrap().len(), fields, "{rule}");
    let verbs = words(&rule["verbs"]);
    let mut rights = Vec::new();
    for group in each(&rule["apiGroups"]).iter().map(text) {
        let group = if group.is_empty() { "core" } else { group };
        for resource in each(&rule["resources"]).iter().map(text) {
            rights.push(format!("{group} {resource}{names}: {verbs}"));
        }
    }
    rights
}

#[test]
fn default_kubernetes_roles_aggregate_exactly_these_roles() {
    let mut aggregated: Vec<String> = Vec::new();
    for (_, object) in shipped() {
        let name = text(&object["metadata"]["name"]);
        for (label, value) in object["metadata"]["labels"]
            .as_object()
            .into_iter()
            .flatten()
        {
            let to = label.strip_prefix("rbac.authorization.k8s.io/aggregate-to-");
            assert_eq!(value, "true", "{name}");
            aggregated.push(format!("{name} to {}", to.expect(label)));
        }
    }
    aggregated.sort_unstable();
    assert_eq!(aggregated, AGGREGATED);
}

#[test]
fn shipped_roles_are_bound_to_the_operator_only() {
    let mut bound: Vec<String> = Vec::new();
    for (_, binding) in shipped()
        .iter()
        .filter(|(kind, _)| kind.ends_with("Binding"))
    {
        let (place, of_role) = match &binding["metadata"]["namespace"] {
            Value::Null => ("everywhere".to_owned(), "ClusterRole"),
            // A ClusterRole of this name is bound above.
            namespace if binding["metadata"]["name"] == binding["roleRef"]["name"] => {
                (format!("in {}", text(namespace)), "Role")
            }
            namespace => (format!("in {}", text(namespace)), "ClusterRole"),
        };
        assert_eq!(binding["roleRef"]["kind"], of_role);
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
fn rights_directory_contains_rights_only() {
    for (kind, object) in shipped() {
        let known = ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
        assert!(known.contains(&&*kind), "{object}");
    }
}

/// Returns every object in the folder, by kind.
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

/// Returns a list of words, sorted.
#[track_caller]
fn words(value: &Value) -> String {
    let mut words: Vec<&str> = each(value).iter().map(text).collect();
    words.sort_unstable();
    words.join(" ")
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[track_caller]
fn each(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

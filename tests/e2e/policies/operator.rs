//! The operator: the rights of its role, and what it may do to pods.

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::fixture::{Expect, outcome};
use super::world::World;
use crate::harness::{
    Cluster, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, PATIENCE, TakeOver, eventually,
};

const OURS: &str = "leasehold.dev";

/// Verb, API group and resource of what the operator may do in every namespace.
const EVERYWHERE: [(&str, &str, &str); 12] = [
    ("watch", OURS, "distributedlocks"),
    ("delete", OURS, "distributedlocks"),
    ("update", OURS, "distributedlocks/status"),
    ("list", OURS, "locksessions"),
    ("delete", OURS, "locksessions"),
    ("update", OURS, "locksessions/status"),
    ("watch", "", "pods"),
    ("get", "", "pods"),
    ("list", "", "nodes"),
    ("watch", "", "nodes"),
    ("create", "events.k8s.io", "events"),
    ("list", "events.k8s.io", "events"),
];

/// The same for its own namespace, where it is a candidate of an election like any pod.
const AT_HOME: [(&str, &str, &str); 3] = [
    ("create", OURS, "distributedlocks"),
    ("patch", OURS, "distributedlocks/status"),
    ("create", OURS, "locksessions"),
];

/// The same for nowhere.
const NOWHERE: [(&str, &str, &str); 14] = [
    ("update", OURS, "distributedlocks"),
    ("patch", OURS, "distributedlocks"),
    ("force-release", OURS, "distributedlocks"),
    ("deletecollection", OURS, "distributedlocks"),
    ("update", OURS, "locksessions"),
    ("patch", "", "pods"),
    ("update", "", "pods"),
    ("delete", "", "pods"),
    ("update", "", "pods/status"),
    ("get", "", "secrets"),
    ("patch", "", "nodes"),
    ("create", "", "serviceaccounts/token"),
    ("impersonate", "", "users"),
    ("patch", "events.k8s.io", "events"),
];

#[tokio::test]
async fn operator_has_sidecar_rights_in_its_own_namespace_only() {
    let world = World::new(TakeOver::Strict).await;
    world.bare_operator().await;
    for (namespace, home) in [("default", false), (OPERATOR_NAMESPACE, true)] {
        for (rights, given) in [(&EVERYWHERE[..], true), (&AT_HOME, home), (&NOWHERE, false)] {
            for right in rights {
                let may = may_the_operator(&world, namespace, *right).await;
                assert_eq!(may, given, "{right:?} in {namespace}");
            }
        }
    }
}

async fn may_the_operator(
    world: &World,
    namespace: &str,
    (verb, group, resource): (&str, &str, &str),
) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({"metadata": {}, "spec": {
        "user": format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}"),
        "groups": ["system:serviceaccounts", "system:authenticated"],
        "resourceAttributes": {"namespace": namespace, "verb": verb, "group": group,
            "resource": resource, "subresource": subresource},
    }});
    let review: SubjectAccessReview = serde_json::from_value(review).expect("a review");
    let reviews = Api::all(world.admin.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    answer
        .expect("an answer")
        .status
        .expect("an answer")
        .allowed
}

const NO_OTHER_LABEL: &str = "writes only labels of a pod that begin";

#[tokio::test]
async fn the_operator_labels_leaders_only_where_that_was_installed() {
    let cluster = Cluster::fresh(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("labels").await.expect("a namespace");
    namespace.pod("a").await.expect("a pod");
    let operator = cluster.operator_pod("operator").await.expect("a pod");
    let client = operator.client().await.expect("a client");
    let pods: Api<Pod> = Api::namespaced(client, &namespace.name);
    let patch = json!({"metadata": {"labels": {"leasehold.dev/leader-billing": "true"}}});
    let (patch, params) = (Patch::Merge(patch), PatchParams::default());
    outcome(pods.patch("a", &params, &patch).await).refused("cannot patch");
    cluster.allow_leader_labels().await.expect("a role");
    let labelled = eventually("the right to label", PATIENCE, async || {
        pods.patch("a", &params, &patch).await.ok()
    });
    labelled.await.expect("a labelled pod");
    let other = Patch::Merge(json!({"metadata": {"labels": {"app": "x"}}}));
    outcome(pods.patch("a", &params, &other).await).refused(NO_OTHER_LABEL);
}

//! Tests pods that have ended, and pods that only appear to. Their statuses are those that kubelets
//! (1.27 and later) and the controllers of kube-controller-manager write.

use serde_json::json;

use super::*;
use crate::store::fleet::ObjectRef;
use ContainerReport::{Alive, Terminated, Unknown};

fn pod(status: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7",
            "labels": {"a": "b"}, "managedFields": [{"manager": "kubelet"}]},
        "spec": {"containers": [{"name": "app", "image": "app"}]},
        "status": status,
    })
}

fn ended(reason: &str) -> Value {
    json!({"name": "app", "state": {"terminated": {"exitCode": 0, "reason": reason}}})
}

fn disrupted(reason: &str, status: &str) -> Value {
    json!([{"type": "Ready", "status": "False"},
        {"type": "DisruptionTarget", "status": status, "reason": reason}])
}

fn read(object: Value) -> PodReport {
    report_of_object(object).unwrap()
}

#[test]
fn a_pod_whose_container_ended_is_reported_so() {
    for (phase, reason) in [
        ("Succeeded", "Completed"),
        ("Failed", "Error"),
        ("Failed", "OOMKilled"),
    ] {
        let report = read(pod(
            &json!({"phase": phase, "containerStatuses": [ended(reason)]}),
        ));
        let expected = PodReport {
            object_ref: ObjectRef {
                namespace: "n".into(),
                name: "p".into(),
            },
            uid: "u".into(),
            is_terminal: true,
            is_deleted: false,
            is_presumed: false,
            declared: 1,
            containers: vec![Terminated],
        };
        assert_eq!(report, expected, "{phase} {reason}");
    }
}

#[test]
fn end_reported_by_the_kubelet_differs_from_a_presumed_one() {
    let containers = json!([ended("Completed")]);
    for (status, presumed) in [
        // By the kubelet: an eviction, a shutdown of its node, an end that others requested.
        (json!({"reason": "Evicted"}), false),
        (json!({"reason": "Terminated"}), false),
        (json!({"reason": "DeadlineExceeded"}), false),
        (
            json!({"conditions": disrupted("TerminationByKubelet", "True")}),
            false,
        ),
        (
            json!({"conditions": disrupted("EvictionByEvictionAPI", "True")}),
            false,
        ),
        (
            json!({"conditions": disrupted("PreemptionByScheduler", "True")}),
            false,
        ),
        // By other components.
        (
            json!({"conditions": disrupted("DeletionByPodGC", "True")}),
            true,
        ),
        (
            json!({"conditions": disrupted("DeletionByPodGC", "False")}),
            true,
        ),
        (
            json!({"conditions": disrupted("DeletionByTaintManager", "True")}),
            true,
        ),
        (json!({"reason": "NodeLost"}), true),
        // The same word in another field has no meaning.
        (
            json!({"message": "NodeLost", "conditions": [{"type": "Ready",
            "reason": "DeletionByPodGC"}]}),
            false,
        ),
    ] {
        let mut status = status;
        status["phase"] = json!("Failed");
        status["containerStatuses"] = containers.clone();
        let report = read(pod(&status));
        assert!(report.is_terminal, "{status}");
        assert_eq!(report.is_presumed, presumed, "{status}");
    }
}

#[test]
fn only_succeeded_and_failed_are_terminal() {
    for (phase, terminal) in [
        (json!("Succeeded"), true),
        (json!("Failed"), true),
        (json!("Running"), false),
        (json!("Pending"), false),
        (json!("Unknown"), false),
        (json!("Retired"), false),
        (json!(""), false),
    ] {
        assert_eq!(
            read(pod(&json!({"phase": phase}))).is_terminal,
            terminal,
            "{phase}"
        );
    }
}

#[test]
fn container_has_ended_only_with_a_known_termination() {
    for (state, expected) in [
        (
            json!({"terminated": {"exitCode": 137, "reason": "Error"}}),
            Terminated,
        ),
        (json!({"terminated": {"exitCode": 0}}), Terminated),
        (
            json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}),
            Unknown,
        ),
        (
            json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}),
            Alive,
        ),
        (json!({"waiting": {"reason": "CrashLoopBackOff"}}), Alive),
        (json!({"waiting": {"reason": "PodInitializing"}}), Alive),
        (json!({}), Alive),
        (json!({"terminated": null}), Alive),
    ] {
        let status = json!({"phase": "Failed", "containerStatuses": [{"name": "app", "state": state,
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}}}]});
        assert_eq!(read(pod(&status)).containers, [expected], "{state}");
    }
    let status = json!({"phase": "Failed", "containerStatuses": [{"name": "app"}]});
    assert_eq!(read(pod(&status)).containers, [Alive]);
}

#[test]
fn all_kinds_of_containers_count() {
    let mut object = pod(&json!({
        "phase": "Running",
        "containerStatuses": [{"name": "app", "state": {"running": {}}}],
        "initContainerStatuses": [ended("Completed"), {"name": "side", "state": {"running": {}}}],
        "ephemeralContainerStatuses": [ended("Error")],
    }));
    object["spec"] = json!({
        "containers": [{"name": "app"}],
        "initContainers": [{"name": "prepare"}, {"name": "side", "restartPolicy": "Always"}],
        "ephemeralContainers": [{"name": "debug"}],
    });
    let report = read(object);
    assert_eq!(report.declared, 4);
    assert_eq!(report.containers, [Alive, Terminated, Alive, Terminated]);
}

#[test]
fn containers_of_a_pod_that_never_ran_are_unreported() {
    let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": "no room"});
    let report = read(pod(&status));
    assert_eq!((report.declared, report.containers.len()), (1, 0));
    let mut bare = pod(&json!({}));
    bare.as_object_mut().unwrap().remove("status");
    assert!(!read(bare).is_terminal);
}

#[test]
fn pod_being_deleted_is_reported_as_deleted() {
    let mut object = pod(&json!({"phase": "Running"}));
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let report = read(object);
    assert!(report.is_deleted && !report.is_terminal);
}

#[test]
fn labels_and_bookkeeping_are_not_kept() {
    let seen: PartialPod = serde_json::from_value(pod(&json!({}))).unwrap();
    let expected = ObjectMeta {
        name: Some("p".to_owned()),
        namespace: Some("n".to_owned()),
        uid: Some("u".to_owned()),
        resource_version: Some("7".to_owned()),
        ..ObjectMeta::default()
    };
    assert_eq!(seen.metadata, expected);
}

#[test]
fn non_pod_object_is_unreadable() {
    for object in [json!([]), json!({}), json!({"metadata": {"name": 1}})] {
        let error = report_of_object(object).unwrap_err();
        assert!(matches!(error, StoreError::Unreadable(_)), "{error}");
    }
}

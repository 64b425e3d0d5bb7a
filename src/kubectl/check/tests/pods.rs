//! The pod that the user names.

use serde_json::{Value, json};

use super::{check_cases, first, object, seen};
use crate::crd::session::RevocationRecord;
use crate::kubectl::check::Status::{Failed, Ok as Fine, Skipped, Warning};
use crate::kubectl::check::findings::Findings;
use crate::kubectl::world::Known;

fn named(findings: &mut Findings) -> &mut Value {
    object(&mut findings.pod.as_mut().unwrap().object)
}

/// Removes the sidecar, and returns the pod.
fn bare(findings: &mut Findings) -> &mut Value {
    let pod = named(findings);
    pod["spec"]["initContainers"] = json!([]);
    pod["metadata"]["annotations"] = json!({});
    pod["metadata"]["labels"] = json!({"leasehold.dev/inject": "true"});
    pod
}

fn label(findings: &mut Findings, value: &Value) {
    object(&mut findings.namespace_object)["metadata"]["labels"] =
        json!({"leasehold.dev/injection": value});
}

#[test]
fn reason_for_a_missing_sidecar_is_named() {
    let id = "pod-sidecar";
    check_cases(&[
        (id, Failed, "does not exist in namespace apps", |f| {
            f.pod.as_mut().unwrap().object = Known::Seen(None);
        }),
        (id, Failed, "static pod", |f| {
            bare(f)["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        }),
        (id, Failed, "Windows", |f| {
            bare(f)["spec"]["os"] = json!({"name": "windows"});
        }),
        (id, Failed, "the node's network", |f| {
            bare(f)["spec"]["hostNetwork"] = json!(true);
        }),
        (id, Failed, "leasehold.dev/inject is \"false\"", |f| {
            bare(f)["metadata"]["labels"]["leasehold.dev/inject"] = json!("false");
        }),
        (id, Failed, "no pod of this namespace", |f| {
            bare(f);
            f.namespace = "leasehold-system".to_owned();
        }),
        (id, Failed, "its namespace has no label", |f| {
            bare(f);
            label(f, &json!(null));
        }),
        (id, Failed, "injects on request", |f| {
            bare(f)["metadata"]["labels"] = json!({});
        }),
        (id, Failed, "of its namespace is \"true\"", |f| {
            bare(f);
            label(f, &json!("true"));
        }),
        (id, Failed, "it was created before", |f| {
            bare(f);
        }),
        (id, Failed, "as the operator says", |f| {
            bare(f);
            f.pod.as_mut().unwrap().events = Known::Seen(vec![
                json!({"reason": "NotInjected", "message": "as the operator says"}),
            ]);
        }),
    ]);
}

#[test]
fn sidecar_that_is_not_ready_says_why() {
    let id = "pod-ready";
    check_cases(&[
        (id, Failed, "CrashLoopBackOff (4 restarts)", |f| {
            named(f)["status"]["initContainerStatuses"][0] = json!({"name": "leasehold", "ready": false,
                "restartCount": 4, "state": {"waiting": {"reason": "CrashLoopBackOff"}}});
        }),
        (id, Failed, "startup probe", |f| {
            named(f)["status"]["initContainerStatuses"][0]["ready"] = json!(false);
        }),
        (id, Failed, "not started yet", |f| {
            named(f)["status"] = json!({});
        }),
        (id, Skipped, "has ended", |f| {
            named(f)["status"]["phase"] = json!("Succeeded");
        }),
    ]);
}

fn revoked(reason: &str) -> RevocationRecord {
    let record = json!({"reason": reason, "by": "operator-0", "at": "2026-01-01T11:00:00Z"});
    serde_json::from_value(record).unwrap()
}

#[test]
fn session_that_has_expired_or_was_revoked_is_named() {
    let id = "pod-session";
    check_cases(&[
        (id, Fine, "has no session", |f| {
            seen(&mut f.sessions).clear();
        }),
        (id, Fine, "has no session", |f| {
            named(f)["metadata"]["uid"] = json!("of its successor");
        }),
        (id, Fine, "has no session", |f| {
            first(&mut f.sessions).status.revoked = Some(revoked("Ended"));
        }),
        (id, Warning, "was revoked (Expired) by operator-0", |f| {
            first(&mut f.sessions).status.revoked = Some(revoked("Expired"));
        }),
        (id, Failed, "has expired: it was renewed 60s ago", |f| {
            first(&mut f.sessions).renewed = Some("2026-01-01T11:59:00Z".parse().unwrap());
        }),
        (id, Skipped, "does not say", |f| {
            first(&mut f.sessions).renewed = None;
        }),
    ]);
}

#[test]
fn sidecar_of_another_version_is_named() {
    let id = "pod-version";
    check_cases(&[
        (
            id,
            Warning,
            "is 0.0.9, and the installed version is 0.1.0",
            |f| {
                named(f)["metadata"]["annotations"]["leasehold.dev/sidecar-version"] =
                    json!("0.0.9");
            },
        ),
        (id, Skipped, "of its own manifest", |f| {
            named(f)["metadata"]["annotations"] = json!({});
        }),
    ]);
}

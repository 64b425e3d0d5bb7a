//! Whether the sidecar of one pod works; if the pod has none, why.

use serde_json::Value;

use super::containers::{each, has_ended, name, sidecar};
use super::findings::{Findings, PodFindings};
use super::operator::installed_version;
use super::{Check, CheckResult};
use crate::kubectl::format::human::human;
use crate::kubectl::session_health::Health;
use crate::kubectl::world::{Known, SessionSeen};

const SECTION: &str = "pod";
const SIDECAR: Check = Check::new(
    SECTION,
    "pod-sidecar",
    "injection.md#where-there-is-no-sidecar",
);
const READY: Check = Check::new(SECTION, "pod-ready", "sidecar.md#health-and-metrics");
const SESSION: Check = Check::new(
    SECTION,
    "pod-session",
    "runbooks/session-renewals-failing.md",
);
const VERSION: Check = Check::new(SECTION, "pod-version", "runbooks/sidecar-versions.md");

const INJECT: &str = "leasehold.dev/inject";
const INJECTION: &str = "leasehold.dev/injection";
const SIDECAR_VERSION: &str = "leasehold.dev/sidecar-version";
const UNIX_SOCKET: &str = "config.leasehold.dev/unix-socket";
/// The annotation that a kubelet sets on the mirror of a static pod.
const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let Some(found) = &findings.pod else {
        return Vec::new();
    };
    let namespace = &findings.namespace;
    let pod_name = &found.name;
    let pod = match &found.object {
        Known::Unknown(right) => {
            return vec![SIDECAR.without_right(&format!("pod {pod_name}"), right)];
        }
        Known::Seen(None) => {
            return vec![SIDECAR.failed(
                format!("pod {pod_name} does not exist in namespace {namespace}"),
                format!(
                    "kubectl --namespace {namespace} get events  # FailedCreate has the reason, \
                     if its controller cannot create it"
                ),
            )];
        }
        Known::Seen(Some(pod)) => pod,
    };
    let Some(container) = sidecar(pod) else {
        let (why, fix) = why_none(findings, found, pod);
        return vec![SIDECAR.failed(format!("pod {pod_name} has no sidecar: {why}"), fix)];
    };
    let container = container["name"].as_str().unwrap_or_default();
    vec![
        SIDECAR.ok(format!(
            "pod {pod_name} has a sidecar, the container {container}"
        )),
        ready(findings, pod, container),
        session(findings, pod, container),
        version(findings, pod),
    ]
}

/// Returns why a pod has no sidecar, and what to do.
fn why_none(findings: &Findings, found: &PodFindings, pod: &Value) -> (String, String) {
    let namespace = &findings.namespace;
    let label = format!("kubectl label namespace {namespace} {INJECTION}=on-request");
    let recreate = "delete the pod, so that its controller recreates it".to_owned();
    let annotations = &pod["metadata"]["annotations"];
    let asked = pod["metadata"]["labels"][INJECT].as_str();
    let object = findings.namespace_object.seen().and_then(Option::as_ref);
    let injection = object.map(|one| one["metadata"]["labels"][INJECTION].as_str());
    let why = |why: &str, fix: String| (why.to_owned(), fix);
    if !annotations[MIRROR].is_null() {
        return why(
            "it is a static pod, which no webhook changes",
            "run it by a controller".to_owned(),
        );
    }
    if pod["spec"]["os"]["name"] == "windows" {
        return why("it is a Windows pod", "run it on Linux".to_owned());
    }
    if pod["spec"]["hostNetwork"] == true && annotations[UNIX_SOCKET] != "true" {
        let fix = format!("set the annotation {UNIX_SOCKET}: \"true\" in its template");
        return why(
            "it is on the node's network, where every process could use the port",
            fix,
        );
    }
    if asked == Some("false") {
        return why(
            &format!("its label {INJECT} is \"false\""),
            "remove that label from its template".to_owned(),
        );
    }
    if namespace == "kube-system" || namespace == findings.home() {
        return why(
            "no pod of this namespace gets a sidecar",
            "run it in another namespace".to_owned(),
        );
    }
    match (injection, asked) {
        (Some(None), _) => why(
            &format!("its namespace has no label {INJECTION}"),
            format!("{label}, then {recreate}"),
        ),
        (Some(Some("on-request")), None) => why(
            &format!(
                "it does not request one: its namespace injects on request, and it has no label \
                 {INJECT}"
            ),
            format!("set the label {INJECT}: \"true\" in its template"),
        ),
        (Some(Some(other)), _) if !matches!(other, "on-request" | "enabled") => why(
            &format!("the label {INJECTION} of its namespace is {other:?}"),
            format!("{label} --overwrite"),
        ),
        _ => {
            let events = found.events.seen().map_or(&[][..], Vec::as_slice);
            let event = events.iter().find(|event| event["reason"] == "NotInjected");
            let message = event.and_then(|event| event["message"].as_str());
            let missed = "it was created before it or its namespace was labelled, or the webhook \
                          was not called";
            (
                message.unwrap_or(missed).to_owned(),
                format!("{recreate}; if that one has none either, see the checks of the webhook"),
            )
        }
    }
}

fn ready(findings: &Findings, pod: &Value, container: &str) -> CheckResult {
    let namespace = &findings.namespace;
    let pod_name = name(pod);
    let status = &pod["status"];
    let statuses = each(&status["initContainerStatuses"]).chain(each(&status["containerStatuses"]));
    let mut statuses = statuses.filter(|one| one["name"] == container);
    let logs = format!("kubectl --namespace {namespace} logs {pod_name} --container {container}");
    if has_ended(pod) {
        return READY.skipped(format!("pod {pod_name} has ended"));
    }
    let Some(status) = statuses.next() else {
        return READY.failed(
            format!("the sidecar of pod {pod_name} was not started yet: no kubelet reports it"),
            format!("kubectl --namespace {namespace} describe pod {pod_name}"),
        );
    };
    let restarts = status["restartCount"].as_u64().unwrap_or_default();
    if status["ready"] == true {
        return READY.ok(format!("the sidecar is ready, after {restarts} restarts"));
    }
    let state = &status["state"];
    let reason = ["waiting", "terminated"]
        .iter()
        .find_map(|one| state[one]["reason"].as_str());
    let reason = reason.unwrap_or("its startup probe has not succeeded yet");
    READY.failed(
        format!("the sidecar of pod {pod_name} is not ready: {reason} ({restarts} restarts)"),
        logs,
    )
}

fn session(findings: &Findings, pod: &Value, container: &str) -> CheckResult {
    let pod_name = name(pod);
    let sessions = match &findings.sessions {
        Known::Unknown(right) => {
            return SESSION.without_right(&format!("the session of pod {pod_name}"), right);
        }
        Known::Seen(sessions) => sessions,
    };
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let of_pod = sessions
        .iter()
        .filter(|one| one.spec.pod_uid == uid && !uid.is_empty());
    let none = format!(
        "pod {pod_name} has no session: its sidecar begins one with the first acquire, and ends \
         it when idle"
    );
    let Some(last) = of_pod.max_by_key(|one: &&SessionSeen| (one.renewed, one.created)) else {
        return SESSION.ok(none);
    };
    let logs = format!(
        "kubectl --namespace {} logs {pod_name} --container {container}",
        findings.namespace
    );
    let session = &last.name;
    match Health::at(findings.now, last) {
        Health::Live { silent, .. } => SESSION.ok(format!(
            "its session {session} was renewed {} \
                                                           ago",
            human(silent)
        )),
        Health::Revoked { reason, .. } if reason == "Ended" => SESSION.ok(none),
        Health::Revoked { reason, by } => SESSION.warning(
            format!(
                "its last session {session} was revoked ({reason}) by {by}; the next acquire \
                     begins another one"
            ),
            logs,
        ),
        Health::Expired { silent } => SESSION.failed(
            format!(
                "its session {session} has expired: it was renewed {} ago",
                human(silent)
            ),
            logs,
        ),
        Health::Missing => SESSION.ok(none),
        Health::Unknown(why) => SESSION.skipped(format!("its session {session}: {why}")),
    }
}

fn version(findings: &Findings, pod: &Value) -> CheckResult {
    let Some(version) = pod["metadata"]["annotations"][SIDECAR_VERSION].as_str() else {
        return VERSION.skipped(format!(
            "the sidecar of pod {} is of its own manifest: no annotation has its version",
            name(pod)
        ));
    };
    let expected = installed_version(findings);
    if version == expected {
        return VERSION.ok(format!(
            "the sidecar is of the installed version, {version}"
        ));
    }
    VERSION.warning(
        format!(
            "the sidecar of pod {} is {version}, and the installed version is {expected}",
            name(pod)
        ),
        "recreate the pod, so that it gets the installed version",
    )
}

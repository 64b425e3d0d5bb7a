//! Sidecars of the namespace: their mode, their versions and the clocks of their nodes.

use serde_json::json;

use super::faults::peer;
use super::{check_cases, first, object, pod, seen, session};
use crate::kubectl::check::Status::{Ok as Fine, Skipped, Warning};

#[test]
fn sidecars_of_another_mode_are_named() {
    let id = "sidecars-mode";
    check_cases(&[
        (
            id,
            Warning,
            "sidecars of 1 pod in namespace apps try take-overs that the strict policies refuse: a",
            |f| {
                first(&mut f.pods)["spec"]["initContainers"][0]["env"] = json!([]);
            },
        ),
        (id, Warning, "leave take-overs to the operator", |f| {
            f.policies = peer();
            object(&mut f.injection)["takeOver"] = json!("auto");
        }),
        (id, Fine, "configured for this mode", |f| {
            first(&mut f.pods)["spec"]["initContainers"][0] =
                json!({"name": "mine", "args": ["sidecar", "--take-over", "strict"]});
        }),
        (id, Skipped, "no pod in namespace apps", |f| {
            seen(&mut f.pods).clear();
        }),
    ]);
}

#[test]
fn agents_of_other_versions_are_counted() {
    let id = "sidecar-versions";
    check_cases(&[
        (id, Warning, "0.0.9 (1 agent), 0.1.0 (1 agent)", |f| {
            let mut old = first(&mut f.sessions).clone();
            old.spec.agent_version = "0.0.9".to_owned();
            seen(&mut f.sessions).push(old);
        }),
        (id, Fine, "1 agent in namespace apps, of", |f| {
            // A session that has expired says nothing about what runs.
            let mut expired = session("b", "2026-01-01T11:00:00Z", "2026-01-01T11:00:00Z");
            expired.spec.agent_version = "0.0.9".to_owned();
            seen(&mut f.sessions).push(expired);
        }),
        (
            id,
            Skipped,
            "no agent in namespace apps has a session",
            |f| seen(&mut f.sessions).clear(),
        ),
    ]);
}

#[test]
fn nodes_whose_clocks_differ_are_named() {
    let id = "clock-skew";
    check_cases(&[
        (id, Warning, "node node-of-b is 3 s slow", |f| {
            seen(&mut f.sessions).push(session(
                "b",
                "2026-01-01T11:59:55Z",
                "2026-01-01T11:59:58Z",
            ));
        }),
        (id, Warning, "node node-of-b is 61 s fast", |f| {
            seen(&mut f.sessions).push(session(
                "b",
                "2026-01-01T12:00:59Z",
                "2026-01-01T11:59:58Z",
            ));
        }),
        (id, Fine, "within 2 s", |f| {
            seen(&mut f.sessions).push(session(
                "b",
                "2026-01-01T11:59:56Z",
                "2026-01-01T11:59:58Z",
            ));
        }),
        (id, Skipped, "has renewed a session yet", |f| {
            first(&mut f.sessions).status.renewed_at = None;
        }),
    ]);
}

#[test]
fn sidecars_are_found_in_pods_of_any_manifest() {
    use crate::kubectl::check::containers::{setting, sidecar};
    let names = |pod: &serde_json::Value| sidecar(pod).map(|one| one["name"].clone());
    assert_eq!(names(&pod("a")), Some(json!("leasehold")));
    let own = json!({"spec": {"containers": [{"name": "app"}, {"name": "mine",
        "env": [{"name": "LEASEHOLD_POD_UID"}]}]}});
    assert_eq!(names(&own), Some(json!("mine")));
    assert_eq!(
        names(&json!({"spec": {"containers": [{"name": "app"}]}})),
        None
    );
    let container =
        json!({"args": ["--flag=1", "--flagged=2"], "env": [{"name": "V", "value": "3"}]});
    assert_eq!(setting(&container, "--flag", "V"), Some("1"));
    assert_eq!(setting(&container, "--flagge", "V"), Some("3"));
    assert_eq!(setting(&container, "--other", "W"), None);
}

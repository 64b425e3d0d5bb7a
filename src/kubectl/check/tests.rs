//! A sound installation, and what the checks say after one thing in it was changed.

mod faults;
mod pods;
mod sidecars;

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::findings::{
    Account, Certificate, DryRun, Findings, Origin, PodFindings, PreFindings, Shipped, Validity,
    WebhookFindings,
};
use super::text::text;
use super::{CheckResult, Status, count, run, run_pre, unreachable};
use crate::kubectl::world::{Known, OperatorSeen, SessionSeen};

const NOW: &str = "2026-01-01T12:00:00Z";

fn chart(file: &str) -> Vec<Value> {
    let path = format!(
        "{}/charts/leasehold/files/{file}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents
        .map(|document| Value::deserialize(document).unwrap())
        .collect()
}

fn of_kind(objects: &[Value], kind: &str) -> Vec<Value> {
    let of_kind = objects.iter().filter(|object| object["kind"] == kind);
    of_kind.cloned().collect()
}

fn admission(take_over: &str) -> Vec<Value> {
    let files = [
        "create",
        "delete",
        "identity-lock",
        "identity-session",
        "operator-locks",
        take_over,
    ];
    let objects = files
        .iter()
        .flat_map(|file| chart(&format!("admission/{file}.yaml")));
    // Helm adds it.
    let labelled = objects.map(|mut object| {
        object["metadata"]["labels"] = json!({"app.kubernetes.io/version": "0.1.0"});
        object
    });
    labelled.collect()
}

fn definitions() -> Vec<Value> {
    let kinds = ["distributedlocks", "locksessions"];
    let files = kinds
        .iter()
        .flat_map(|kind| chart(&format!("crds/{kind}.leasehold.dev.yaml")));
    files.collect()
}

fn shipped() -> Shipped {
    let policies = of_kind(&admission("take-over-strict"), "ValidatingAdmissionPolicy");
    Shipped {
        version: "0.1.0".to_owned(),
        definitions: definitions(),
        policies: policies
            .iter()
            .map(|one| super::containers::name(one).to_owned())
            .collect(),
        sidecar_rules: chart("rbac/sidecar.yaml")[0]["rules"]
            .as_array()
            .unwrap()
            .clone(),
        flow_control: chart("flowcontrol.yaml"),
    }
}

fn installed_definitions() -> Vec<Known<Option<Value>>> {
    let established = json!({"conditions": [{"type": "Established", "status": "True"}]});
    let installed = definitions().into_iter().map(|mut definition| {
        definition["status"] = established.clone();
        Known::Seen(Some(definition))
    });
    installed.collect()
}

fn operator() -> Value {
    json!({"kind": "Deployment",
        "metadata": {"name": "leasehold-operator", "namespace": "leasehold-system",
            "labels": {"app.kubernetes.io/version": "0.1.0"}},
        "spec": {"replicas": 2, "template": {"spec": {"serviceAccountName": "leasehold-operator",
            "containers": [{"name": "operator",
                "args": ["operator", "--token-floor=0", "--webhook-listen=[::]:10250"]}]}}},
        "status": {"readyReplicas": 2}})
}

fn webhook() -> WebhookFindings {
    let webhook = |name: &str| {
        json!({"name": name, "clientConfig": {"caBundle": "eA==",
            "service": {"name": "leasehold-webhook", "namespace": "leasehold-system"}}})
    };
    WebhookFindings {
        configuration: Known::Seen(Some(json!({"metadata": {"name": "leasehold-injector"},
            "webhooks": [webhook("asked.leasehold.dev"), webhook("enabled.leasehold.dev")]}))),
        service: Known::Seen(Some(json!({"metadata": {"name": "leasehold-webhook"}}))),
        endpoints: Known::Seen(vec![json!({"endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}}]})]),
        certificate: Known::Seen(Some(Certificate {
            secret: "leasehold-system/leasehold-webhook-cert".to_owned(),
            content: Ok(Validity {
                not_before: "2025-12-01T00:00:00Z".parse().unwrap(),
                not_after: "2026-03-01T00:00:00Z".parse().unwrap(),
                distrusted: Vec::new(),
            }),
        })),
    }
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-{name}"),
            "annotations": {"leasehold.dev/sidecar-version": "0.1.0"}},
        "spec": {"serviceAccountName": "app", "containers": [{"name": "app"}],
            "initContainers": [{"name": "leasehold", "args": ["sidecar"], "env": [
                {"name": "LEASEHOLD_TOKEN_FLOOR", "value": "0"},
                {"name": "LEASEHOLD_TAKE_OVER", "value": "strict"}]}]},
        "status": {"phase": "Running",
            "initContainerStatuses": [{"name": "leasehold", "ready": true, "restartCount": 0}]}})
}

/// A session whose node's clock says `by_node`, and which the API server has stamped at `by_server`.
fn session(pod: &str, by_node: &str, by_server: &str) -> SessionSeen {
    let object = json!({
        "metadata": {"name": format!("{pod}-0123456789ab"), "namespace": "apps",
            "managedFields": [{"subresource": "status", "time": by_server}]},
        "spec": {"pod": pod, "podUid": format!("uid-{pod}"), "node": format!("node-of-{pod}"),
            "ttlSeconds": 15, "agentVersion": "0.1.0"},
        "status": {"renewals": 3, "renewedAt": by_node},
    });
    SessionSeen::read(&object).unwrap()
}

fn healthy() -> Findings {
    let admission = admission("take-over-strict");
    Findings {
        now: NOW.parse().unwrap(),
        server: json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0"}),
        own: shipped(),
        definitions: installed_definitions(),
        policies: Known::Seen(of_kind(&admission, "ValidatingAdmissionPolicy")),
        bindings: Known::Seen(of_kind(&admission, "ValidatingAdmissionPolicyBinding")),
        operators: Known::Seen(vec![operator()]),
        leader: Known::Seen(OperatorSeen::Active {
            namespace: "leasehold-system".to_owned(),
            pod: "leasehold-operator-0".to_owned(),
            version: "0.1.0".to_owned(),
        }),
        injection: Known::Seen(Some(
            json!({"image": "x", "takeOver": "strict", "tokenFloor": 0}),
        )),
        webhook: webhook(),
        namespace: "apps".to_owned(),
        namespace_object: Known::Seen(Some(json!({"metadata": {"name": "apps",
            "labels": {"leasehold.dev/injection": "on-request"}}}))),
        pods: Known::Seen(vec![pod("a")]),
        sessions: Known::Seen(vec![session(
            "a",
            "2026-01-01T11:59:58.5Z",
            "2026-01-01T11:59:58Z",
        )]),
        role: Known::Seen(Some(chart("rbac/sidecar.yaml").remove(0))),
        accounts: vec![Account {
            name: "app".to_owned(),
            origin: Origin::OfPods,
            missing: Known::Seen(Vec::new()),
        }],
        flow_control: Known::Seen(chart("flowcontrol.yaml")),
        dry_run: DryRun::Accepted,
        pod: Some(PodFindings {
            name: "a".to_owned(),
            object: Known::Seen(Some(pod("a"))),
            events: Known::Seen(Vec::new()),
        }),
    }
}

/// A change, and what one check says after it.
type Case = (&'static str, Status, &'static str, fn(&mut Findings));

/// Makes each change on its own to a sound installation.
fn check_cases(cases: &[Case]) {
    for (id, status, words, change) in cases {
        let mut findings = healthy();
        change(&mut findings);
        let results = run(&findings);
        let result = results.iter().find(|result| result.id == *id);
        let result = result.unwrap_or_else(|| panic!("{id} is missing: {words}"));
        assert_eq!(result.status, *status, "{words}: {result:?}");
        assert!(result.message.contains(words), "{words}: {result:?}");
        let needs_fix = matches!(status, Status::Warning | Status::Failed);
        assert_eq!(result.fix.is_some(), needs_fix, "{result:?}");
    }
}

fn seen<T>(known: &mut Known<T>) -> &mut T {
    match known {
        Known::Seen(value) => value,
        Known::Unknown(why) => panic!("{why}"),
    }
}

fn first<T>(known: &mut Known<Vec<T>>) -> &mut T {
    &mut seen(known)[0]
}

fn object(known: &mut Known<Option<Value>>) -> &mut Value {
    seen(known).as_mut().unwrap()
}

fn no_right<T>() -> Known<T> {
    Known::Unknown("you cannot read it".to_owned())
}

#[test]
fn healthy_installation_passes_every_check() {
    let results = run(&healthy());
    let ids: Vec<_> = results.iter().map(|result| result.id).collect();
    let expected = [
        "api-reachable",
        "api-version",
        "definition-distributedlocks",
        "definition-locksessions",
        "policies-installed",
        "policies-bound",
        "policies-version",
        "policies-operator",
        "policies-mode",
        "sidecars-mode",
        "operator-ready",
        "operator-version",
        "operator-leader",
        "webhook-configuration",
        "webhook-endpoints",
        "webhook-certificate",
        "webhook-ca",
        "rights-role",
        "rights-service-account",
        "sidecar-versions",
        "clock-skew",
        "flow-control",
        "token-floors",
        "dry-run",
        "pod-sidecar",
        "pod-ready",
        "pod-session",
        "pod-version",
    ];
    assert_eq!(ids, expected);
    for result in results {
        assert_eq!(result.status, Status::Ok, "{result:?}");
    }
}

#[test]
fn without_any_right_nothing_fails_and_rights_are_named() {
    let mut findings = healthy();
    findings.definitions = vec![no_right(), no_right()];
    findings.policies = no_right();
    findings.bindings = no_right();
    findings.operators = no_right();
    findings.leader = no_right();
    findings.injection = no_right();
    findings.webhook.configuration = no_right();
    findings.namespace_object = no_right();
    findings.pods = no_right();
    findings.sessions = no_right();
    findings.role = no_right();
    findings.accounts[0].missing = no_right();
    findings.flow_control = no_right();
    findings.dry_run = DryRun::NotAllowed("you cannot read it".to_owned());
    findings.pod.as_mut().unwrap().object = no_right();
    let results = run(&findings);
    let api_server = 2;
    assert_eq!(count(&results, Status::Ok), api_server);
    for result in &results[api_server..] {
        assert_eq!(result.status, Status::Skipped, "{result:?}");
        assert!(
            result.message.contains("because you cannot read it"),
            "{result:?}"
        );
    }
}

#[test]
fn api_server_that_does_not_answer_is_a_failure() {
    let results = unreachable("the API server cannot be reached: refused");
    assert_eq!(count(&results, Status::Failed), 1);
    assert_eq!(results[0].id, "api-reachable");
}

fn empty() -> PreFindings {
    PreFindings {
        server: json!({"major": "1", "minor": "33+", "gitVersion": "v1.33.1-x"}),
        rights: Known::Seen(vec![("create clusterroles".to_owned(), true)]),
        operators: Known::Seen(Vec::new()),
        leftovers: Vec::new(),
        unknown: Vec::new(),
    }
}

#[test]
fn empty_cluster_is_ready_for_an_installation() {
    let results = run_pre(&empty());
    let ids: Vec<_> = results.iter().map(|result| result.id).collect();
    assert_eq!(
        ids,
        ["api-reachable", "api-version", "pre-rights", "pre-absent"]
    );
    assert_eq!(count(&results, Status::Ok), ids.len());
}

#[test]
fn obstacles_to_an_installation_are_named() {
    type Case = (&'static str, Status, &'static str, fn(&mut PreFindings));
    let cases: [Case; 6] = [
        ("pre-rights", Status::Skipped, "you cannot read it", |f| {
            f.rights = no_right();
        }),
        (
            "pre-rights",
            Status::Failed,
            "you cannot create clusterroles",
            |f| first(&mut f.rights).1 = false,
        ),
        (
            "pre-absent",
            Status::Failed,
            "already, in namespace leasehold-system",
            |f| {
                f.operators = Known::Seen(vec![operator()]);
            },
        ),
        (
            "pre-absent",
            Status::Warning,
            "has left ClusterRole x",
            |f| f.leftovers = vec!["ClusterRole x".to_owned()],
        ),
        ("pre-absent", Status::Skipped, "you cannot read it", |f| {
            f.operators = no_right();
        }),
        (
            "api-version",
            Status::Failed,
            "v1.32.9, older than 1.33",
            |f| {
                f.server = json!({"major": "1", "minor": "32", "gitVersion": "v1.32.9"});
            },
        ),
    ];
    for (id, status, words, change) in cases {
        let mut findings = empty();
        change(&mut findings);
        let results = run_pre(&findings);
        let result = results.iter().find(|result| result.id == id).unwrap();
        assert_eq!(result.status, status, "{result:?}");
        assert!(result.message.contains(words), "{result:?}");
    }
}

#[test]
fn oldest_supported_version_is_that_of_the_chart() {
    let path = format!("{}/charts/leasehold/Chart.yaml", env!("CARGO_MANIFEST_DIR"));
    let chart: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (major, minor) = super::api_server::OLDEST;
    assert_eq!(chart["kubeVersion"], format!(">={major}.{minor}.0-0"));
}

fn three_results() -> Vec<CheckResult> {
    let check = |id| super::Check::new("operator", id, "install.md");
    let other = super::Check::new("rights", "c", "sidecar.md#rights");
    vec![
        check("a").ok("fine"),
        check("b").failed("broken", "repair it"),
        other.skipped("not checked"),
    ]
}

#[test]
fn text_has_sections_marks_fixes_and_a_summary() {
    let expected = "operator\n--------\n√ fine\n× broken\n    repair it\n    \
                    see https://github.com/leasehold/leasehold/blob/main/docs/install.md\n\n\
                    rights\n------\n- not checked\n\n1 ok, 0 warnings, 1 failed, 1 skipped\n";
    assert_eq!(text(&three_results(), false), expected);
    let coloured = text(&three_results(), true);
    assert!(
        coloured.contains("\u{1b}[31m×\u{1b}[0m broken"),
        "{coloured}"
    );
}

#[test]
fn json_names_section_id_status_message_fix_and_link() {
    let written = serde_json::to_value(&three_results()[1]).unwrap();
    let expected = json!({"section": "operator", "id": "b", "status": "failed", "message": "broken",
        "fix": "repair it", "link": "https://github.com/leasehold/leasehold/blob/main/docs/install.md"});
    assert_eq!(written, expected);
}

/// Returns the anchor that a page has for a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut found = 0;
    for entry in std::fs::read_dir(format!("{root}/src/kubectl/check")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() || path.ends_with("tests.rs") {
            continue;
        }
        let source = std::fs::read_to_string(path).unwrap();
        for page in source
            .split('"')
            .filter(|part| part.contains(".md") && !part.contains(' '))
        {
            let (file, heading) = page.split_once('#').unwrap_or((page, ""));
            let content = std::fs::read_to_string(format!("{root}/docs/{file}")).expect(page);
            let mut headings = content.lines().filter(|line| line.starts_with('#'));
            assert!(
                heading.is_empty() || headings.any(|line| anchor(line) == heading),
                "{page}"
            );
            found += 1;
        }
    }
    assert!(found > 20, "only {found} links");
}

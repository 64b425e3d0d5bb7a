//! Faults of the installation: definitions, policies, operator, webhook, rights, flow control, floors.

use serde_json::{Value, json};

use super::{admission, check_cases, first, no_right, object, of_kind, operator, seen};
use crate::kubectl::check::Status::{Failed, Ok as Fine, Skipped, Warning};
use crate::kubectl::check::findings::{Certificate, DryRun, Origin, Right, Validity};
use crate::kubectl::check::mode::{Mode, mode};
use crate::kubectl::world::{Known, OperatorSeen};

const FENCE: &str = include_str!("../../../../charts/leasehold/files/fencing/objects.yaml");
const LOCKS: &str = "definition-distributedlocks";

fn schema(definition: &mut Value) -> &mut Value {
    &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

#[test]
fn old_server_is_named_and_an_unknown_one_is_skipped() {
    check_cases(&[
        ("api-version", Failed, "v1.32.0, older than 1.33", |f| {
            f.server = json!({"major": "1", "minor": "32", "gitVersion": "v1.32.0"});
        }),
        ("api-version", Fine, "v1.33.2-gke", |f| {
            f.server = json!({"major": "1", "minor": "33+", "gitVersion": "v1.33.2-gke"});
        }),
        ("api-version", Skipped, "does not say", |f| {
            f.server = json!({});
        }),
    ]);
}

#[test]
fn missing_old_and_unserved_definitions_are_named() {
    check_cases(&[
        (LOCKS, Failed, "is not installed", |f| {
            f.definitions[0] = Known::Seen(None);
        }),
        ("definition-locksessions", Failed, "is not installed", |f| {
            f.definitions[1] = Known::Seen(None);
        }),
        (LOCKS, Failed, "not established (names conflict)", |f| {
            object(&mut f.definitions[0])["status"]["conditions"] =
                json!([{"type": "NamesAccepted", "status": "False", "message": "names conflict"}]);
        }),
        (LOCKS, Failed, "does not serve v1alpha1", |f| {
            object(&mut f.definitions[0])["spec"]["versions"][0]["served"] = json!(false);
        }),
        (LOCKS, Failed, "it lacks spec.longHeldSeconds", |f| {
            let spec =
                &mut schema(object(&mut f.definitions[0]))["properties"]["spec"]["properties"];
            spec.as_object_mut().unwrap().remove("longHeldSeconds");
        }),
        (LOCKS, Failed, "it lacks status.waiters[].queuedAt", |f| {
            let status =
                &mut schema(object(&mut f.definitions[0]))["properties"]["status"]["properties"];
            let waiter = &mut status["waiters"]["items"]["properties"];
            waiter.as_object_mut().unwrap().remove("queuedAt");
        }),
        (
            LOCKS,
            Fine,
            "newer than this plugin: it also has spec.added",
            |f| {
                schema(object(&mut f.definitions[0]))["properties"]["spec"]["properties"]["added"] =
                    json!({"type": "string"});
            },
        ),
        (LOCKS, Skipped, "because you cannot", |f| {
            f.definitions[0] = no_right();
        }),
    ]);
}

#[test]
fn policies_that_are_missing_are_named() {
    check_cases(&[
        (
            "policies-installed",
            Failed,
            "leasehold-lock-identity",
            |f| {
                seen(&mut f.policies)
                    .retain(|one| one["metadata"]["name"] != "leasehold-lock-identity");
            },
        ),
        ("policies-installed", Failed, "policies are missing", |f| {
            seen(&mut f.policies).clear();
        }),
        (
            "policies-installed",
            Warning,
            "no admission policy is installed",
            |f| {
                seen(&mut f.policies).clear();
                object(&mut f.injection)["takeOver"] = json!("auto");
            },
        ),
    ]);
}

#[test]
fn policies_that_do_not_deny_or_are_of_others_are_named() {
    check_cases(&[
        (
            "policies-bound",
            Failed,
            "Ignore: leasehold-lock-create",
            |f| {
                first(&mut f.bindings)["spec"]["validationActions"] = json!(["Warn", "Audit"]);
            },
        ),
        (
            "policies-bound",
            Failed,
            "Ignore: leasehold-lock-create",
            |f| {
                first(&mut f.bindings)["spec"]["matchResources"] = json!({"namespaceSelector": {}});
            },
        ),
        (
            "policies-bound",
            Failed,
            "Ignore: leasehold-lock-create",
            |f| {
                first(&mut f.policies)["spec"]["failurePolicy"] = json!("Ignore");
            },
        ),
        ("policies-bound", Fine, "each policy", |f| {
            seen(&mut f.policies).push(serde_yaml::from_str(FENCE).unwrap());
        }),
        ("policies-bound", Failed, "and 5 more", |f| {
            seen(&mut f.bindings).clear();
        }),
        ("policies-bound", Skipped, "because you cannot", |f| {
            f.bindings = no_right();
        }),
        (
            "policies-operator",
            Failed,
            "the operator is other:leasehold-operator",
            |f| {
                first(&mut f.operators)["metadata"]["namespace"] = json!("other");
            },
        ),
        (
            "policies-version",
            Warning,
            "leasehold-lock-create (0.0.9)",
            |f| {
                first(&mut f.policies)["metadata"]["labels"]["app.kubernetes.io/version"] =
                    json!("0.0.9");
            },
        ),
        ("policies-version", Skipped, "no label", |f| {
            for policy in seen(&mut f.policies) {
                policy["metadata"]["labels"] = json!({});
            }
        }),
        (
            "policies-operator",
            Skipped,
            "no operator is installed",
            |f| seen(&mut f.operators).clear(),
        ),
    ]);
}

#[test]
fn mode_is_read_from_the_shipped_policies() {
    let policies = |file| of_kind(&admission(file), "ValidatingAdmissionPolicy");
    let strict = policies("take-over-strict");
    assert_eq!(mode(&strict), Mode::Strict);
    assert_eq!(mode(&policies("take-over-peer")), Mode::Peer);
    assert_eq!(mode(&strict[..strict.len() - 1]), Mode::None);
    let mut mixed = strict;
    mixed.pop();
    mixed.extend(policies("take-over-peer").pop());
    assert_eq!(mode(&mixed), Mode::Mixed);
}

#[test]
fn unexpected_modes_are_named() {
    let id = "policies-mode";
    check_cases(&[
        (id, Failed, "unexpected peer mode", |f| f.policies = peer()),
        (id, Fine, "peer mode", |f| {
            f.policies = peer();
            object(&mut f.injection)["takeOver"] = json!("auto");
        }),
        (id, Warning, "no configuration of sidecars says", |f| {
            f.policies = peer();
            f.injection = Known::Seen(None);
        }),
        (id, Warning, "unexpected strict mode", |f| {
            object(&mut f.injection)["takeOver"] = json!("auto");
        }),
        (id, Failed, "of both modes", |f| {
            seen(&mut f.policies).pop();
            let revoke = seen(&mut peer()).pop();
            seen(&mut f.policies).extend(revoke);
        }),
        (id, Failed, "no mode", |f| drop(seen(&mut f.policies).pop())),
        (id, Warning, "mode off", |f| {
            seen(&mut f.policies).clear();
            f.injection = Known::Seen(None);
        }),
    ]);
}

pub(super) fn peer() -> Known<Vec<Value>> {
    Known::Seen(of_kind(
        &admission("take-over-peer"),
        "ValidatingAdmissionPolicy",
    ))
}

#[test]
fn operator_that_is_absent_idle_or_old_is_named() {
    check_cases(&[
        ("operator-ready", Failed, "no operator is installed", |f| {
            seen(&mut f.operators).clear();
        }),
        ("operator-ready", Failed, "0 of 2 replicas", |f| {
            first(&mut f.operators)["status"] = json!({});
        }),
        ("operator-ready", Failed, "scaled to 0", |f| {
            first(&mut f.operators)["spec"]["replicas"] = json!(0);
        }),
        ("operator-ready", Warning, "1 of 2 replicas", |f| {
            first(&mut f.operators)["status"]["readyReplicas"] = json!(1);
        }),
        ("operator-version", Warning, "the operator is 0.0.9", |f| {
            first(&mut f.operators)["metadata"]["labels"]["app.kubernetes.io/version"] =
                json!("0.0.9");
        }),
        ("operator-version", Skipped, "no label", |f| {
            first(&mut f.operators)["metadata"]["labels"] = json!({});
        }),
        (
            "operator-leader",
            Failed,
            "may stay held: pod x is silent",
            |f| {
                f.leader = Known::Seen(OperatorSeen::Absent("pod x is silent".to_owned()));
            },
        ),
    ]);
}

fn certificate(validity: Result<Validity, String>) -> Known<Option<Certificate>> {
    Known::Seen(Some(Certificate {
        secret: "leasehold-system/leasehold-webhook-cert".to_owned(),
        content: validity,
    }))
}

fn valid(from: &str, until: &str) -> Validity {
    Validity {
        not_before: from.parse().unwrap(),
        not_after: until.parse().unwrap(),
        distrusted: Vec::new(),
    }
}

#[test]
fn webhook_that_cannot_be_called_is_named() {
    check_cases(&[
        ("webhook-configuration", Failed, "does not exist", |f| {
            f.webhook.configuration = Known::Seen(None);
        }),
        (
            "webhook-configuration",
            Skipped,
            "installed without its webhook",
            |f| {
                f.webhook.configuration = Known::Seen(None);
                let container =
                    &mut first(&mut f.operators)["spec"]["template"]["spec"]["containers"][0];
                container["args"] = json!(["operator"]);
            },
        ),
        (
            "webhook-configuration",
            Failed,
            "no CA bundle is set for asked.leasehold.dev",
            |f| {
                object(&mut f.webhook.configuration)["webhooks"][0]["clientConfig"]["caBundle"] =
                    json!(null);
            },
        ),
        ("webhook-configuration", Failed, "has no webhook", |f| {
            object(&mut f.webhook.configuration)["webhooks"] = json!([]);
        }),
        ("webhook-endpoints", Failed, "Service that", |f| {
            f.webhook.service = Known::Seen(None);
        }),
        ("webhook-endpoints", Failed, "no ready endpoint", |f| {
            seen(&mut f.webhook.endpoints).clear();
        }),
        ("webhook-endpoints", Failed, "no ready endpoint", |f| {
            first(&mut f.webhook.endpoints)["endpoints"][0]["conditions"]["ready"] = json!(false);
        }),
        ("webhook-endpoints", Skipped, "because you cannot", |f| {
            f.webhook.endpoints = no_right();
        }),
    ]);
}

#[test]
fn certificate_that_is_expired_or_distrusted_is_named() {
    let id = "webhook-certificate";
    check_cases(&[
        (id, Failed, "expired 3h ago", |f| {
            f.webhook.certificate =
                certificate(Ok(valid("2025-12-01T00:00:00Z", "2026-01-01T09:00:00Z")));
        }),
        (id, Failed, "not valid yet, only in 12h", |f| {
            f.webhook.certificate =
                certificate(Ok(valid("2026-01-02T00:00:00Z", "2026-03-01T00:00:00Z")));
        }),
        (id, Warning, "expires in 3d", |f| {
            f.webhook.certificate =
                certificate(Ok(valid("2025-12-01T00:00:00Z", "2026-01-04T12:00:00Z")));
        }),
        (id, Failed, "tls.key is not the key", |f| {
            f.webhook.certificate =
                certificate(Err("tls.key is not the key of tls.crt".to_owned()));
        }),
        (id, Failed, "does not exist", |f| {
            f.webhook.certificate = Known::Seen(None);
        }),
        (id, Skipped, "because you cannot", |f| {
            f.webhook.certificate = no_right();
        }),
        (
            "webhook-ca",
            Failed,
            "asked.leasehold.dev: unknown issuer",
            |f| {
                let mut validity = valid("2025-12-01T00:00:00Z", "2026-03-01T00:00:00Z");
                validity
                    .distrusted
                    .push("asked.leasehold.dev: unknown issuer".to_owned());
                f.webhook.certificate = certificate(Ok(validity));
            },
        ),
    ]);
}

fn missing() -> Known<Vec<Right>> {
    Known::Seen(vec![Right {
        verb: "update".to_owned(),
        resource: "locksessions/status".to_owned(),
    }])
}

#[test]
fn missing_role_and_missing_rights_are_named() {
    let id = "rights-service-account";
    check_cases(&[
        ("rights-role", Failed, "does not exist", |f| {
            f.role = Known::Seen(None);
        }),
        (
            "rights-role",
            Failed,
            "it lacks patch distributedlocks/status",
            |f| {
                object(&mut f.role)["rules"].as_array_mut().unwrap().pop();
            },
        ),
        ("rights-role", Fine, "has the rights", |f| {
            object(&mut f.role)["rules"] = json!([{"resources": ["*"], "verbs": ["*"]}]);
        }),
        (
            id,
            Failed,
            "app in namespace apps cannot update locksessions/status",
            |f| f.accounts[0].missing = missing(),
        ),
        (id, Skipped, "use --service-account", |f| {
            f.accounts[0].origin = Origin::Assumed;
            f.accounts[0].missing = missing();
            object(&mut f.namespace_object)["metadata"]["labels"] = json!({});
        }),
        (id, Failed, "cannot update", |f| {
            f.accounts[0].origin = Origin::Assumed;
            f.accounts[0].missing = missing();
        }),
    ]);
}

#[test]
fn fix_of_missing_rights_is_a_command_that_binds_the_role() {
    let mut findings = super::healthy();
    findings.accounts[0].missing = missing();
    let results = crate::kubectl::check::run(&findings);
    let result = results
        .iter()
        .find(|one| one.id == "rights-service-account")
        .unwrap();
    let command = "kubectl --namespace apps create rolebinding leasehold-sidecar-app \
                   --clusterrole=leasehold-sidecar \
                   --serviceaccount=apps:app";
    assert_eq!(result.fix.as_deref(), Some(command));
}

#[test]
fn flow_control_is_optional_and_must_be_complete() {
    check_cases(&[
        ("flow-control", Skipped, "flowControl.enabled=false", |f| {
            seen(&mut f.flow_control).clear();
        }),
        (
            "flow-control",
            Warning,
            "FlowSchema leasehold is missing",
            |f| drop(seen(&mut f.flow_control).pop()),
        ),
    ]);
}

#[test]
fn mixed_token_floors_are_named_with_their_places() {
    let id = "token-floors";
    check_cases(&[
        (
            id,
            Failed,
            "0 in the configuration of injected sidecars, the policies, pod a; 7 in the operator",
            |f| {
                let container =
                    &mut first(&mut f.operators)["spec"]["template"]["spec"]["containers"][0];
                container["args"][1] = json!("--token-floor=7");
            },
        ),
        (id, Failed, "7 in the configuration", |f| {
            object(&mut f.injection)["tokenFloor"] = json!(7);
        }),
        (id, Failed, "7 in pod a", |f| {
            first(&mut f.pods)["spec"]["initContainers"][0]["env"][0]["value"] = json!("7");
        }),
        (id, Failed, "7 in pod a", |f| {
            first(&mut f.pods)["spec"]["initContainers"][0]["args"] =
                json!(["sidecar", "--token-floor", "7"]);
        }),
        (id, Fine, "0 everywhere", |f| {
            first(&mut f.pods)["status"]["phase"] = json!("Succeeded");
            first(&mut f.pods)["spec"]["initContainers"][0]["env"][0]["value"] = json!("7");
        }),
        (id, Fine, "elsewhere not, because you cannot", |f| {
            f.pods = no_right();
        }),
        (id, Skipped, "nothing that has a token floor", |f| {
            seen(&mut f.operators).clear();
            seen(&mut f.policies).clear();
            seen(&mut f.pods).clear();
            f.injection = Known::Seen(None);
        }),
    ]);
}

#[test]
fn dry_run_that_is_refused_says_why() {
    check_cases(&[
        ("dry-run", Failed, "exceeded quota", |f| {
            f.dry_run = DryRun::Refused("exceeded quota".to_owned());
        }),
        ("dry-run", Failed, "does not serve the kind", |f| {
            f.dry_run = DryRun::NotServed;
        }),
        ("dry-run", Skipped, "you cannot create", |f| {
            f.dry_run = DryRun::NotAllowed("you cannot create distributedlocks".to_owned());
        }),
    ]);
}

#[test]
fn fixes_name_the_namespace_of_the_release() {
    let mut findings = super::healthy();
    let mut elsewhere = operator();
    elsewhere["metadata"]["namespace"] = json!("locks");
    findings.operators = Known::Seen(vec![elsewhere]);
    assert!(findings.upgrade("").contains("--namespace locks --reset"));
    findings.operators = Known::Seen(Vec::new());
    assert_eq!(findings.home(), "leasehold-system");
}

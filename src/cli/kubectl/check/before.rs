//! Reads what matters before an installation.

use serde_json::{Value, json};

use super::objects::{find, list, may};
use super::read::{ADMISSION, DEFINITIONS, INJECTOR, OPERATOR, ROLE, ROLES, policies};
use super::shipped::shipped;
use crate::cli::kubectl::api::{Api, encoded};
use crate::cli::kubectl::failure::Failure;
use crate::kubectl::check::containers::name;
use crate::kubectl::check::findings::PreFindings;
use crate::kubectl::world::Known;

/// What the installation creates, by API group.
const CREATED: [(&str, &str); 8] = [
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
    ),
    (
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
    ),
    (
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
    ),
    (
        "flowcontrol.apiserver.k8s.io",
        "prioritylevelconfigurations",
    ),
    ("flowcontrol.apiserver.k8s.io", "flowschemas"),
];

/// Reads what matters before an installation.
pub(super) async fn findings(api: &Api, server: Value) -> Result<PreFindings, Failure> {
    let deployments = format!("labelSelector={}", encoded(OPERATOR));
    let mut findings = PreFindings {
        server,
        rights: rights(api).await?,
        operators: list(api, "/apis/apps/v1/deployments", &deployments).await?,
        leftovers: Vec::new(),
        unknown: Vec::new(),
    };
    let mut places = vec![
        (
            "MutatingWebhookConfiguration",
            format!("{ADMISSION}/mutatingwebhookconfigurations/{INJECTOR}"),
        ),
        ("ClusterRole", format!("{ROLES}/{ROLE}")),
    ];
    for definition in &shipped()?.definitions {
        places.push((
            "CustomResourceDefinition",
            format!("{DEFINITIONS}/{}", name(definition)),
        ));
    }
    for (kind, path) in places {
        match find(api, &path).await? {
            Known::Seen(Some(object)) => {
                findings.leftovers.push(format!("{kind} {}", name(&object)));
            }
            Known::Seen(None) => {}
            Known::Unknown(right) => findings.unknown.push(right),
        }
    }
    match policies(api).await? {
        Known::Seen(found) => {
            let found = found
                .iter()
                .map(|one| format!("ValidatingAdmissionPolicy {}", name(one)));
            findings.leftovers.extend(found);
        }
        Known::Unknown(right) => findings.unknown.push(right),
    }
    Ok(findings)
}

async fn rights(api: &Api) -> Result<Known<Vec<(String, bool)>>, Failure> {
    let mut rights = Vec::new();
    for (group, resource) in CREATED {
        let attributes = json!({"verb": "create", "group": group, "resource": resource});
        let spec = json!({"resourceAttributes": attributes});
        match may(api, "SelfSubjectAccessReview", &spec).await? {
            Known::Seen(allowed) => rights.push((format!("create {resource}"), allowed)),
            Known::Unknown(right) => return Ok(Known::Unknown(right)),
        }
    }
    Ok(Known::Seen(rights))
}

//! Whether the pods' `ServiceAccounts` have the rights of a sidecar.

use std::collections::BTreeSet;

use serde_json::Value;

use super::containers::each;
use super::findings::{Account, Findings, Origin, Right};
use super::{Check, CheckResult};
use crate::kubectl::world::Known;

const SECTION: &str = "rights";
const ROLE: Check = Check::new(SECTION, "rights-role", "sidecar.md#rights");
const ACCOUNT: Check = Check::new(SECTION, "rights-service-account", "sidecar.md#rights");

/// The label of a namespace whose pods get sidecars.
const INJECTION: &str = "leasehold.dev/injection";

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let mut results = vec![role(findings)];
    results.extend(findings.accounts.iter().map(|one| account(findings, one)));
    results
}

/// Returns the rights that the rules of a role on our kinds give.
#[must_use]
pub fn rights_of(rules: &[Value]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for resource in each(&rule["resources"]).filter_map(Value::as_str) {
            for verb in each(&rule["verbs"]).filter_map(Value::as_str) {
                rights.insert(Right {
                    verb: verb.to_owned(),
                    resource: resource.to_owned(),
                });
            }
        }
    }
    rights
}

fn role(findings: &Findings) -> CheckResult {
    let role = match &findings.role {
        Known::Unknown(right) => {
            return ROLE.without_right("the ClusterRole leasehold-sidecar", right);
        }
        Known::Seen(None) => {
            return ROLE.failed(
                "the ClusterRole leasehold-sidecar does not exist",
                findings.upgrade(""),
            );
        }
        Known::Seen(Some(role)) => role,
    };
    let given = rights_of(role["rules"].as_array().map_or(&[], Vec::as_slice));
    let has = |right: &&Right| {
        let all = |part: &str| part == "*";
        given.iter().any(|one| {
            (one.verb == right.verb || all(&one.verb))
                && (one.resource == right.resource || all(&one.resource))
        })
    };
    let needed = rights_of(&findings.own.sidecar_rules);
    let missing: Vec<_> = needed
        .iter()
        .filter(|right| !has(right))
        .map(words)
        .collect();
    if missing.is_empty() {
        return ROLE.ok("the ClusterRole leasehold-sidecar has the rights of a sidecar");
    }
    ROLE.failed(
        format!(
            "the ClusterRole leasehold-sidecar is older than this plugin: it lacks {}",
            missing.join(", ")
        ),
        findings.upgrade(""),
    )
}

fn account(findings: &Findings, account: &Account) -> CheckResult {
    let namespace = &findings.namespace;
    let name = &account.name;
    let who = format!("the ServiceAccount {name} in namespace {namespace}");
    let missing = match &account.missing {
        Known::Unknown(right) => {
            return ACCOUNT.without_right(&format!("the rights of {who}"), right);
        }
        Known::Seen(missing) => missing,
    };
    if missing.is_empty() {
        return ACCOUNT.ok(format!("{who} has the rights of a sidecar"));
    }
    if account.origin == Origin::Assumed && !is_labelled(findings) {
        return ACCOUNT.skipped(format!(
            "no pod in namespace {namespace} has a sidecar, and the namespace has no label \
             {INJECTION}; use \
             --service-account to check one"
        ));
    }
    let missing: Vec<_> = missing.iter().map(words).collect();
    ACCOUNT.failed(
        format!("{who} cannot {}", missing.join(", ")),
        format!(
            "kubectl --namespace {namespace} create rolebinding leasehold-sidecar-{name} \
             --clusterrole=leasehold-sidecar --serviceaccount={namespace}:{name}"
        ),
    )
}

fn is_labelled(findings: &Findings) -> bool {
    let object = findings.namespace_object.seen().and_then(Option::as_ref);
    object.is_some_and(|object| object["metadata"]["labels"][INJECTION].is_string())
}

fn words(right: &Right) -> String {
    format!("{} {}", right.verb, right.resource)
}

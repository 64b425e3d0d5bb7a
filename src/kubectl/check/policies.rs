//! Whether the admission policies are installed, deny, and exempt the operator that runs.

use serde_json::Value;

use super::containers::{each, name, namespace};
use super::findings::Findings;
use super::operator::{installed_version, version_of};
use super::{Check, CheckResult, some_of};
use crate::kubectl::world::Known;

const SECTION: &str = "policies";
const INSTALLED: Check = Check::new(SECTION, "policies-installed", "install.md#policies");
const BOUND: Check = Check::new(SECTION, "policies-bound", "install.md#policies");
const VERSION: Check = Check::new(SECTION, "policies-version", "install.md#policies");
const OPERATOR: Check = Check::new(SECTION, "policies-operator", "install.md#policies");

/// The policy that exempts the operator by its name.
const IDENTITY: &str = "leasehold-lock-identity";
const ACCOUNT: &str = "system:serviceaccount:";

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let policies = match &findings.policies {
        Known::Unknown(right) => {
            return vec![INSTALLED.without_right("the admission policies", right)];
        }
        Known::Seen(policies) => policies,
    };
    let mut results = vec![installed(findings, policies)];
    if !policies.is_empty() {
        results.push(match &findings.bindings {
            Known::Unknown(right) => BOUND.without_right("the bindings of the policies", right),
            Known::Seen(bindings) => bound(findings, policies, bindings),
        });
        results.push(version(findings, policies));
        results.push(operator(findings, policies));
    }
    results
}

fn restore(findings: &Findings) -> String {
    let command = findings.upgrade("");
    format!("{command}  # if it restores nothing, delete the policies first, as the page says")
}

fn installed(findings: &Findings, policies: &[Value]) -> CheckResult {
    let is_there = |wanted: &&String| {
        policies
            .iter()
            .any(|policy| name(policy) == wanted.as_str())
    };
    let missing: Vec<_> = findings
        .own
        .policies
        .iter()
        .filter(|one| !is_there(one))
        .collect();
    if missing.is_empty() {
        let number = policies.len();
        return INSTALLED.ok(format!("{number} policies of Leasehold are installed"));
    }
    let is_strict =
        matches!(&findings.injection, Known::Seen(Some(file)) if file["takeOver"] == "strict");
    if policies.is_empty() && !is_strict {
        return INSTALLED.warning(
            "no admission policy is installed: a pod can act for another pod of its namespace",
            "upgrade the chart with admissionPolicy.mode=strict, unless you have chosen mode off",
        );
    }
    INSTALLED.failed(
        format!("policies are missing: {}", some_of(&missing)),
        restore(findings),
    )
}

fn bound(findings: &Findings, policies: &[Value], bindings: &[Value]) -> CheckResult {
    let mut wrong = Vec::new();
    for policy in policies {
        let name = name(policy);
        // One with a parameter is bound by its users, for the objects that they choose.
        let is_for_users = policy["spec"]["paramKind"].is_object();
        let ours = bindings
            .iter()
            .filter(|one| one["spec"]["policyName"] == name);
        let mut denying =
            ours.filter(|one| each(&one["spec"]["validationActions"]).any(|a| a == "Deny"));
        // A binding may be narrower than its policy.
        let everywhere = |one: &Value| one["spec"]["matchResources"].is_null();
        let fails_closed = policy["spec"]["failurePolicy"] != "Ignore";
        if !fails_closed || !(is_for_users || denying.any(everywhere)) {
            wrong.push(name);
        }
    }
    if wrong.is_empty() {
        return BOUND.ok("each policy has a binding with Deny");
    }
    BOUND.failed(
        format!(
            "policies do not deny, because no binding has the action Deny for all objects, or \
             failurePolicy is Ignore: {}",
            some_of(&wrong)
        ),
        restore(findings),
    )
}

/// An uninstallation and mode `off` leave the policies behind, which a newer operator may contradict.
fn version(findings: &Findings, policies: &[Value]) -> CheckResult {
    let expected = installed_version(findings);
    let labelled = policies
        .iter()
        .filter_map(|one| Some((name(one), version_of(one)?)));
    let labelled: Vec<_> = labelled.collect();
    let others = labelled.iter().filter(|(_, version)| *version != expected);
    let others: Vec<_> = others
        .map(|(name, version)| format!("{name} ({version})"))
        .collect();
    if labelled.is_empty() {
        return VERSION.skipped("the policies have no label with their version");
    }
    if others.is_empty() {
        return VERSION.ok(format!(
            "the policies are of the installed version, {expected}"
        ));
    }
    VERSION.warning(
        format!(
            "policies of another version than {expected} are installed: {}",
            some_of(&others)
        ),
        restore(findings),
    )
}

/// The policies exempt one operator. Another one could do nothing.
fn operator(findings: &Findings, policies: &[Value]) -> CheckResult {
    let Some(named) = policies
        .iter()
        .find(|one| name(one) == IDENTITY)
        .and_then(exempt)
    else {
        return OPERATOR.skipped("no installed policy names the operator");
    };
    let running = match &findings.operators {
        Known::Unknown(right) => return OPERATOR.without_right("the operator's account", right),
        Known::Seen(operators) => operators.iter().map(account).collect::<Vec<_>>(),
    };
    if running.is_empty() {
        return OPERATOR.skipped(format!(
            "the policies exempt {named}, and no operator is installed"
        ));
    }
    if running.contains(&named) {
        return OPERATOR.ok(format!(
            "the policies exempt the operator's account {named}"
        ));
    }
    OPERATOR.failed(
        format!(
            "the policies exempt {named}, and the operator is {}: it can free no lock",
            some_of(&running)
        ),
        "delete the policies as the page says, then upgrade the chart",
    )
}

/// Returns the account that a policy exempts, as `NAMESPACE:NAME`.
fn exempt(policy: &Value) -> Option<String> {
    let conditions = each(&policy["spec"]["matchConditions"]);
    let texts = conditions.filter_map(|one| one["expression"].as_str());
    let quoted = texts.flat_map(|text| text.split('\''));
    let mut accounts = quoted.filter_map(|text| text.strip_prefix(ACCOUNT));
    accounts
        .find(|account| !account.is_empty())
        .map(str::to_owned)
}

fn account(deployment: &Value) -> String {
    let spec = &deployment["spec"]["template"]["spec"];
    let account = spec["serviceAccountName"].as_str().unwrap_or("default");
    format!("{}:{account}", namespace(deployment))
}

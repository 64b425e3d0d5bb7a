//! Whether an operator runs, is the version of this plugin, and one replica acts.

use serde_json::Value;

use super::containers::namespace;
use super::findings::Findings;
use super::{Check, CheckResult};
use crate::kubectl::world::{Known, OperatorSeen};

const SECTION: &str = "operator";
const READY: Check = Check::new(SECTION, "operator-ready", "runbooks/operator-absent.md");
const VERSION: Check = Check::new(SECTION, "operator-version", "runbooks/upgrade.md");
const LEADER: Check = Check::new(SECTION, "operator-leader", "runbooks/no-active-operator.md");

/// The label of the chart with its version.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    let mut results = match &findings.operators {
        Known::Unknown(right) => vec![READY.without_right("the operator's Deployment", right)],
        Known::Seen(operators) => match operators.first() {
            None => vec![READY.failed(
                "no operator is installed: no Deployment has its labels",
                "install the chart, or restore the Deployment leasehold-operator with helm upgrade",
            )],
            Some(operator) => vec![ready(operator), version(findings, operator)],
        },
    };
    results.push(leader(findings));
    results
}

fn ready(operator: &Value) -> CheckResult {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let namespace = namespace(operator);
    let wanted = operator["spec"]["replicas"].as_u64().unwrap_or(1);
    let ready = number(&operator["status"]["readyReplicas"]);
    let what =
        format!("{ready} of {wanted} replicas of the operator in namespace {namespace} are ready");
    if wanted == 0 {
        return READY.failed(
            format!("the operator in namespace {namespace} is scaled to 0 replicas"),
            format!(
                "kubectl --namespace {namespace} scale deployment/leasehold-operator --replicas=2"
            ),
        );
    }
    let look = format!(
        "kubectl --namespace {namespace} describe pods --selector app.kubernetes.io/component=operator"
    );
    if ready == 0 {
        READY.failed(what, look)
    } else if ready < wanted {
        READY.warning(what, look)
    } else {
        READY.ok(what)
    }
}

/// Returns the version of an object of the chart, as its label says; `None` if it has none.
pub(super) fn version_of(object: &Value) -> Option<&str> {
    object["metadata"]["labels"][VERSION_LABEL].as_str()
}

/// Returns the version that is installed: the operator's or, if that is not known, this plugin's.
pub(super) fn installed_version(findings: &Findings) -> &str {
    let operator = findings.operators.seen().and_then(|all| all.first());
    operator
        .and_then(version_of)
        .unwrap_or(&findings.own.version)
}

fn version(findings: &Findings, operator: &Value) -> CheckResult {
    let own = findings.own.version.as_str();
    match version_of(operator) {
        None => VERSION.skipped("the operator's Deployment has no label with its version"),
        Some(version) if version == own => VERSION.ok(format!(
            "the operator has the version of this plugin, {own}"
        )),
        Some(version) => VERSION.warning(
            format!("the operator is {version}, and this plugin is {own}"),
            "use the plugin of the operator's version, or upgrade the chart",
        ),
    }
}

fn leader(findings: &Findings) -> CheckResult {
    match &findings.leader {
        Known::Unknown(right) => LEADER.without_right("the active replica", right),
        Known::Seen(OperatorSeen::Active { namespace, pod, .. }) => LEADER.ok(format!(
            "pod {pod} in namespace {namespace} is the active replica"
        )),
        Known::Seen(OperatorSeen::Absent(why)) => LEADER.failed(
            format!("no operator is active, so the locks of crashed pods may stay held: {why}"),
            format!(
                "kubectl --namespace {} get pods --selector app.kubernetes.io/component=operator",
                findings.home()
            ),
        ),
    }
}

//! Whether the chart can be installed by this user, in this cluster.

use super::containers::namespace;
use super::findings::PreFindings;
use super::{Check, CheckResult, some_of};
use crate::kubectl::world::Known;

const SECTION: &str = "pre-installation";
const RIGHTS: Check = Check::new(SECTION, "pre-rights", "install.md#what-is-installed");
const ABSENT: Check = Check::new(SECTION, "pre-absent", "install.md#uninstall");

pub(super) fn check(findings: &PreFindings) -> Vec<CheckResult> {
    vec![rights(findings), absent(findings)]
}

fn rights(findings: &PreFindings) -> CheckResult {
    let rights = match &findings.rights {
        Known::Unknown(right) => return RIGHTS.without_right("your rights", right),
        Known::Seen(rights) => rights,
    };
    let missing = rights.iter().filter(|(_, allowed)| !allowed);
    let missing: Vec<_> = missing.map(|(right, _)| right.as_str()).collect();
    if missing.is_empty() {
        return RIGHTS.ok("you may create the objects of the chart");
    }
    RIGHTS.failed(
        format!("you cannot {}", missing.join(", nor ")),
        "have an administrator install the chart, or bind you to the ClusterRole cluster-admin",
    )
}

fn absent(findings: &PreFindings) -> CheckResult {
    if let Known::Seen(operators) = &findings.operators
        && let Some(operator) = operators.first()
    {
        let namespace = namespace(operator);
        return ABSENT.failed(
            format!(
                "Leasehold is installed already, in namespace {namespace}; a cluster has one \
                     release"
            ),
            format!(
                "helm upgrade leasehold charts/leasehold --namespace {namespace} \
                     --reset-then-reuse-values"
            ),
        );
    }
    if !findings.leftovers.is_empty() {
        return ABSENT.warning(
            format!(
                "an earlier installation has left {}",
                some_of(&findings.leftovers)
            ),
            "install the chart under the same name in the same namespace, which adopts them, or \
             remove them as the \
             page says; removing the definitions deletes all locks",
        );
    }
    let mut unknown = findings.unknown.clone();
    if let Known::Unknown(right) = &findings.operators {
        unknown.push(right.clone());
    }
    if let Some(right) = unknown.first() {
        return ABSENT.without_right("an earlier installation", right);
    }
    ABSENT.ok("nothing of Leasehold is installed yet")
}

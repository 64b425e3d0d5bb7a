//! What concerns the installation as a whole: flow control, token floors, and whether a lock can be created.

use serde_json::Value;

use super::containers::name;
use super::findings::{DryRun, Findings};
use super::{Check, CheckResult, floors, some_of};
use crate::kubectl::world::Known;

const SECTION: &str = "installation";
const FLOW: Check = Check::new(SECTION, "flow-control", "install.md#flow-control");
const DRY_RUN: Check = Check::new(SECTION, "dry-run", "runbooks/acquires-failing.md");

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    vec![
        flow_control(findings),
        floors::check(findings),
        dry_run(findings),
    ]
}

fn flow_control(findings: &Findings) -> CheckResult {
    let found = match &findings.flow_control {
        Known::Unknown(right) => return FLOW.without_right("flow control", right),
        Known::Seen(found) => found,
    };
    let title = |object: &Value| {
        format!(
            "{} {}",
            object["kind"].as_str().unwrap_or_default(),
            name(object)
        )
    };
    let titles: Vec<_> = found.iter().map(title).collect();
    let wanted = findings.own.flow_control.iter().map(title);
    let missing: Vec<_> = wanted.filter(|one| !titles.contains(one)).collect();
    if missing.is_empty() {
        return FLOW.ok("session renewals have a priority level of their own");
    }
    if found.is_empty() {
        return FLOW.skipped(
            "no flow control is installed (flowControl.enabled=false): a client that lists in a \
             loop can delay the \
             renewals of all pods",
        );
    }
    FLOW.warning(
        format!(
            "flow control is incomplete: {} is missing",
            some_of(&missing)
        ),
        findings.upgrade(""),
    )
}

fn dry_run(findings: &Findings) -> CheckResult {
    let namespace = &findings.namespace;
    match &findings.dry_run {
        DryRun::Accepted => DRY_RUN.ok(format!(
            "a lock could be created in namespace {namespace} (dry run)"
        )),
        DryRun::NotAllowed(right) => DRY_RUN.without_right("a dry run of creating a lock", right),
        DryRun::NotServed => DRY_RUN.failed(
            "no lock can be created: the API server does not serve the kind",
            "install the definitions, as the checks of the definitions say",
        ),
        DryRun::Refused(why) => DRY_RUN.failed(
            format!("no lock can be created in namespace {namespace}: {why}"),
            "do what the message says; a policy, a quota or the namespace refuses new locks",
        ),
    }
}

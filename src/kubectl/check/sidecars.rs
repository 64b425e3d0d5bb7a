//! The versions of the agents that run in the namespace.

use std::collections::BTreeMap;

use super::findings::Findings;
use super::operator::installed_version;
use super::{Check, CheckResult, counted};
use crate::kubectl::session_health::Health;
use crate::kubectl::world::{Known, SessionSeen};

const VERSIONS: Check = Check::new(
    "sidecars",
    "sidecar-versions",
    "runbooks/sidecar-versions.md",
);

/// Returns the sessions whose agents run.
pub(super) fn live(findings: &Findings) -> Result<Vec<&SessionSeen>, &str> {
    let sessions = match &findings.sessions {
        Known::Unknown(right) => return Err(right),
        Known::Seen(sessions) => sessions,
    };
    let is_live = |one: &&SessionSeen| matches!(Health::at(findings.now, one), Health::Live { .. });
    Ok(sessions.iter().filter(is_live).collect())
}

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    vec![versions(findings)]
}

fn versions(findings: &Findings) -> CheckResult {
    let live = match live(findings) {
        Err(right) => return VERSIONS.without_right("the versions of sidecars", right),
        Ok(live) => live,
    };
    let namespace = &findings.namespace;
    if live.is_empty() {
        return VERSIONS.skipped(format!(
            "no agent in namespace {namespace} has a session: none has used a lock in the last \
             minutes"
        ));
    }
    let expected = installed_version(findings);
    let mut numbers = BTreeMap::new();
    for session in &live {
        *numbers
            .entry(session.spec.agent_version.as_str())
            .or_insert(0_usize) += 1;
    }
    if numbers.keys().all(|version| *version == expected) {
        return VERSIONS.ok(format!(
            "{} in namespace {namespace}, of the installed version {expected}",
            counted(live.len(), "agent")
        ));
    }
    let each = numbers
        .iter()
        .map(|(version, number)| format!("{version} ({})", counted(*number, "agent")));
    VERSIONS.warning(
        format!(
            "agents in namespace {namespace} differ from {expected}, the installed version: {}",
            each.collect::<Vec<_>>().join(", ")
        ),
        "recreate the pods of the other versions, so that they get the installed one",
    )
}

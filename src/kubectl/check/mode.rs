//! Which take-over mode the policies enforce, and whether operator and sidecars were configured for it.

use serde_json::Value;

use super::containers::{each, has_ended, name, setting, sidecar};
use super::findings::Findings;
use super::{Check, CheckResult, counted, some_of};
use crate::kubectl::world::Known;

const SECTION: &str = "policies";
const MODE: Check = Check::new(SECTION, "policies-mode", "install.md#policies");
const SIDECARS: Check = Check::new(SECTION, "sidecars-mode", "install.md#policies");

/// What the installed take-over policies enforce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Strict,
    Peer,
    /// One policy of each mode.
    Mixed,
    /// At least one of the two policies is missing.
    None,
}

/// Returns the mode. Both modes have policies of the same names, so only their content tells.
pub(super) fn mode(policies: &[Value]) -> Mode {
    let find = |wanted: &str| policies.iter().find(|one| name(one) == wanted);
    let (Some(lock), Some(session)) = (
        find("leasehold-lock-take-over"),
        find("leasehold-session-revoke"),
    ) else {
        return Mode::None;
    };
    // Only in peer mode a pod may end another pod's grant, and revoke its session as expired.
    let lock = each(&lock["spec"]["variables"]).any(|one| one["name"] == "isTakeOver");
    let revokes = |one: &Value| {
        one["expression"]
            .as_str()
            .is_some_and(|e| e.contains("'Expired'"))
    };
    let session = each(&session["spec"]["validations"]).any(revokes);
    match (lock, session) {
        (true, true) => Mode::Peer,
        (false, false) => Mode::Strict,
        _ => Mode::Mixed,
    }
}

pub(super) fn check(findings: &Findings) -> Vec<CheckResult> {
    // Without the policies, their own check says so.
    let Known::Seen(policies) = &findings.policies else {
        return Vec::new();
    };
    let mode = mode(policies);
    vec![expected(findings, mode), sidecars(findings, mode)]
}

fn expected(findings: &Findings, mode: Mode) -> CheckResult {
    let upgrade = |mode| findings.upgrade(&format!("--set admissionPolicy.mode={mode}"));
    // The chart writes `strict` for its mode `strict`, and `auto` for `peer` and `off`.
    let file = match &findings.injection {
        Known::Seen(file) => file.as_ref(),
        Known::Unknown(_) => None,
    };
    let configured = file.map(|file| file["takeOver"].as_str().unwrap_or("auto"));
    match (mode, configured) {
        (Mode::Strict, Some("strict")) => MODE.ok("strict mode: only the operator takes over \
                                                   locks"),
        (Mode::Strict, None) => MODE.ok("strict mode; no configuration of sidecars says which \
                                         mode is expected"),
        (Mode::Strict, Some(_)) => MODE.warning(
            "unexpected strict mode: the policies are strict, and sidecars are configured for \
             peer mode or no policies",
            upgrade("strict"),
        ),
        (Mode::Peer, Some("strict")) => MODE.failed(
            "unexpected peer mode: the policies let any pod of a namespace take over locks, and \
             operator and sidecars are \
             configured for strict mode",
            upgrade("strict"),
        ),
        (Mode::Peer, Some(_)) => MODE.ok("peer mode: any pod of a namespace may take over locks \
                                          of expired sessions"),
        (Mode::Peer, None) => MODE.warning(
            "peer mode: any pod of a namespace may take over locks; no configuration of sidecars \
             says whether that is \
             expected",
            format!("{}  # if it is not", upgrade("strict")),
        ),
        (Mode::Mixed, _) => MODE.failed(
            "the policies are of both modes: leasehold-lock-take-over and leasehold-session-revoke contradict each other",
            upgrade(configured.filter(|one| *one == "strict").unwrap_or("peer")),
        ),
        (Mode::None, Some("strict")) => MODE.failed(
            "no mode: the policies of take-overs are missing, and sidecars are configured for \
             strict mode",
            upgrade("strict"),
        ),
        (Mode::None, _) => MODE.warning(
            "mode off: no policy limits who takes over locks",
            "set admissionPolicy.mode to strict or peer, unless the pods of each namespace trust each other",
        ),
    }
}

fn sidecars(findings: &Findings, mode: Mode) -> CheckResult {
    let pods = match &findings.pods {
        Known::Unknown(right) => return SIDECARS.without_right("the mode of sidecars", right),
        Known::Seen(pods) => pods,
    };
    let namespace = &findings.namespace;
    let mut strict = Vec::new();
    let mut auto = Vec::new();
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        let Some(container) = sidecar(pod) else {
            continue;
        };
        let is_strict = setting(container, "--take-over", "LEASEHOLD_TAKE_OVER") == Some("strict");
        if is_strict {
            strict.push(name(pod));
        } else {
            auto.push(name(pod));
        }
    }
    if strict.is_empty() && auto.is_empty() {
        return SIDECARS.skipped(format!("no pod in namespace {namespace} has a sidecar"));
    }
    match mode {
        Mode::Peer if !strict.is_empty() => SIDECARS.warning(
            format!(
                "sidecars of {} in namespace {namespace} leave take-overs to the operator \
                 (LEASEHOLD_TAKE_OVER=strict), although the policies are of peer mode: {}",
                counted(strict.len(), "pod"),
                some_of(&strict)
            ),
            "recreate these pods",
        ),
        Mode::Strict if !auto.is_empty() => SIDECARS.warning(
            format!(
                "sidecars of {} in namespace {namespace} try take-overs that the strict policies \
                 refuse: {}",
                counted(auto.len(), "pod"),
                some_of(&auto)
            ),
            "recreate these pods; if the sidecar is in their own manifest, set \
             LEASEHOLD_TAKE_OVER=strict there",
        ),
        _ => SIDECARS.ok(format!(
            "the sidecars in namespace {namespace} are configured for this \
                                  mode"
        )),
    }
}

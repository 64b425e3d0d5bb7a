//! Whether the clocks of nodes differ from the API server's. Informational: no decision compares two clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::findings::Findings;
use super::sidecars::live;
use super::{Check, CheckResult, some_of};
use crate::kubectl::world::SessionSeen;

const SKEW: Check = Check::new("sidecars", "clock-skew", "guarantees.md");

/// A renewal takes time, and the API server stamps whole seconds.
const TOLERATED: Duration = Duration::from_secs(2);

pub(super) fn check(findings: &Findings) -> CheckResult {
    let live = match live(findings) {
        Err(right) => return SKEW.without_right("the clocks of nodes", right),
        Ok(live) => live,
    };
    let mut worst: BTreeMap<String, SignedDuration> = BTreeMap::new();
    for session in live {
        let Some(skew) = skew(session) else { continue };
        let known = worst.entry(node(session)).or_insert(skew);
        if skew.unsigned_abs() > known.unsigned_abs() {
            *known = skew;
        }
    }
    if worst.is_empty() {
        return SKEW.skipped(format!(
            "no agent in namespace {} has renewed a session yet, which would show its node's clock",
            findings.namespace
        ));
    }
    let wrong = worst
        .iter()
        .filter(|(_, skew)| skew.unsigned_abs() > TOLERATED);
    let wrong: Vec<_> = wrong.map(|(node, skew)| words(node, *skew)).collect();
    if wrong.is_empty() {
        let most = TOLERATED.as_secs();
        return SKEW.ok(format!(
            "the clocks of nodes are within {most} s of the API server's"
        ));
    }
    SKEW.warning(
        format!("clocks differ from the API server's: {}", some_of(&wrong)),
        "synchronize the clocks of these nodes (NTP); locks stay exclusive, but times in objects \
         and logs are wrong",
    )
}

fn skew(session: &SessionSeen) -> Option<SignedDuration> {
    let by_node: Timestamp = session.status.renewed_at.as_deref()?.parse().ok()?;
    Some(by_node.duration_since(session.renewed?))
}

fn node(session: &SessionSeen) -> String {
    match &session.spec.node {
        Some(node) => format!("node {node}"),
        None => format!("the node of pod {}", session.spec.pod),
    }
}

fn words(node: &str, skew: SignedDuration) -> String {
    let direction = if skew.is_negative() { "slow" } else { "fast" };
    format!("{node} is {} s {direction}", skew.unsigned_abs().as_secs())
}

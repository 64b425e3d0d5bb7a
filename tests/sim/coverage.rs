//! What has to have happened in so many worlds: a rung that never met a fault shows nothing about it.

use crate::seeds::Sum;

/// From how many worlds on it is asserted.
const ENOUGH_WORLDS: u64 = 1_000;
/// How often each of these has happened then, at least.
const AT_LEAST: u64 = 20;

/// What goes wrong, and what comes of it.
const KINDS: &[&str] = &[
    // The network.
    "answer lost",
    "answer lost, applied",
    "cut off both ways",
    "cut off from the store",
    "cut off to the store",
    "late after a broken connection",
    "late request",
    "refused",
    "request lost",
    "throttled",
    "unclear answer",
    "watch closed",
    "watch expired",
    "watch failed",
    "watch silent",
    "watch stalled",
    // Processes and clocks.
    "app heard nothing",
    "apps crashed",
    "apps stopped for a while",
    "caller hung up",
    "clock leapt",
    "pod ended in silence",
    "sidecar crashed and lost its state",
    "sidecar crashed with state",
    "sidecar crashed without state",
    "sidecar crashed, older state",
    "sidecar stopped for a while",
    "silent app",
    // The operator.
    "feed broke off",
    "operator crashed",
    "operator cut off",
    "operator deleted a lock",
    "operator deleted a session",
    "operator revoked a session",
    "operator stopped for a while",
    "operator wrote a lock",
    "pod ended and was reported",
    "refused by policy",
    // People.
    "backup restored with the bump",
    "lock deleted by a person",
    "release asked for by a person",
    "release forced by a person",
    "session deleted by a person",
    "status wiped by a person",
    // What comes of it.
    "app_silent",
    "grant_gone",
    "granted",
    "handed over",
    "hold lost",
    "lease went on after a restart",
    "released",
    "session revoked by another",
    "session_expired",
    "session_revoked",
    "stale write refused",
    "store_restored",
    "taken over",
];

/// What happened too seldom, in so many worlds.
pub(crate) fn missing(sum: &Sum) -> Vec<&'static str> {
    let times = |kind: &&&str| sum.counts.get(**kind).copied().unwrap_or_default();
    let is_enough = sum.worlds >= ENOUGH_WORLDS;
    let kinds = KINDS.iter().filter(|_| is_enough);
    kinds
        .filter(|kind| times(kind) < AT_LEAST)
        .copied()
        .collect()
}

#[test]
fn what_never_happened_is_missed() {
    let nothing = Sum {
        worlds: ENOUGH_WORLDS,
        ..Sum::default()
    };
    assert_eq!(missing(&nothing), KINDS);
}

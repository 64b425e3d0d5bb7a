//! The events that must occur in a number of worlds: a simulation without a kind of fault shows
//! nothing about it.

use crate::seeds::Totals;

/// The minimum number of worlds for the assertion.
const ENOUGH_WORLDS: u64 = 1_000;
/// The minimum number of events of each kind in these worlds.
const AT_LEAST: u64 = 20;

/// Faults and their consequences.
const KINDS: &[&str] = &[
    // The network.
    "answer lost, applied",
    "cut off both ways",
    "cut off from the store",
    "cut off to the store",
    "late after a broken connection",
    "late answer heard",
    "late write",
    "late write, its caller gone",
    "refused",
    "rights taken away",
    "request lost",
    "throttled",
    "unclear answer",
    "watch closed",
    "watch expired",
    "watch failed",
    "watch silent",
    "watch stalled",
    "write sent twice",
    // Processes and clocks.
    "app heard nothing",
    "apps crashed",
    "apps stood still past their deadline",
    "caller hung up",
    "clock leapt",
    "pod deleted",
    "pod ended in silence",
    "sidecar crashed and lost its state",
    "sidecar crashed with state",
    "sidecar crashed without state",
    "sidecar killed while it stopped",
    "sidecar stopped in good order",
    "sidecar stopped, promised leases left",
    "sidecar that held stood still past its TTL",
    "silent app",
    // The operator.
    "feed broke off",
    "holder's pod presumed ended",
    "operator acts as the leader",
    "operator crashed",
    "operator cut off both ways",
    "operator cut off from the store",
    "operator cut off to the store",
    "operator deleted a lock",
    "operator deleted a session",
    "operator revoked a session",
    "operator stopped in good order",
    "operator that led stood still past its TTL",
    "operator wrote a lock",
    "pod ended and was reported",
    "refused by policy",
    // The administrator.
    "backup of before another restore restored",
    "audit line",
    "backup restored with the bump",
    "lock deleted by a person",
    "release asked for by a person",
    "release forced by a person",
    "session deleted by a person",
    "status wiped by a person",
    // Consequences.
    "app_silent",
    "grant_gone",
    "end by a person heard of",
    "granted",
    "handed over",
    "hold lost",
    "lease told to the repetition of a request",
    "lease went on after a restart",
    "released",
    "session revoked at the end of its pod",
    "session revoked by another",
    "session_expired",
    "session_revoked",
    "stale write refused",
    "store_restored",
    "taken over",
];

/// The events that the invariants depend on, with the minimum number in a thousand worlds: half of
/// what was measured.
const OFTEN: &[(&str, u64)] = &[
    ("lease went on after a restart", 88),
    ("session revoked by another", 680),
    ("taken over", 1_500),
];

/// Returns the kinds that occurred too rarely for the number of worlds.
pub(crate) fn missing(totals: &Totals) -> Vec<&'static str> {
    if totals.worlds < ENOUGH_WORLDS {
        return Vec::new();
    }
    let times = |kind: &str| totals.counts.get(kind).copied().unwrap_or_default();
    let is_seldom = |kind: &&str| times(kind) < at_least(kind, totals.worlds);
    KINDS.iter().copied().filter(is_seldom).collect()
}

fn at_least(kind: &str, worlds: u64) -> u64 {
    let often = OFTEN.iter().find(|(often, _)| *often == kind);
    often.map_or(AT_LEAST, |(_, in_a_thousand)| {
        in_a_thousand * worlds / 1_000
    })
}

#[test]
fn kind_that_never_happened_is_reported() {
    let nothing = Totals {
        worlds: ENOUGH_WORLDS,
        ..Totals::default()
    };
    assert_eq!(missing(&nothing), KINDS);
}

#[test]
fn kind_that_happens_half_as_often_is_reported() {
    let worlds = 2 * ENOUGH_WORLDS;
    for (kind, in_a_thousand) in OFTEN {
        let just_enough = in_a_thousand * 2;
        let seldom = |times| Totals {
            worlds,
            counts: [(*kind, times)].into(),
            ..Totals::default()
        };
        assert!(!missing(&seldom(just_enough)).contains(kind));
        assert!(missing(&seldom(just_enough - 1)).contains(kind));
    }
}

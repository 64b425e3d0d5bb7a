//! What the agent counts, in Prometheus' terms. Never labelled with lock names: contention is
//! counted by configured prefix, the rest is `other`.
//!
//! Each counter is there from the start, at zero, for every value of its label: of one that first
//! appears with 1 Prometheus does not see that it rose, and no alert on it fires.

use std::collections::BTreeSet;
use std::iter::once;
use std::time::Duration;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    Opts, Registry, TextEncoder,
};

use crate::protocol::lease::Loss;

/// The agent's metrics and the registry that they are in.
pub struct Metrics {
    registry: Registry,
    prefixes: BTreeSet<String>,
    acquires: IntCounterVec,
    acquire_seconds: HistogramVec,
    wait_seconds: HistogramVec,
    hold_seconds: Histogram,
    renewals: IntCounterVec,
    releases: IntCounterVec,
    lost: IntCounterVec,
    contention: IntCounterVec,
    stale_tokens: IntCounter,
    refused_writes: IntCounter,
    dual_owners: IntCounter,
    session_seconds: Gauge,
    leases: IntGauge,
    waiters: IntGauge,
    streams: IntGauge,
    kept: IntGauge,
    state_file: IntGauge,
    late_watches: IntCounter,
}

/// From a tenth of a millisecond (a local answer) to the acquire's own time limit.
const ACQUIRE_BUCKETS: [f64; 12] = [
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0,
];
/// From a hand-over that was under way to the longest wait.
const WAIT_BUCKETS: [f64; 10] = [0.01, 0.05, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 240.0];
/// From a second to a day.
const HOLD_BUCKETS: [f64; 10] = [
    0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0,
];

/// How an acquire can end.
const ACQUIRE_OUTCOMES: [&str; 7] = [
    "granted",
    "replayed",
    "held",
    "hung_up",
    "denied",
    "unavailable",
    "failed",
];
/// How a try to renew the session can end.
const RENEWAL_OUTCOMES: [&str; 3] = ["renewed", "failed", "lost"];
/// How a try to give a grant back can end.
const RELEASE_OUTCOMES: [&str; 3] = ["released", "retried", "abandoned"];
/// What contention is counted under where no prefix was configured.
const OTHER_PREFIXES: &str = "other";

const REFUSED_HELP: &str =
    "Reports of writes that a guarded resource refused because their tokens were stale.";
const STATE_FILE_HELP: &str = "1 while the state file is written, so that a restart resumes.";

/// What is so just now.
pub(super) struct Gauges {
    pub(super) session_remaining: Duration,
    pub(super) leases: usize,
    pub(super) waiters: usize,
    pub(super) streams: usize,
    pub(super) kept: usize,
    pub(super) has_journal: bool,
}

impl Metrics {
    /// Registers everything.
    pub(super) fn new(prefixes: &BTreeSet<String>) -> Self {
        let registry = Registry::new();
        let counters =
            |name, help, label, all: &[&str]| counters(&registry, name, help, label, all);
        let outcomes = |name, help, values| counters(name, help, "outcome", values);
        let by_outcome = |name, help, buckets| by_outcome(&registry, name, help, buckets);
        let single = |name, help| single(&registry, name, help);
        let gauge = |name, help| gauge(&registry, name, help);
        Self {
            acquires: outcomes(
                "leasehold_acquire_attempts_total",
                "Attempts to acquire a lock, by outcome.",
                &ACQUIRE_OUTCOMES,
            ),
            acquire_seconds: by_outcome(
                "leasehold_acquire_duration_seconds",
                "Time from the arrival of an acquire that does not wait to its outcome.",
                &ACQUIRE_BUCKETS,
            ),
            wait_seconds: by_outcome(
                "leasehold_wait_duration_seconds",
                "Time from the arrival of an acquire with waitSeconds to its outcome.",
                &WAIT_BUCKETS,
            ),
            hold_seconds: hold_seconds(&registry),
            renewals: outcomes(
                "leasehold_session_renewals_total",
                "Attempts to renew the session in the store, by outcome.",
                &RENEWAL_OUTCOMES,
            ),
            releases: outcomes(
                "leasehold_releases_total",
                "Releases of grants in the store, by outcome.",
                &RELEASE_OUTCOMES,
            ),
            lost: counters(
                "leasehold_leases_lost_total",
                "Leases that were lost, by reason.",
                "reason",
                &Loss::ALL.map(Loss::as_str),
            ),
            contention: contention(&registry, prefixes),
            stale_tokens: single(
                "leasehold_stale_tokens_total",
                "Fencing tokens presented for verification that were stale.",
            ),
            refused_writes: single("leasehold_refused_writes_total", REFUSED_HELP),
            dual_owners: single(
                "leasehold_dual_owners_suspected_total",
                "Leases that were valid here while the store named another grant.",
            ),
            session_seconds: seconds(
                &registry,
                "leasehold_session_remaining_seconds",
                "Time left before the session's local deadline; 0 without a session.",
            ),
            leases: gauge("leasehold_leases", "Leases served now."),
            waiters: gauge("leasehold_callers_in_line", "Callers queued now."),
            streams: gauge("leasehold_event_streams", "Event streams open now."),
            kept: gauge(
                "leasehold_kept_grants",
                "Warm grants: locks kept without a lease now.",
            ),
            state_file: gauge("leasehold_state_file_written", STATE_FILE_HELP),
            late_watches: single(
                "leasehold_watch_late_total",
                "Grants found by a read before the watch reported them.",
            ),
            prefixes: prefixes.clone(),
            registry,
        }
    }

    /// Everything in the Prometheus text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "encoding metrics failed");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(super) fn set_gauges(&self, now: &Gauges) {
        let count = |count| i64::try_from(count).unwrap_or(i64::MAX);
        self.session_seconds
            .set(now.session_remaining.as_secs_f64());
        self.leases.set(count(now.leases));
        self.waiters.set(count(now.waiters));
        self.streams.set(count(now.streams));
        self.kept.set(count(now.kept));
        self.state_file.set(i64::from(now.has_journal));
    }

    pub(super) fn acquired(&self, outcome: &str, took: Duration) {
        debug_assert!(ACQUIRE_OUTCOMES.contains(&outcome), "{outcome}");
        self.acquires.with_label_values(&[outcome]).inc();
        self.acquire_seconds
            .with_label_values(&[outcome])
            .observe(took.as_secs_f64());
    }

    pub(super) fn waited(&self, outcome: &str, took: Duration) {
        debug_assert!(ACQUIRE_OUTCOMES.contains(&outcome), "{outcome}");
        self.acquires.with_label_values(&[outcome]).inc();
        self.wait_seconds
            .with_label_values(&[outcome])
            .observe(took.as_secs_f64());
    }

    pub(super) fn watch_was_late(&self) {
        self.late_watches.inc();
    }

    pub(super) fn contended(&self, resource: &str) {
        let longest = self
            .prefixes
            .iter()
            .rev()
            .find(|prefix| resource.starts_with(prefix.as_str()));
        let prefix = longest.map_or(OTHER_PREFIXES, String::as_str);
        self.contention.with_label_values(&[prefix]).inc();
    }

    pub(super) fn renewal(&self, outcome: &str) {
        debug_assert!(RENEWAL_OUTCOMES.contains(&outcome), "{outcome}");
        self.renewals.with_label_values(&[outcome]).inc();
    }

    pub(super) fn release(&self, outcome: &str) {
        debug_assert!(RELEASE_OUTCOMES.contains(&outcome), "{outcome}");
        self.releases.with_label_values(&[outcome]).inc();
    }

    pub(super) fn lease_ended(&self, held_for: Duration) {
        self.hold_seconds.observe(held_for.as_secs_f64());
    }

    pub(super) fn lease_lost(&self, reason: &str) {
        self.lost.with_label_values(&[reason]).inc();
    }

    pub(super) fn stale_token(&self) {
        self.stale_tokens.inc();
    }

    pub(super) fn refused_write(&self) {
        self.refused_writes.inc();
    }

    pub(super) fn dual_owner_suspected(&self) {
        self.dual_owners.inc();
    }
}

fn by_outcome(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> HistogramVec {
    let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, HistogramVec::new(opts, &["outcome"]))
}

fn hold_seconds(registry: &Registry) -> Histogram {
    let opts = HistogramOpts::new(
        "leasehold_lease_hold_duration_seconds",
        "Time from a lease's grant to its end.",
    );
    register(
        registry,
        Histogram::with_opts(opts.buckets(HOLD_BUCKETS.to_vec())),
    )
}

fn contention(registry: &Registry, prefixes: &BTreeSet<String>) -> IntCounterVec {
    let configured = prefixes.iter().map(String::as_str);
    counters(
        registry,
        "leasehold_contention_total",
        "Acquires that found the lock held, by configured resource prefix.",
        "prefix",
        &configured.chain(once(OTHER_PREFIXES)).collect::<Vec<_>>(),
    )
}

fn counters(
    registry: &Registry,
    name: &str,
    help: &str,
    label: &str,
    all: &[&str],
) -> IntCounterVec {
    let made = register(
        registry,
        IntCounterVec::new(Opts::new(name, help), &[label]),
    );
    for value in all {
        made.with_label_values(&[value]);
    }
    made
}

fn seconds(registry: &Registry, name: &str, help: &str) -> Gauge {
    register(registry, Gauge::new(name, help))
}

fn single(registry: &Registry, name: &str, help: &str) -> IntCounter {
    register(registry, IntCounter::new(name, help))
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    register(registry, IntGauge::new(name, help))
}

fn register<C>(registry: &Registry, made: prometheus::Result<C>) -> C
where
    C: prometheus::core::Collector + Clone + 'static,
{
    let collector = made.expect("metric names and labels must be valid");
    registry
        .register(Box::new(collector.clone()))
        .expect("metric names must be unique");
    collector
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contention_is_counted_by_the_longest_configured_prefix() {
        let prefixes = ["billing:", "billing:close:"].map(String::from).into();
        let metrics = Metrics::new(&prefixes);
        for resource in ["billing:close:1", "billing:1", "tenant_7:secret-name"] {
            metrics.contended(resource);
        }
        let text = metrics.encode();
        for prefix in ["billing:close:", "billing:", "other"] {
            let line = format!("leasehold_contention_total{{prefix=\"{prefix}\"}} 1");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("secret-name"));
    }

    #[test]
    fn metrics_begin_at_zero() {
        let text = Metrics::new(&["billing:".to_owned()].into()).encode();
        let lost = Loss::ALL.map(|loss| format!("leases_lost_total{{reason=\"{loss}\"}} 0"));
        let others = [
            "session_renewals_total{outcome=\"failed\"} 0",
            "releases_total{outcome=\"abandoned\"} 0",
            "contention_total{prefix=\"billing:\"} 0",
            "contention_total{prefix=\"other\"} 0",
        ];
        for line in lost.iter().map(String::as_str).chain(others) {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}

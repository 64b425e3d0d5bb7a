//! The metrics of the operator. They are never labelled with names of locks or pods.

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::protocol::incident::IncidentKind;
use crate::protocol::lock::Lock;

use super::observation::FeedKind;
use super::view::View;

/// The maximum number of agent versions with a series of their own.
const VERSIONS_MAX: usize = 20;
/// A write to a healthy store takes milliseconds.
const RECONCILE_BUCKETS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0];
/// From the report that a pod has ended to the longest TTL.
const FREE_BUCKETS: [f64; 14] = [
    0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 16.0, 20.0, 32.0, 64.0, 130.0, 260.0, 1_000.0, 4_000.0,
];
/// From two writes to a healthy store to an operator that cannot act.
const DELAY_BUCKETS: [f64; 9] = [0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 300.0];

const WENT_BACK_HELP: &str =
    "1 while the store is older than observed: restored without raising its revision.";

/// The outcome of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// Another write came first; the object is planned again.
    Conflict,
    Failed,
}

/// The state beside the view that gauges show.
pub(super) struct Gauges {
    pub(super) queue_depth: usize,
    pub(super) leads: bool,
    pub(super) is_synced: bool,
    pub(super) store_went_back: bool,
}

/// The operator's metrics and their registry.
pub struct Metrics {
    registry: Registry,
    reconciles: IntCounterVec,
    durations: HistogramVec,
    queue_depth: IntGauge,
    sessions: IntGauge,
    locks: IntGaugeVec,
    contended: IntGauge,
    reclaimed: IntCounterVec,
    force_releases: IntCounter,
    time_to_free: Histogram,
    free_delay: Histogram,
    long_held: IntGauge,
    versions: IntGaugeVec,
    leading: IntGauge,
    synced: IntGauge,
    unreadable: IntGaugeVec,
    watch_errors: IntCounterVec,
    went_back: IntGauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Creates and registers all metrics.
    #[must_use]
    pub fn new() -> Self {
        let registry = Registry::new();
        let counter = |name, help| registered(&registry, IntCounter::new(name, help));
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help));
        let counters = |name, help, labels: &[&str]| {
            registered(&registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let gauges = |name, help, label| {
            registered(&registry, IntGaugeVec::new(Opts::new(name, help), &[label]))
        };
        let metrics = Self {
            reconciles: counters(
                "leasehold_operator_reconciles_total",
                "Actions of the operator, by kind and outcome.",
                &["kind", "outcome"],
            ),
            durations: registered(&registry, HistogramVec::new(durations(), &["kind"])),
            queue_depth: gauge("leasehold_operator_queue_depth", "Objects to reconcile."),
            sessions: gauge(
                "leasehold_operator_sessions",
                "Sessions that are not revoked.",
            ),
            locks: gauges(
                "leasehold_operator_locks",
                "Lock objects, by state.",
                "state",
            ),
            contended: gauge("leasehold_operator_contended_locks", "Locks with waiters."),
            reclaimed: counters(
                "leasehold_operator_reclaimed_total",
                "Grants of expired or ended holders that were reclaimed, by cause.",
                &["cause"],
            ),
            force_releases: counter(
                "leasehold_operator_force_releases_total",
                "Grants ended by a force release.",
            ),
            time_to_free: registered(&registry, Histogram::with_opts(time_to_free())),
            free_delay: registered(&registry, Histogram::with_opts(free_delay())),
            long_held: gauge(
                "leasehold_operator_long_held_locks",
                "Locks marked as long-held.",
            ),
            versions: gauges(
                "leasehold_operator_sessions_by_version",
                "Sessions that are not revoked, by the version of their agent.",
                "version",
            ),
            leading: gauge(
                "leasehold_operator_leading",
                "1 if this replica is the active one.",
            ),
            synced: gauge("leasehold_operator_synced", "1 once all are listed."),
            unreadable: gauges(
                "leasehold_operator_unreadable_objects",
                "Objects that cannot be read, by kind.",
                "kind",
            ),
            watch_errors: counters(
                "leasehold_operator_watch_errors_total",
                "Interruptions of the operator's watches, by kind.",
                &["kind"],
            ),
            went_back: gauge("leasehold_operator_store_went_back", WENT_BACK_HELP),
            registry,
        };
        metrics.init_series();
        metrics
    }

    /// Initializes series to 0, because alerts compare with them.
    fn init_series(&self) {
        for kind in ["session", "lock", "incident", "label", "leader", "binding"] {
            for outcome in ["done", "conflict", "failed"] {
                self.reconciles.with_label_values(&[kind, outcome]);
            }
            self.durations.with_label_values(&[kind]);
        }
        for state in ["held", "free"] {
            self.locks.with_label_values(&[state]);
        }
        for kind in ["session", "lock"] {
            self.unreadable.with_label_values(&[kind]);
        }
        for cause in ["expired", "pod_ended"] {
            self.reclaimed.with_label_values(&[cause]);
        }
        for kind in FeedKind::ALL {
            self.watch_errors.with_label_values(&[kind.name()]);
        }
    }

    /// Returns the metrics in the text format of Prometheus.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory cannot fail, and what is registered is well-formed.
        let _never = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    pub(super) fn record_action(&self, kind: &str, outcome: Outcome, took: Duration) {
        let outcome = match outcome {
            Outcome::Done => "done",
            Outcome::Conflict => "conflict",
            Outcome::Failed => "failed",
        };
        self.reconciles.with_label_values(&[kind, outcome]).inc();
        self.durations
            .with_label_values(&[kind])
            .observe(took.as_secs_f64());
    }

    pub(super) fn record_reclaimed(&self, kind: IncidentKind, took: Duration, delay: Duration) {
        let cause = match kind {
            IncidentKind::PodEnded => "pod_ended",
            _ => "expired",
        };
        self.reclaimed.with_label_values(&[cause]).inc();
        self.time_to_free.observe(took.as_secs_f64());
        self.free_delay.observe(delay.as_secs_f64());
    }

    pub(super) fn record_force_release(&self) {
        self.force_releases.inc();
    }

    pub(super) fn record_interruption(&self, kind: &str) {
        self.watch_errors.with_label_values(&[kind]).inc();
    }

    /// Updates the gauges. It iterates over the whole view.
    pub(super) fn set_gauges(&self, view: &View, gauges: &Gauges) {
        self.queue_depth.set(gauge_value(gauges.queue_depth));
        self.leading.set(i64::from(gauges.leads));
        self.went_back.set(i64::from(gauges.store_went_back));
        self.synced.set(i64::from(gauges.is_synced));
        let of = |is: &dyn Fn(&Lock) -> bool| {
            let locks = view.locks().filter_map(|(_, seen)| seen.lock.as_ref());
            gauge_value(locks.filter(|lock| is(&lock.stored.value)).count())
        };
        let held = of(&|lock| lock.grant.is_some());
        let free = gauge_value(view.locks().count()) - held;
        self.locks.with_label_values(&["held"]).set(held);
        self.locks.with_label_values(&["free"]).set(free);
        self.contended.set(of(&|lock| !lock.waiters.is_empty()));
        self.long_held.set(of(&|lock| lock.long_held.is_some()));
        for (kind, unreadable) in [
            ("lock", view.unreadable_locks()),
            ("session", view.unreadable_sessions()),
        ] {
            self.unreadable
                .with_label_values(&[kind])
                .set(gauge_value(unreadable.len()));
        }
        self.set_sessions(view);
    }

    fn set_sessions(&self, view: &View) {
        let mut versions: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sessions = 0;
        for seen in view.sessions() {
            let session = &seen.session.stored.value;
            if session.revoked.is_some() {
                continue;
            }
            sessions += 1;
            let is_room = versions.len() < VERSIONS_MAX;
            let version = &*session.agent_version;
            let known = is_room || versions.contains_key(version);
            *versions
                .entry(if known { version } else { "other" })
                .or_default() += 1;
        }
        self.sessions.set(gauge_value(sessions));
        self.versions.reset();
        for (version, count) in versions {
            self.versions
                .with_label_values(&[version])
                .set(gauge_value(count));
        }
    }
}

fn durations() -> HistogramOpts {
    HistogramOpts::new(
        "leasehold_operator_reconcile_duration_seconds",
        "Duration of an action of the operator, by kind.",
    )
    .buckets(RECONCILE_BUCKETS.to_vec())
}

fn time_to_free() -> HistogramOpts {
    HistogramOpts::new(
        "leasehold_operator_time_to_free_seconds",
        "Time from the last renewal of an expired holder until its lock was released or handed over.",
    )
    .buckets(FREE_BUCKETS.to_vec())
}

fn free_delay() -> HistogramOpts {
    HistogramOpts::new(
        "leasehold_operator_free_delay_seconds",
        "Time from when the lock of an ended holder could be taken over until it was released or handed over.",
    )
    .buckets(DELAY_BUCKETS.to_vec())
}

fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Names are constants and each is registered once.
fn registered<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    made: prometheus::Result<C>,
) -> C {
    let collector = made.expect("a metric's name must be valid");
    registry
        .register(Box::new(collector.clone()))
        .expect("a metric must be registered once");
    collector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::tests::object;
    use crate::protocol::session::{PodRef, RenewalFailures, Session};
    use crate::protocol::time::{Moment, SessionTtl};
    use crate::store::fleet::{FeedEvent, Object};

    fn session(name: &str, version: &str) -> FeedEvent<Object<Session>> {
        let value = Session {
            id: name.into(),
            pod: PodRef {
                name: "pod".into(),
                uid: "uid".into(),
                node: None,
            },
            ttl: SessionTtl::clamped(15),
            agent_version: version.into(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        };
        FeedEvent::Applied(Box::new(object("n", name, 1, value)))
    }

    #[test]
    fn sessions_are_counted_by_version() {
        let mut view = View::default();
        for (name, version) in [("a", "0.1.0"), ("b", "0.2.0"), ("c", "0.1.0")] {
            view.observe_session(session(name, version), Moment::since_boot(Duration::ZERO));
        }
        let metrics = Metrics::new();
        let gauges = Gauges {
            queue_depth: 0,
            leads: false,
            is_synced: false,
            store_went_back: false,
        };
        metrics.set_gauges(&view, &gauges);
        let text = metrics.encode();
        for (version, count) in [("0.1.0", 2), ("0.2.0", 1)] {
            let name = "leasehold_operator_sessions_by_version";
            let line = format!("{name}{{version=\"{version}\"}} {count}");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}

//! What the fence counts, in Prometheus' terms. Never labelled with resources.
//!
//! Each counter is there from the start, at zero, for every value of its label.

use std::time::Duration;

use prometheus::{
    Encoder as _, Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use super::refusal::Code;

/// The result of a request whose client disconnected before a response: the outcome is unknown.
pub(super) const ABANDONED: &str = "abandoned";
/// The result of a request whose client disconnected before it was forwarded.
pub(super) const ABANDONED_UNSENT: &str = "abandoned_unsent";
/// The results of requests that were forwarded: without a token, and with one.
const FORWARDED: [&str; 2] = ["open", "fenced"];
/// From a sync of a fast disk to the limit of a call.
const RECORD_BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];
/// From a request that was about to end to the limits of waiting.
const WAIT_BUCKETS: [f64; 9] = [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0];

/// The metrics and their registry.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    running: IntGauge,
    connections: IntGauge,
    resources: IntGauge,
    wait_seconds: Histogram,
    record_seconds: Histogram,
}

impl Metrics {
    /// Creates them.
    ///
    /// # Errors
    /// None is known: the names are constant and valid.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            registry: Registry::new(),
            requests: IntCounterVec::new(
                Opts::new(
                    "leasehold_fence_requests_total",
                    "Requests by result: open, fenced, abandoned, abandoned_unsent, or the code of the refusal.",
                ),
                &["result"],
            )?,
            running: IntGauge::new(
                "leasehold_fence_requests_running",
                "Requests that have not ended, including those that wait.",
            )?,
            connections: IntGauge::new("leasehold_fence_connections", "Connections of clients.")?,
            resources: IntGauge::new(
                "leasehold_fence_resources",
                "Resources with a recorded token.",
            )?,
            wait_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "leasehold_fence_wait_seconds",
                    "How long requests with a token waited before they were forwarded.",
                )
                .buckets(WAIT_BUCKETS.to_vec()),
            )?,
            record_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "leasehold_fence_record_seconds",
                    "How long recording a new token took.",
                )
                .buckets(RECORD_BUCKETS.to_vec()),
            )?,
        };
        let registry = &metrics.registry;
        registry.register(Box::new(metrics.requests.clone()))?;
        registry.register(Box::new(metrics.running.clone()))?;
        registry.register(Box::new(metrics.connections.clone()))?;
        registry.register(Box::new(metrics.resources.clone()))?;
        registry.register(Box::new(metrics.wait_seconds.clone()))?;
        registry.register(Box::new(metrics.record_seconds.clone()))?;
        for result in FORWARDED
            .into_iter()
            .chain([ABANDONED, ABANDONED_UNSENT])
            .chain(Code::ALL.map(Code::name))
        {
            metrics.requests.with_label_values(&[result]);
        }
        Ok(metrics)
    }

    /// Returns them in the text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = Vec::new();
        match TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => {
                tracing::error!(%error, "encoding metrics failed");
                String::new()
            }
        }
    }

    pub(super) fn result(&self, result: &str) {
        self.requests.with_label_values(&[result]).inc();
    }

    pub(super) const fn running(&self) -> &IntGauge {
        &self.running
    }

    pub(super) const fn connections(&self) -> &IntGauge {
        &self.connections
    }

    pub(super) fn resources(&self, count: usize) {
        self.resources.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn waited(&self, duration: Duration) {
        self.wait_seconds.observe(duration.as_secs_f64());
    }

    pub(super) fn recorded(&self, duration: Duration) {
        self.record_seconds.observe(duration.as_secs_f64());
    }
}

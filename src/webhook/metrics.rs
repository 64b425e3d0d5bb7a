//! The metrics of the webhook.

use prometheus::{Encoder, IntCounterVec, Opts, Registry, TextEncoder};

use super::inject::Decision;

/// The request was not a review.
pub(super) const INVALID: &str = "invalid";
/// The review was not about a new pod.
pub(super) const NOT_A_POD: &str = "not_a_pod";

/// The outcomes of requests.
const OUTCOMES: [&str; 7] = [
    "injected",
    "completed",
    "left_alone",
    "skipped",
    "denied",
    NOT_A_POD,
    INVALID,
];

pub(super) struct Metrics {
    registry: Registry,
    reviews: IntCounterVec,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let registry = Registry::new();
        let opts = Opts::new(
            "leasehold_webhook_reviews_total",
            "Requests to the injecting webhook, by outcome.",
        );
        let reviews = IntCounterVec::new(opts, &["outcome"]).expect("the metric must be valid");
        let registered = registry.register(Box::new(reviews.clone()));
        registered.expect("a metric must be registered once");
        // Initialized to 0, because alerts compare with them.
        for outcome in OUTCOMES {
            reviews.with_label_values(&[outcome]);
        }
        Self { registry, reviews }
    }

    pub(super) fn record(&self, outcome: &str) {
        self.reviews.with_label_values(&[outcome]).inc();
    }

    pub(super) fn encode(&self) -> String {
        let mut text = Vec::new();
        // Writing to memory cannot fail, and what is registered is well-formed.
        let _never = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }
}

pub(super) const fn outcome(decision: &Decision) -> &'static str {
    match decision {
        Decision::Inject(_) => "injected",
        Decision::Complete(_) => "completed",
        Decision::LeaveAlone => "left_alone",
        Decision::Skip => "skipped",
        Decision::Deny(_) => "denied",
    }
}

//! What the bench measured, as the table that it prints.

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const PUT: &str = "status PUT, bare";
pub(crate) const ACQUIRE: &str = "acquire, known lock";
pub(crate) const RENEW: &str = "renew (local)";
pub(crate) const RELEASE: &str = "release";
pub(crate) const FIRST: &str = "acquire, new lock";

/// The durations of each kind of call.
#[derive(Default)]
pub(crate) struct Rows(BTreeMap<&'static str, Vec<Duration>>);

impl Rows {
    pub(crate) fn add(&mut self, measured: Vec<(&'static str, Duration)>) {
        for (name, took) in measured {
            self.0.entry(name).or_default().push(took);
        }
    }

    /// The table: medians, and their ratio to the bare PUT.
    #[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
    pub(crate) fn print(&self, rss_kib: u64, binary_bytes: u64) {
        let put = self.quantile(PUT, 50);
        println!(
            "{:<24} {:>10} {:>10} {:>12}",
            "call", "median ms", "p95 ms", "ratio to PUT"
        );
        for name in [PUT, ACQUIRE, RELEASE, FIRST, RENEW] {
            let (median, p95) = (self.quantile(name, 50), self.quantile(name, 95));
            println!(
                "{name:<24} {median:>10.3} {p95:>10.3} {:>12.2}",
                median / put
            );
        }
        let aim = 1.25 * put + 0.2;
        println!();
        println!(
            "acquire of a known lock: {:.3} ms, aim at most 1.25 x PUT + 0.2 = {aim:.3} ms",
            self.quantile(ACQUIRE, 50)
        );
        println!(
            "local renew: {:.3} ms, aim under 0.150 ms",
            self.quantile(RENEW, 50)
        );
        println!(
            "sidecar resident: {:.1} MiB, aim under 15 MiB",
            mebi(rss_kib * 1024)
        );
        println!(
            "release binary: {:.1} MB, aim under 15 MB",
            mebi(binary_bytes) * 1.048_576
        );
    }

    /// In milliseconds.
    fn quantile(&self, name: &str, percent: usize) -> f64 {
        let mut sorted = self.0.get(name).cloned().unwrap_or_default();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted
            .get(at)
            .map_or(0.0, |took| took.as_secs_f64() * 1000.0)
    }
}

#[allow(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
fn mebi(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

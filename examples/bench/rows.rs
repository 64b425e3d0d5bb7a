//! The durations of each kind of call, and tables of them. This file does not name any kind.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::harness::now;

/// The durations of each kind of call.
#[derive(Default)]
pub(crate) struct Rows(BTreeMap<&'static str, Vec<Duration>>);

impl Rows {
    /// Measures one call that succeeds.
    pub(crate) async fn time<T>(
        &mut self,
        name: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let start = now();
        let value = call.await?;
        self.add(name, now().since(start));
        Ok(value)
    }

    /// Adds a duration that was measured elsewhere.
    pub(crate) fn add(&mut self, name: &'static str, took: Duration) {
        self.0.entry(name).or_default().push(took);
    }

    /// Adds several durations, in nanoseconds.
    pub(crate) fn add_nanos(&mut self, name: &'static str, took: Vec<u64>) {
        for nanos in took {
            self.add(name, Duration::from_nanos(nanos));
        }
    }

    /// Returns the median, in milliseconds.
    pub(crate) fn median(&self, name: &str) -> f64 {
        self.quantile(name, 50)
    }

    /// Prints a table of the named kinds, with the ratio of each median to that of `base`.
    #[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
    pub(crate) fn print(&self, names: &[&str], base: &str) {
        println!(
            "{:<38} {:>10} {:>10} {:>8}",
            "call", "median ms", "p95 ms", "ratio"
        );
        for name in names {
            let (median, p95) = (self.median(name), self.quantile(name, 95));
            let ratio = median / self.median(base);
            println!("{name:<38} {median:>10.3} {p95:>10.3} {ratio:>8.2}");
        }
    }

    /// Prints a table of these kinds, with a note for each, and the ratio of each median to that of
    /// `base`. Kinds that were not measured are left out.
    #[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
    pub(crate) fn print_noted(&self, head: &str, base: &str, lines: &[(&'static str, &str)]) {
        println!(
            "{head:<38} {:>10} {:>10} {:>8}  note",
            "median ms", "p99 ms", "ratio"
        );
        for (name, note) in lines.iter().filter(|(name, _)| self.0.contains_key(name)) {
            let (median, p99) = (self.median(name), self.quantile(name, 99));
            let ratio = median / self.median(base);
            println!("{name:<38} {median:>10.3} {p99:>10.3} {ratio:>8.3}  {note}");
        }
    }

    /// Prints a table that compares two kinds of call in each line, with the ratio of the first's
    /// median to the second's. It suits a small number of widely spread durations, because it also
    /// shows the extremes.
    #[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
    pub(crate) fn print_beside(&self, heads: [&str; 2], lines: &[(&str, [&str; 2])]) {
        let [ours, theirs] = heads;
        println!(
            "{:<24} {ours:>32} {theirs:>32} {:>8}",
            "median ms (range, times)", "ratio"
        );
        for (what, [ours, theirs]) in lines {
            let ratio = self.median(ours) / self.median(theirs);
            println!(
                "{what:<24} {:>32} {:>32} {ratio:>8.3}",
                self.spread(ours),
                self.spread(theirs)
            );
        }
    }

    fn spread(&self, name: &str) -> String {
        let (median, least, most) = (
            self.median(name),
            self.quantile(name, 0),
            self.quantile(name, 100),
        );
        let times = self.0.get(name).map_or(0, Vec::len);
        format!("{median:.0} ({least:.0} to {most:.0}, {times})")
    }

    /// Returns the duration that `percent` percent of the durations are below, in milliseconds.
    pub(crate) fn quantile(&self, name: &str, percent: usize) -> f64 {
        let mut sorted = self.0.get(name).cloned().unwrap_or_default();
        sorted.sort_unstable();
        let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted
            .get(at)
            .map_or(0.0, |took| took.as_secs_f64() * 1000.0)
    }
}

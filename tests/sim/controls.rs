//! Negative controls: worlds in which one thing is worse than it may be. A check that does not notice is
//! none.

use crate::seeds::{run_all, run_until};
use crate::setting::Bent;

/// How many seeds are tried.
const TRIES: u64 = 500;

/// By these words of what is looked at in each step, and by those of the history.
fn is_noticed(bent: Bent, words: &str, of_history: &str) {
    let sum = run_all(0..TRIES, bent, 1);
    let flaw = sum.flawed.first().and_then(|ended| ended.flaw.clone());
    println!(
        "sim control {bent:?}: after {} worlds: {flaw:?}",
        sum.worlds
    );
    assert!(flaw.is_some_and(|flaw| flaw.contains(words)), "unnoticed");
    let history = sum.flawed.first().and_then(|ended| ended.history.clone());
    let history = history.unwrap_or_default();
    assert!(history.contains(of_history), "unnoticed in {history:?}");
}

#[test]
fn clocks_that_differ_by_a_third_break_exclusion() {
    is_noticed(Bent::Clocks, "believes in", "two apps believed");
}

#[test]
fn app_past_its_deadline_breaks_exclusion() {
    is_noticed(Bent::Apps, "believes in", "two apps believed");
}

#[test]
fn register_without_token_check_goes_back() {
    is_noticed(Bent::Register, "took a write with token", "accepted token");
}

/// What the runbook adds to the bump for each restore since the backup.
#[test]
fn repeated_bump_after_a_restore_repeats_tokens() {
    let sum = run_until(0..TRIES, Bent::Bump, 1, "'s and ");
    assert!(!sum.flawed.is_empty(), "unnoticed");
}

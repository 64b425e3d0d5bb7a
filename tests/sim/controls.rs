//! Negative controls: worlds in which one bound is violated on purpose. A check that cannot fail shows nothing.

use crate::seeds::{run_all, run_until};
use crate::setup::Control;

/// The maximum number of seeds.
const TRIES: u64 = 500;

/// Expects a flaw with `words` from the invariants, and one with `of_history` from the checker of histories.
fn is_noticed(control: Control, words: &str, of_history: &str) {
    let totals = run_all(0..TRIES, control, 1);
    let flaw = totals.flawed.first().and_then(|ended| ended.flaw.clone());
    println!(
        "sim control {control:?}: after {} worlds: {flaw:?}",
        totals.worlds
    );
    assert!(flaw.is_some_and(|flaw| flaw.contains(words)), "unnoticed");
    let history = totals
        .flawed
        .first()
        .and_then(|ended| ended.history.clone());
    let history = history.unwrap_or_default();
    assert!(history.contains(of_history), "unnoticed in {history:?}");
}

#[test]
fn clocks_that_differ_by_a_third_break_exclusion() {
    is_noticed(Control::Clocks, "believes in", "two apps believed");
}

#[test]
fn app_past_its_deadline_breaks_exclusion() {
    is_noticed(Control::Apps, "believes in", "two apps believed");
}

#[test]
fn register_without_token_check_goes_back() {
    is_noticed(
        Control::Register,
        "took a write with token",
        "accepted token",
    );
}

/// The runbook adds the bump once more for each restore since the backup. This control does not.
#[test]
fn repeated_bump_after_a_restore_repeats_tokens() {
    let totals = run_until(0..TRIES, Control::Bump, 1, "'s and ");
    assert!(!totals.flawed.is_empty(), "unnoticed");
}

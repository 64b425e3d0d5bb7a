//! Negative controls: worlds in which one bound is violated on purpose. A check that cannot fail shows nothing.

use crate::seeds::{RunResult, run_all, run_until};
use crate::setup::Control;

/// The maximum number of seeds.
const TRIES: u64 = 500;

/// The number of flawed worlds among which one has both. A history reports only its first violations.
const FLAWED: usize = 5;

/// Expects a world that has a flaw with `words` from the invariants, and one with `of_history` from the checker of
/// histories.
fn is_noticed(control: Control, words: &str, of_history: &str) {
    let totals = run_all(0..TRIES, control, FLAWED);
    println!("sim control {control:?}: {} worlds", totals.worlds);
    let has = |text: &Option<String>, words| text.as_ref().is_some_and(|text| text.contains(words));
    let is_noticed = |ended: &RunResult| has(&ended.flaw, words) && has(&ended.history, of_history);
    let flaws = totals
        .flawed
        .iter()
        .map(|ended| (&ended.flaw, &ended.history));
    assert!(
        totals.flawed.iter().any(is_noticed),
        "unnoticed: {:#?}",
        flaws.collect::<Vec<_>>()
    );
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
    // Rarer than the other flaws: about one world in 500 has it.
    let totals = run_until(0..8 * TRIES, Control::Bump, 1, "'s and ");
    assert!(!totals.flawed.is_empty(), "unnoticed");
}

//! The seeded bugs that worlds of this simulation have a flaw with.

#[path = "../seeded.rs"]
mod seeded;

#[test]
fn every_seeded_bug_of_this_rung_is_noticed() {
    seeded::all_are_noticed_by("sim");
}

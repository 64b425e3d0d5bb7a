//! The seeded bugs that cause a flaw in worlds of this simulation.

#[path = "../seeded.rs"]
mod bugs;

#[test]
#[ignore = "needs the seeded bugs: make bugs"]
fn every_seeded_bug_of_this_rung_is_noticed() {
    bugs::all_are_noticed_by("sim");
}

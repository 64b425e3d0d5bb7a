//! The seeded bugs that worlds of this simulation have a flaw with.

#[path = "../seeded.rs"]
mod bugs;

#[test]
#[ignore = "needs the seeded bugs: make bugs"]
fn every_seeded_bug_of_this_rung_is_noticed() {
    bugs::all_are_noticed_by("sim");
}

//! The seeded bugs that tests of this binary notice.

#[path = "../seeded.rs"]
mod bugs;

#[test]
fn every_seeded_bug_of_this_rung_is_noticed() {
    bugs::all_are_noticed_by("it");
}

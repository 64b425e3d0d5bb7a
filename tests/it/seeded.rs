//! The seeded bugs that tests of this binary detect.

#[path = "../seeded.rs"]
mod bugs;

use std::collections::BTreeSet;

#[test]
#[ignore = "needs the seeded bugs: make bugs"]
fn every_seeded_bug_of_this_rung_is_noticed() {
    bugs::all_are_noticed_by("it");
}

#[test]
fn the_table_has_every_bug_of_the_patch_and_no_other() {
    let patch = include_str!("../seeded/bugs.patch");
    let switches = patch.split("seeded::has(\"").skip(1);
    let seeded: BTreeSet<_> = switches.filter_map(|rest| rest.split('"').next()).collect();
    let table = bugs::table();
    let named: BTreeSet<_> = table.iter().map(|row| row.bug.as_str()).collect();
    assert_eq!(named, seeded);
}

/// No table runs these: the fault runs give the bug to their own operators.
#[test]
fn every_seeded_bug_of_rung_fault_has_a_control() {
    let controls = include_str!("../fault/controls.rs");
    let table = bugs::table();
    let of_faults: Vec<_> = table.iter().filter(|row| row.rung == "fault").collect();
    assert!(!of_faults.is_empty());
    for row in of_faults {
        let name = row.test.rsplit("::").next().unwrap();
        let (_, control) = controls.split_once(&format!("fn {name}()")).unwrap();
        let control = control.split("\n}").next().unwrap();
        assert!(control.contains(&format!("{:?}", row.bug)), "{name}");
    }
}

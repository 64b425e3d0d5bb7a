//! Java's client: the suite with guarded blocks and with futures, and its controls.

use std::process::Command;

use super::drivers::{java_classes, java_program};
use super::{
    TTL, built, changed_copy, conformance, drivers, examples_run, source, wrong_deadline_is_noticed,
};

fn blocks() -> Command {
    drivers::java(&java_classes(), "blocks")
}

fn futures() -> Command {
    drivers::java(&java_classes(), "futures")
}

conformance!(blocks_by_connection: blocks, None, []);
conformance!(blocks_by_renewal: blocks, Some(TTL), []);
conformance!(futures_by_connection: futures, None, []);
conformance!(futures_by_renewal: futures, Some(TTL), []);

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn examples() {
    let expected = [
        ("Block.java", "charges c with {X-Fencing-Token="),
        ("Task.java", "skipped: "),
        ("Leader.java", "does the second piece with "),
    ];
    examples_run(&source("java").join("examples"), &expected, |file| {
        java_program(&java_classes(), file.file_stem().unwrap().to_str().unwrap())
    });
}

/// Compiles a copy of the library in which some code is replaced; returns the classes' directory.
fn changed_library(change: (&str, &str, usize)) -> tempfile::TempDir {
    let copy = changed_copy(&source("java").join("src/main/java/dev/leasehold"), change);
    let classes = tempfile::tempdir().unwrap();
    let sources = std::fs::read_dir(copy.path()).unwrap();
    let compiled = Command::new("javac")
        .arg("-d")
        .arg(classes.path())
        .arg("-cp")
        .arg(built("java").join("lib/*"))
        .args(sources.map(|file| file.unwrap().path()))
        .status();
    assert!(compiled.unwrap().success());
    classes
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn wrong_deadline() {
    let forever = (
        "this.deadline = deadline",
        "this.deadline = Long.MAX_VALUE",
        2,
    );
    let from_answer = (
        "return sent + MILLISECONDS",
        "return Clock.now() + MILLISECONDS",
        1,
    );
    let copies = [forever, from_answer].map(changed_library);
    for style in ["blocks", "futures"] {
        for ttl in [None, Some(TTL)] {
            let [forever, from_answer] = copies.each_ref().map(|copy| {
                let mut classes = java_classes();
                classes.insert(0, copy.path().to_owned());
                move || drivers::java(&classes, style)
            });
            wrong_deadline_is_noticed(forever, from_answer, ttl).await;
        }
    }
}

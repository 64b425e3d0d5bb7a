//! Shows that the tests of one rung detect its seeded bugs. The tests that the table in
//! seeded-bugs.md names pass with the normal code, and fail with the bug. The same binary runs them
//! again. Only a copy of the tree with seeded/bugs.patch has the bugs.
//!
//! The table is read and not repeated here, so each of its rows is tested. A test that hangs, does
//! not exist, or fails with other words than in its row has not detected the bug.
//!
//! A row of the simulation names worlds, and its words are from a flaw that one of these worlds has
//! with the bug. `make sim` shows that they have no flaw without it. A row of the model names a test of
//! it, and `make model` shows that it passes without the bug.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seeded-bugs.md");
/// The beginning of the table.
const HEAD: &str = "| seeded bug |";
/// The environment variable with the process's bug.
const VARIABLE: &str = "LEASEHOLD_SEEDED_BUG";
/// The prefix of a row's worlds.
const OF_WORLDS: &str = "worlds ";
/// The rung whose tests take long to pass.
const MODEL: &str = "model";
/// The test that runs worlds, and the variables that select them and the expected flaw.
const WORLDS_TEST: &str = "invariants_hold_in_every_world";
const WORLDS: &str = "SIM_SEEDS";
const FLAW: &str = "SIM_FLAW";
/// The variable by which a test of the model takes one path.
const REPLAY: &str = "REPLAY";
/// How often a test is polled until it counts as hanging, after ten minutes. Most tests finish
/// immediately.
const LOOKS: usize = 30_000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// The number of concurrent runs.
const WORKERS: usize = 2;

/// A bug, and the test that detects it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) bug: String,
    pub(crate) rung: String,
    pub(crate) test: String,
    /// Words of the panic by which the test fails. Empty if no table runs the test.
    words: String,
}

/// Returns the rows of the table. Its cells: the bug, the missing defence, the rung, the test with
/// the words.
pub(crate) fn table() -> Vec<Row> {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let lines = page.lines().skip_while(|line| !line.starts_with(HEAD));
    let rows: Vec<Row> = lines
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(|c| c.trim().replace('`', "")).collect();
            let [_, bug, _, rung, test, _] = &cells[..] else {
                panic!("four cells are needed: {line}");
            };
            let (test, words) = test.split_once(": ").unwrap_or((test, ""));
            Row {
                bug: bug.clone(),
                rung: rung.clone(),
                test: test.to_owned(),
                words: words.to_owned(),
            }
        })
        .collect();
    assert!(!rows.is_empty(), "no table of seeded bugs in {PAGE}");
    rows
}

impl Row {
    /// Returns the worlds that the row names, if any.
    fn worlds(&self) -> Option<&str> {
        self.test.strip_prefix(OF_WORLDS)
    }

    /// Returns the test to run, and its environment in addition to the bug.
    fn trial(&self) -> (&str, Vec<(&str, &str)>) {
        match self.worlds() {
            Some(worlds) => {
                let flaw = self.words.as_str();
                (WORLDS_TEST, vec![(WORLDS, worlds), (FLAW, flaw)])
            }
            None => (&self.test, Vec::new()),
        }
    }
}

/// The result of a run of tests.
struct Outcome {
    /// The numbers of passed and failed tests. `None` if the run did not end in time, or its output
    /// is not that of a test run.
    counts: Option<(usize, usize)>,
    output: String,
}

fn run<'a>(
    tests: impl IntoIterator<Item = &'a str>,
    environment: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Outcome {
    let mut said = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "--include-ignored", "--test-threads", "2"])
        .args(tests);
    for variable in [VARIABLE, WORLDS, FLAW, REPLAY] {
        command.env_remove(variable);
    }
    command.envs(environment);
    let stdio = |file: &File| file.try_clone().unwrap();
    let mut child = command
        .stdout(stdio(&said))
        .stderr(stdio(&said))
        .spawn()
        .unwrap();
    let is_over = (0..LOOKS).any(|_| {
        thread::sleep(BETWEEN_LOOKS);
        child.try_wait().unwrap().is_some()
    });
    if !is_over {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let mut output = String::new();
    said.rewind().unwrap();
    said.read_to_string(&mut output).unwrap();
    let counts = is_over.then(|| counts_of(&output)).flatten();
    Outcome { counts, output }
}

/// Parses `test result: FAILED. 0 passed; 1 failed; …`.
fn counts_of(output: &str) -> Option<(usize, usize)> {
    let result = output
        .lines()
        .rfind(|line| line.starts_with("test result: "))?;
    let count_of = |what: &str| {
        let before = result.split(what).next()?;
        before.split_whitespace().next_back()?.parse().ok()
    };
    Some((count_of(" passed")?, count_of(" failed")?))
}

/// Returns the message of the first panic, with all its lines.
fn panic_of(output: &str) -> Option<String> {
    let mut lines = output.lines();
    lines.find(|line| line.contains("panicked at "))?;
    let is_over = |line: &str| {
        line.is_empty() || line.starts_with("note: ") || line.starts_with("stack backtrace:")
    };
    let said: Vec<_> = lines.take_while(|line| !is_over(line)).collect();
    Some(said.join("\n"))
}

/// Returns an error for a row whose bug is not detected.
fn complaint(row: &Row) -> Option<String> {
    let (runs, environment) = row.trial();
    let outcome = run(
        [runs],
        environment
            .into_iter()
            .chain([(VARIABLE, row.bug.as_str())]),
    );
    complaint_about(row, &outcome)
}

fn complaint_about(row: &Row, outcome: &Outcome) -> Option<String> {
    let Row {
        bug, test, words, ..
    } = row;
    match outcome.counts {
        Some((0, 1)) => {
            let said = panic_of(&outcome.output).unwrap_or_default();
            if words.is_empty() || !said.contains(words) {
                let complaint = format!("{bug}: {test} failed without the words {words:?}: {said}");
                return Some(complaint);
            }
            println!("{bug}: noticed by {test}: {said}");
            None
        }
        Some((1, 0)) => Some(format!("{bug}: not noticed by {test}")),
        Some(_) => Some(format!("{bug}: no test {test} exists")),
        None => Some(format!("{bug}: {test} did not end\n{}", outcome.output)),
    }
}

/// Runs all rows of a rung, first without the bugs.
pub(crate) fn all_are_noticed_by(rung: &str) {
    let rows: Vec<Row> = table().into_iter().filter(|row| row.rung == rung).collect();
    assert!(!rows.is_empty(), "no bug is noticed by {rung}");
    let named = rows
        .iter()
        .filter(|row| row.worlds().is_none() && rung != MODEL);
    let tests: BTreeSet<&str> = named.map(|row| row.test.as_str()).collect();
    if !tests.is_empty() {
        let sound = run(tests.iter().copied(), []);
        assert_eq!(sound.counts, Some((tests.len(), 0)), "{}", sound.output);
    }
    let left = Mutex::new(rows.iter());
    let complaints = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap().next();
                    let Some(row) = next else { return };
                    complaints.lock().unwrap().extend(complaint(row));
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn undetected_bug_is_not_counted_as_noticed() {
    let row = |test: &str, words: &str| Row {
        // A bug that this test cannot depend on.
        bug: "readers-not-waited-for".to_owned(),
        rung: String::new(),
        test: test.to_owned(),
        words: words.to_owned(),
    };
    let own = concat!(module_path!(), "::output_of_a_test_run_is_parsed");
    let own = own.split_once("::").unwrap().1;
    let failed = Outcome {
        counts: Some((0, 1)),
        output: "thread 'x' panicked at a.rs:1:2:\nno file\nnote: too early".to_owned(),
    };
    let noticed_nothing = [
        (complaint(&row(own, "x")), "not noticed"),
        (complaint(&row("no::such", "x")), "no test"),
        (
            complaint_about(&row("x", "too early"), &failed),
            "the words",
        ),
        (complaint_about(&row("x", ""), &failed), "the words"),
    ];
    for (complaint, about) in noticed_nothing {
        assert!(complaint.unwrap().contains(about), "{about}");
    }
    assert_eq!(complaint_about(&row("x", "no file"), &failed), None);
}

#[test]
fn output_of_a_test_run_is_parsed() {
    let said = "x\ntest result: FAILED. 3 passed; 12 failed; 0 ignored; 0 measured\n";
    assert_eq!(counts_of(said), Some((3, 12)));
    assert_eq!(counts_of("Killed"), None);
    let said =
        "x\nthread 'y' (7) panicked at z:1:2:\nfailed: it\n  left: 1\nstack backtrace:\n  0: it";
    assert_eq!(panic_of(said).unwrap(), "failed: it\n  left: 1");
    assert_eq!(panic_of("it panicked"), None);
}

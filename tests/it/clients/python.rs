//! Python's client: the suite for threads and for asyncio, and its controls.

use std::path::PathBuf;
use std::process::Command;

use super::{
    TTL, changed_copy, conformance, drivers, examples_run, source, wrong_deadline_is_noticed,
};

fn interpreter() -> Command {
    Command::new(super::built("python").join("venv/bin/python"))
}

fn threads() -> Command {
    drivers::python("threads")
}

fn asyncio() -> Command {
    drivers::python("asyncio")
}

conformance!(threads_by_connection: threads, None, [copy_of_a_process_holds_nothing, unix_socket_serves_as_well]);
conformance!(threads_by_renewal: threads, Some(TTL), [copy_of_a_process_holds_nothing, unix_socket_serves_as_well]);
conformance!(asyncio_by_connection: asyncio, None, [copy_of_a_process_holds_nothing, unix_socket_serves_as_well]);
conformance!(asyncio_by_renewal: asyncio, Some(TTL), [copy_of_a_process_holds_nothing, unix_socket_serves_as_well]);

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn examples() {
    let expected = [
        ("block.py", "charges c with {'X-Fencing-Token': "),
        ("task.py", "charges c with {'X-Fencing-Token': "),
        ("leader.py", "does the second piece with "),
        ("decorated.py", "reports"),
    ];
    examples_run(&source("python").join("examples"), &expected, |file| {
        let mut command = interpreter();
        command.arg(file);
        command
    });
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn wrong_deadline() {
    let package = source("python").join("src/leasehold");
    let forever = ("self._deadline = deadline", "self._deadline = 1e9", 2);
    let from_answer = ("return self._sent +", "return _clock.now() +", 1);
    let copies = [forever, from_answer].map(|change| {
        let copy = tempfile::tempdir().unwrap();
        let changed = changed_copy(&package, change).keep();
        std::fs::rename(changed, copy.path().join("leasehold")).unwrap();
        copy
    });
    for style in ["threads", "asyncio"] {
        for ttl in [None, Some(TTL)] {
            let [forever, from_answer] = copies.each_ref().map(|copy| {
                let path: PathBuf = copy.path().to_owned();
                move || {
                    let mut command = drivers::python(style);
                    command.env("PYTHONPATH", &path);
                    command
                }
            });
            wrong_deadline_is_noticed(forever, from_answer, ttl).await;
        }
    }
}

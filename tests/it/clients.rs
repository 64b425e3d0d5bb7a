//! The conformance suite of the clients: what clients/README.md promises, for each language and each
//! way to hold a lock, against `leasehold dev`. `make clients` installs what it needs, and runs it.
//!
//! A client's driver does what a scenario says. Each control removes the deadline from a client, and
//! the suite must notice.

mod app;
mod scenarios;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::task::LocalSet;

use app::{Kind, PATIENCE};

use crate::dev::Dev;

fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients")
}

/// Returns the Python interpreter that has the package.
fn interpreter() -> OsString {
    let python = std::env::var_os("LEASEHOLD_CLIENTS_PYTHON");
    python.expect("LEASEHOLD_CLIENTS_PYTHON; run `make clients`")
}

/// Returns a command that runs the Python driver, with the package that `make clients` installed.
fn python(style: &str) -> Command {
    let mut command = Command::new(interpreter());
    command
        .arg(clients().join("python/conformance/driver.py"))
        .arg(style);
    command
}

fn python_threads() -> Command {
    python("threads")
}

fn python_asyncio() -> Command {
    python("asyncio")
}

/// The seconds of silence after which a lease that is renewed ends.
const TTL: u64 = 3;

macro_rules! each_scenario_for {
    ($($name:ident: $command:expr, $ttl:expr, [$($scenario:ident),* $(,)?];)*) => {
        $(mod $name {
            use super::*;
            $(
                #[tokio::test]
                #[ignore = "needs the clients' languages: make clients"]
                async fn $scenario() {
                    scenarios::$scenario(Kind { command: $command, ttl: $ttl, patience: PATIENCE }).await;
                }
            )*
        })*
    };
}

macro_rules! conformance {
    ($($name:ident: $command:expr, $ttl:expr;)*) => {
        each_scenario_for! {
            $($name: $command, $ttl, [
                app_that_is_killed_frees_its_lock,
                app_that_slept_past_its_deadline_is_fenced_off,
                busy_app_keeps_its_lease,
                candidate_leads_after_the_leader,
                copy_of_a_process_holds_nothing,
                ended_grant_is_noticed_without_a_question,
                environments_proxy_is_not_used,
                lease_outlives_its_first_validity,
                lease_without_its_sidecar_ends_at_the_deadline,
                leader_without_its_sidecar_stops_at_the_deadline,
                many_leases_cost_one_thread,
                outage_of_the_store_is_waited_for,
                refused_request_says_what_to_correct,
                released_lock_is_free_and_tokens_rise,
                release_without_an_answer_ends,
                unix_socket_serves_as_well,
                wait_that_is_over_names_the_holder,
                waiter_gets_the_lock_after_release,
                waiter_outlives_a_restart_of_the_sidecar,
            ];)*
        }
    };
}

conformance! {
    python_threads_by_connection: python_threads, None;
    python_threads_by_renewal: python_threads, Some(TTL);
    python_asyncio_by_connection: python_asyncio, None;
    python_asyncio_by_renewal: python_asyncio, Some(TTL);
}

#[test]
#[ignore = "needs the clients' languages: make clients"]
fn python_examples_run() {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dev = runtime.block_on(Dev::start(data.path(), &[]));
    let expected = [
        ("block.py", "charges c with {'X-Fencing-Token': "),
        ("task.py", "charges c with {'X-Fencing-Token': "),
        ("leader.py", "does the second piece with "),
        ("decorated.py", "reports"),
    ];
    let directory = clients().join("python/examples");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), expected.len());
    for (name, words) in expected {
        let mut command = Command::new(interpreter());
        let output = command
            .arg(directory.join(name))
            .env("LEASEHOLD_URL", dev.url())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && said.contains(words),
            "{name}: {said}"
        );
    }
}

/// Returns a copy of the Python package that believes in each lease for ever.
fn python_without_deadline() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let package = copy.path().join("leasehold");
    fs::create_dir(&package).unwrap();
    for file in fs::read_dir(clients().join("python/src/leasehold")).unwrap() {
        let file = file.unwrap();
        if !file.file_type().unwrap().is_file() {
            continue;
        }
        let mut text = fs::read_to_string(file.path()).unwrap();
        if file.file_name() == "_lease.py" {
            let lines = text.matches("self._deadline = deadline").count();
            assert_eq!(lines, 2, "the control does not fit the code");
            text = text.replace("self._deadline = deadline", "self._deadline = 1e9");
        }
        fs::write(package.join(file.file_name()), text).unwrap();
    }
    copy
}

#[tokio::test]
#[ignore = "needs the clients' languages: make clients"]
async fn python_without_its_deadline_fails() {
    for style in ["threads", "asyncio"] {
        for ttl in [None, Some(TTL)] {
            let copy = python_without_deadline();
            let source = copy.path().to_owned();
            let kind = Kind {
                command: move || {
                    let mut command = python(style);
                    command.env("PYTHONPATH", &source);
                    command
                },
                ttl,
                patience: Duration::from_secs(8),
            };
            let scenario = scenarios::lease_without_its_sidecar_ends_at_the_deadline(kind);
            let run = async { tokio::task::spawn_local(scenario).await };
            let failure = LocalSet::new().run_until(run).await;
            let failure = failure.expect_err("a failure").into_panic();
            let said = failure.downcast_ref::<String>().expect("a message");
            assert!(said.contains("no loss"), "{style}, {ttl:?}: {said}");
        }
    }
}

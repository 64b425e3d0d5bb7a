//! The conformance suite of the clients: what clients/README.md promises, for each language and each
//! way to hold a lock, against `leasehold dev`. `make clients` installs what it needs, and runs it.
//!
//! A client's driver does what a scenario says. Controls remove the deadline from each client, and
//! count it from the answer; the suite must notice.

mod app;
mod drivers;
mod go;
mod java;
mod python;
mod rust;
mod scenarios;
mod typescript;
mod way;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::task::LocalSet;

use app::{Kind, PATIENCE};
use drivers::{built, source};

use crate::dev::Dev;

/// The seconds of silence after which a lease that is renewed ends.
const TTL: u64 = 3;

/// The scenarios as tests of one kind: a driver's command, and the TTL, if it holds by renewals. The
/// list has what not every language can do.
macro_rules! conformance {
    ($name:ident: $command:expr, None, [$($more:ident),*]) => {
        $crate::clients::conformance!(every $name: $command, None, [$($more),*]);
    };
    ($name:ident: $command:expr, Some($ttl:expr), [$($more:ident),*]) => {
        $crate::clients::conformance! {
            every $name: $command, Some($ttl), [
                $($more,)*
                late_renewals_promise_no_more,
                lease_ends_at_the_deadline_under_503,
                renewal_answered_with_503_is_repeated
            ]
        }
    };
    (every $name:ident: $command:expr, $ttl:expr, [$($more:ident),*]) => {
        $crate::clients::conformance! {
            as tests of $name: $command, $ttl, [
                $($more,)*
                answer_that_got_lost_takes_no_second_lock,
                app_that_is_killed_frees_its_lock,
                app_that_slept_past_its_deadline_is_fenced_off,
                busy_app_keeps_its_lease,
                candidate_leads_after_the_leader,
                ended_grant_is_noticed_without_a_question,
                environments_proxy_is_not_used,
                late_answer_promises_no_more,
                lease_outlives_its_first_validity,
                lease_without_its_sidecar_ends_at_the_deadline,
                leader_without_its_sidecar_stops_at_the_deadline,
                many_leases_share_a_few_threads,
                outage_of_the_store_is_waited_for,
                refused_request_says_what_to_correct,
                released_lock_is_free_and_tokens_rise,
                release_without_an_answer_ends,
                started_program_keeps_nothing_open,
                wait_that_ends_unanswered_holds_nothing,
                wait_that_is_over_names_the_holder,
                waiter_gets_the_lock_after_release,
                waiter_outlives_a_restart_of_the_sidecar,
            ]
        }
    };
    (as tests of $name:ident: $command:expr, $ttl:expr, [$($scenario:ident),* $(,)?]) => {
        mod $name {
            use super::*;
            $(
                #[tokio::test]
                #[ignore = "needs the clients' languages: make clients"]
                async fn $scenario() {
                    let patience = $crate::clients::app::PATIENCE;
                    let kind = $crate::clients::app::Kind { command: $command, ttl: $ttl, patience };
                    $crate::clients::scenarios::$scenario(kind).await;
                }
            )*
        }
    };
}
use conformance;

/// Runs every example of a language; each prints some words.
fn examples_run(directory: &Path, expected: &[(&str, &str)], command: impl Fn(&Path) -> Command) {
    let data = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dev = runtime.block_on(Dev::start(data.path(), &[]));
    assert_eq!(fs::read_dir(directory).unwrap().count(), expected.len());
    for (name, words) in expected {
        let mut command = command(&directory.join(name));
        let output = command.env("LEASEHOLD_URL", dev.url()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.contains(words),
            "{name}: {said}{complaint}"
        );
    }
}

/// Returns a copy of a client in which some code is replaced by other code, wherever it occurs.
fn changed_copy(of: &Path, (code, instead, times): (&str, &str, usize)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut found = 0;
    for file in fs::read_dir(of).unwrap() {
        let file = file.unwrap();
        if file.file_type().unwrap().is_file() {
            let text = fs::read_to_string(file.path()).unwrap();
            found += text.matches(code).count();
            fs::write(
                copy.path().join(file.file_name()),
                text.replace(code, instead),
            )
            .unwrap();
        }
    }
    assert_eq!(found, times, "the control does not fit the code: {code}");
    copy
}

/// Runs the scenarios that notice a wrong deadline with a client that has one: it believes for ever,
/// or counts from the answer.
async fn wrong_deadline_is_noticed<C>(forever: C, from_answer: C, ttl: Option<u64>)
where
    C: Fn() -> Command + Clone + 'static,
{
    let patience = Duration::from_secs(8);
    let kind = Kind {
        command: forever,
        ttl,
        patience,
    };
    let scenario = scenarios::lease_without_its_sidecar_ends_at_the_deadline(kind);
    fails(scenario, "no loss").await;
    let kind = || Kind {
        command: from_answer.clone(),
        ttl,
        patience: PATIENCE,
    };
    fails(scenarios::late_answer_promises_no_more(kind()), "too much").await;
    if ttl.is_some() {
        let scenario = scenarios::late_renewals_promise_no_more(kind());
        fails(scenario, "too much").await;
    }
}

async fn fails(scenario: impl Future<Output = ()> + 'static, words: &str) {
    let run = async { tokio::task::spawn_local(scenario).await };
    let failure = LocalSet::new().run_until(run).await;
    let failure = failure.expect_err("a failure").into_panic();
    let said = failure.downcast_ref::<String>().expect("a message");
    assert!(said.contains(words), "{said}");
}

//! The negative controls: each broken part around the core must make the checker find a counterexample. A
//! check that cannot fail shows nothing. `make bugs` shows bugs inside the core.

use super::check::{EXCLUSION, SERVED, SOUND, STORED, TOKENS, violates};
use super::rules::{Budget, Bug, Return, Rules};
use super::*;

fn with(bug: Bug, budget: Budget) -> Rules {
    Rules {
        bug: Some(bug),
        budget,
        ..Rules::calm()
    }
}

#[test]
#[ignore = "walks through many states: make model"]
fn app_that_counts_from_the_answer_is_detected() {
    let rules = Rules {
        nodes: 3,
        renewals: 0,
        ..with(Bug::AppCountsFromAnswer, Budget::NONE)
    };
    violates("app counts from the answer", EXCLUSION, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn lock_write_without_precondition_is_detected() {
    let rules = Rules {
        watch: WatchPace::Silent,
        ..with(Bug::LockWithoutPrecondition, Budget::NONE)
    };
    violates("lock without precondition", EXCLUSION, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn lease_that_is_not_on_file_is_detected() {
    let rules = Rules {
        returns: &[Return::WithFile],
        ..with(
            Bug::LeaseNotOnFile,
            Budget {
                crashes: 1,
                ..Budget::NONE
            },
        )
    };
    violates("lease not on file", SOUND, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn clocks_far_apart_are_detected() {
    let rules = Rules {
        clocks_differ: true,
        ..with(Bug::ClocksFarApart, LATE)
    };
    violates("clocks far apart", EXCLUSION, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn revocation_at_once_is_detected() {
    let rules = Rules {
        operator: true,
        ..with(Bug::RevokedAtOnce, Budget::NONE)
    };
    violates("revoked at once", EXCLUSION, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn restore_at_the_old_revision_is_detected() {
    let rules = Rules {
        tries: 2,
        ..with(
            Bug::RestoreWithoutRaise,
            Budget {
                restores: 1,
                ..Budget::NONE
            },
        )
    };
    violates("restore at the old revision", TOKENS, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn free_lock_with_a_queue_is_detected() {
    let rules = with(
        Bug::QueueOfFreeLock,
        Budget {
            forces: 1,
            ..Budget::NONE
        },
    );
    violates("free lock with a queue", STORED, rules);
}

#[test]
#[ignore = "walks through many states: make model"]
fn cluster_without_take_overs_is_detected() {
    let rules = Rules {
        takes_over: false,
        returns: &[Return::Never],
        budget: Budget {
            crashes: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    violates("nobody takes over", SERVED, rules);
}

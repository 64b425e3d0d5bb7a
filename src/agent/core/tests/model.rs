//! The shipped core, checked over every schedule of small worlds by stateright.
//!
//! Apps, clocks, the network, crashes and people are a world around two or three cores. Each test is one
//! world and walks through all of its states; a test that never took one of the steps it names fails.
//! `tests/model.md` says what the model assumes, and how to read a failure.

mod actions;
mod app;
mod check;
mod controls;
mod node;
mod operator;
mod rules;
mod text;
mod world;

use super::*;
use check::holds;
use rules::{Budget, Return, Rules, WatchPace};

/// A third of the TTL.
const THIRD: Duration = Duration::from_secs(rules::TTL_SECONDS / 3);

/// One late message.
const LATE: Budget = Budget {
    late: 1,
    ..Budget::NONE
};

/// Nothing is there yet: the first callers create the lock and begin their sessions.
#[test]
#[ignore = "walks through very many states: make model"]
fn first_callers() {
    let rules = Rules {
        has_begun: false,
        asks_until: THIRD,
        budget: LATE,
        ..Rules::calm()
    };
    holds("first callers", rules, &["DelayRequest", "DelayAnswer"]);
}

/// Clocks of different rates, messages that take any time, take-over by a peer.
#[test]
#[ignore = "walks through very many states: make model"]
fn time_and_take_over() {
    let rules = Rules {
        clocks_differ: true,
        asks_until: THIRD,
        budget: LATE,
        ..Rules::calm()
    };
    let takes = ["Timer", "Apply", "Answer", "End"];
    holds("time", rules, &takes);
}

/// A process stands still at any time, for any time.
#[test]
#[ignore = "walks through very many states: make model"]
fn paused_processes() {
    let rules = Rules {
        clocks_differ: true,
        budget: Budget {
            pauses: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("paused", rules, &["Pause", "Resume"]);
}

/// A process stands still while a message is under way, and continues with its answer.
#[test]
#[ignore = "walks through very many states: make model"]
fn paused_beside_late_messages() {
    let rules = Rules {
        watch: WatchPace::Silent,
        budget: Budget { pauses: 1, ..LATE },
        ..Rules::calm()
    };
    holds("paused, late", rules, &["Pause", "Apply", "Answer"]);
}

/// A session object disappears under its owner, and clocks differ.
#[test]
#[ignore = "walks through very many states: make model"]
fn deleted_sessions() {
    let rules = Rules {
        clocks_differ: true,
        budget: Budget {
            session_deletes: 1,
            ..LATE
        },
        ..Rules::calm()
    };
    holds("deleted sessions", rules, &["DeleteSession"]);
}

/// A lost session is followed by another one under a new name.
#[test]
#[ignore = "walks through very many states: make model"]
fn sessions_that_follow_each_other() {
    let rules = Rules {
        tries: 2,
        renewals: 0,
        budget: Budget {
            pauses: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("sessions", rules, &["Pause", "Ask"]);
}

/// Writes without an answer, which land long after their senders gave them up, or never.
#[test]
#[ignore = "walks through very many states: make model"]
fn unanswered_writes() {
    let rules = Rules {
        asks_until: THIRD,
        budget: Budget {
            timeouts: 1,
            ..LATE
        },
        ..Rules::calm()
    };
    holds("unanswered", rules, &["TimeOut", "ApplyStray"]);
}

/// Processes that crash and come back with their state file, without it, or never.
#[test]
#[ignore = "walks through very many states: make model"]
fn crashes_and_resumption() {
    let rules = Rules {
        budget: Budget { crashes: 1, ..LATE },
        ..Rules::calm()
    };
    let takes = ["Crash", "Restart", "ApplyStray"];
    holds("crashes", rules, &takes);
}

/// Processes that come back with a copy of their state file that does not know of their leases.
#[test]
#[ignore = "walks through very many states: make model"]
fn older_files() {
    let rules = Rules {
        clocks_differ: true,
        returns: &[Return::WithOlderFile],
        budget: Budget {
            crashes: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("older file", rules, &["Crash", "Restart"]);
}

/// Crashes, unanswered writes and take-over by a peer.
#[test]
#[ignore = "walks through very many states: make model"]
fn peers_serve_all_waiters() {
    let rules = Rules {
        renewals: 0,
        budget: Budget {
            crashes: 1,
            timeouts: 1,
            ..LATE
        },
        ..Rules::calm()
    };
    holds("peers", rules, &["Crash", "TimeOut", "ApplyStray"]);
}

/// Three queued apps: hand-over, hanging up, a queue entry or a grant without a caller.
#[test]
#[ignore = "walks through very many states: make model"]
fn queue_and_hand_over() {
    let rules = Rules {
        nodes: 3,
        renewals: 0,
        budget: Budget {
            hang_ups: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("queue", rules, &["HangUp", "End"]);
}

/// A caller hangs up while its write is under way.
#[test]
#[ignore = "walks through very many states: make model"]
fn late_writes_without_a_caller() {
    let rules = Rules {
        renewals: 0,
        budget: Budget {
            hang_ups: 1,
            timeouts: 1,
            ..LATE
        },
        // Which states are followed depends on the text of all fields: of few states, many are.
        followed: 31,
        ..Rules::calm()
    };
    holds("no caller", rules, &["HangUp", "ApplyStray"]);
}

/// The lock is handed to crashed waiters, and a live one gets it from there.
#[test]
#[ignore = "walks through very many states: make model"]
fn hand_over_to_crashed_waiters() {
    let rules = Rules {
        nodes: 3,
        renewals: 0,
        returns: &[Return::Never],
        budget: Budget {
            crashes: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("crashed waiters", rules, &["Crash"]);
}

/// Only the operator takes over.
#[test]
#[ignore = "walks through very many states: make model"]
fn operator_serves_all_waiters() {
    let rules = Rules {
        operator: true,
        takes_over: false,
        returns: &[Return::Never],
        budget: Budget {
            crashes: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("operator", rules, &["Observe", "Revoke", "TakeOver"]);
}

/// The operator and its messages that take any time.
#[test]
#[ignore = "walks through very many states: make model"]
fn operator_beside_late_messages() {
    let rules = Rules {
        operator: true,
        takes_over: false,
        renewals: 0,
        budget: LATE,
        ..Rules::calm()
    };
    holds("operator, late", rules, &["Apply", "Revoke", "TakeOver"]);
}

/// One session for two locks: losing it loses both.
#[test]
#[ignore = "walks through very many states: make model"]
fn two_locks_under_one_session() {
    let rules = Rules {
        locks: 2,
        renewals: 0,
        ..Rules::calm()
    };
    holds("two locks", rules, &["End"]);
}

/// Apps that do not wait, and grants that stay warm for the next one.
#[test]
#[ignore = "walks through very many states: make model"]
fn warm_grants() {
    let rules = Rules {
        keep: Duration::from_secs(30),
        tries: 2,
        renewals: 0,
        budget: LATE,
        ..Rules::calm()
    };
    holds("warm", rules, &["Ask", "End"]);
}

/// Apps that try and do not wait.
#[test]
#[ignore = "walks through very many states: make model"]
fn tries() {
    let rules = Rules {
        waits: false,
        tries: 2,
        budget: LATE,
        ..Rules::calm()
    };
    holds("tries", rules, &["Ask", "End"]);
}

/// Watches that report at any later time.
#[test]
#[ignore = "walks through very many states: make model"]
fn late_watches() {
    let rules = Rules {
        watch: WatchPace::Late,
        budget: LATE,
        ..Rules::calm()
    };
    holds("late watches", rules, &["Report"]);
}

/// Watches that report nothing.
#[test]
#[ignore = "walks through very many states: make model"]
fn silent_watches() {
    let rules = Rules {
        watch: WatchPace::Silent,
        clocks_differ: true,
        budget: LATE,
        ..Rules::calm()
    };
    holds("silent watches", rules, &["Timer"]);
}

/// A person deletes the lock object or forces a release, the operator deletes it, and a backup is restored:
/// tokens rise all the same.
#[test]
#[ignore = "walks through very many states: make model"]
fn locks_that_are_deleted_forced_and_restored() {
    let rules = Rules {
        renewals: 0,
        budget: Budget {
            lock_deletes: 1,
            forces: 1,
            tidies: 1,
            restores: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    let takes = ["DeleteLock", "ForceRelease", "TidyUp", "Restore"];
    holds("tokens", rules, &takes);
}

/// A restore meets grants that serve one lease after another.
#[test]
#[ignore = "walks through very many states: make model"]
fn warm_grants_over_a_restore() {
    let rules = Rules {
        keep: Duration::from_secs(30),
        tries: 2,
        renewals: 0,
        budget: Budget {
            restores: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("warm over a restore", rules, &["Ask", "Restore"]);
}

/// A restore meets writes that are late.
#[test]
#[ignore = "walks through very many states: make model"]
fn late_writes_over_a_restore() {
    let rules = Rules {
        renewals: 0,
        budget: Budget {
            restores: 1,
            ..LATE
        },
        ..Rules::calm()
    };
    holds("late over a restore", rules, &["Apply", "Restore"]);
}

/// A backup is restored with its revision raised.
#[test]
#[ignore = "walks through very many states: make model"]
fn restores() {
    let rules = Rules {
        tries: 2,
        renewals: 0,
        budget: Budget {
            restores: 1,
            ..Budget::NONE
        },
        ..Rules::calm()
    };
    holds("restores", rules, &["TakeBackup", "Restore"]);
}

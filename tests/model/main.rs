//! The protocol, checked over every schedule of a small world.
//!
//! The agents here decide with the protocol's own functions; only the world around them (store,
//! network, clocks, faults, the apps and the resource that they write to) is the model's. Each
//! configuration is checked to its end: every state that its budgets allow. `checks.rs` says what
//! must hold in all of them; the configurations say what may go wrong. Numbers of states are
//! printed with `--nocapture`; README.md says how to run and replay.

#![cfg(test)]

mod actions;
mod app;
mod bugs;
mod checks;
mod clock;
mod elapse;
mod lock_client;
mod lock_history;
mod node;
mod properties;
mod rules;
mod session;
mod steps;
mod store;
mod world;

use checks::holds;
use node::Return;
use rules::{Budget, Rules};

/// Clocks of different rates, messages that take any time, a hung holder, take-over by a peer.
#[test]
fn time_and_take_over() {
    let rules = Rules {
        clocks_differ: true,
        budget: Budget {
            late: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    let takes = [
        "time passes",
        "begin a session",
        "renew",
        "notice expiry",
        "read a lock",
        "read another session",
        "create",
        "acquire",
        "join the queue",
        "release",
        "revoke",
        "take over",
        "end",
        "late request",
        "late answer",
        "apply late",
        "answer late",
    ];
    holds("time", rules, &takes);
}

/// A session object disappears under its owner, and clocks differ.
#[test]
fn sessions_that_vanish() {
    let rules = Rules {
        clocks_differ: true,
        budget: Budget {
            session_deletes: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds(
        "vanish",
        rules,
        &["delete a session", "take over", "revoke"],
    );
}

/// Answers that never come, writes that land long after their senders timed out.
#[test]
fn unanswered_writes() {
    let rules = Rules {
        budget: Budget {
            late: 1,
            timeouts: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    let takes = [
        "time out",
        "apply after the time-out",
        "lose",
        "read the own session",
    ];
    holds("unanswered", rules, &takes);
}

/// Processes that crash and come back with their state file, without it, or never.
#[test]
fn crashes_and_resumption() {
    let rules = Rules {
        budget: Budget {
            late: 1,
            crashes: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    let takes = [
        "crash, keeping state",
        "crash, losing state",
        "crash for good",
        "restart",
    ];
    holds("crashes", rules, &takes);
}

/// Processes that come back with a copy of their state file that does not know of the last leases.
#[test]
fn older_state() {
    let rules = Rules {
        clocks_differ: true,
        returns: &[Return::WithOlderState],
        budget: Budget {
            crashes: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds(
        "older state",
        rules,
        &["crash, keeping older state", "release"],
    );
}

/// Only the operator takes over; every waiter that waits long enough is served.
#[test]
fn operator_serves_all_waiters() {
    let rules = Rules {
        operator: true,
        peers_take_over: false,
        renewals_each: 0,
        waiters_outlast: true,
        budget: Budget {
            late: 1,
            crashes: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds(
        "operator",
        rules,
        &["revoke", "take over", "crash for good"],
    );
}

/// No operator at all: peers serve themselves.
#[test]
fn peers_serve_all_waiters() {
    let rules = Rules {
        renewals_each: 0,
        waiters_outlast: true,
        budget: Budget {
            late: 1,
            crashes: 1,
            timeouts: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds("peers", rules, &["revoke", "take over", "crash for good"]);
}

/// Lock objects that an administrator deletes or forces, that the operator deletes, that a backup restores at their
/// old revisions: tokens rise, and the resource goes forward.
#[test]
fn tokens_over_deletes_and_restores() {
    let rules = Rules {
        renewals_each: 0,
        fenced_writes: true,
        budget: Budget {
            lock_deletes: 1,
            forces: 1,
            tidies: 1,
            restores: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    let takes = [
        "delete a lock",
        "force a release",
        "tidy up",
        "take a backup",
        "restore",
        "rebase",
        "write to the resource",
    ];
    holds("tokens", rules, &takes);
}

/// A restore meets apps that come again, and grants that serve one lease after another.
#[test]
fn tokens_of_many_leases_over_a_restore() {
    let rules = Rules {
        renewals_each: 0,
        tries_each: 1,
        fenced_writes: true,
        budget: Budget {
            restores: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds("many leases", rules, &["ask", "restore", "rebase"]);
}

/// A restore meets writes whose senders have timed out.
#[test]
fn tokens_of_unanswered_writes_over_a_restore() {
    let rules = Rules {
        renewals_each: 0,
        fenced_writes: true,
        budget: Budget {
            late: 1,
            timeouts: 1,
            restores: 1,
            ..Budget::default()
        },
        ..Rules::calm()
    };
    holds(
        "late tokens",
        rules,
        &["apply after the time-out", "rebase"],
    );
}

//! An arbitrary lock object is read, taken through the protocol's steps, and written again. An
//! error names what is invalid, no step panics, and unknown fields survive.

use std::collections::BTreeMap;

use leasehold::k8s::convert::lock::{read, write};
use leasehold::protocol::incident::{Ending, INCIDENTS_MAX, IncidentKind};
use leasehold::protocol::lock::{Claim, Decision, Grant, Lock};
use leasehold::protocol::session::{Claimant, PodRef};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{LEASES_PER_GRANT, MAX_BASE, Mint, Revision, Seen};
use leasehold::store::{StoreError, Stored};
use serde_json::Value;

use super::{
    Outcome, Target, as_read, assert_rest_is_kept, bounded, forgetting, no_seeds, object_in,
    unreadable,
};

/// The fields of a status that this version writes.
const KNOWN: &[&str] = &[
    "holder",
    "lease",
    "token",
    "waiters",
    "incidents",
    "completed",
    "transitions",
    "conditions",
];
const MINT: Mint = Mint {
    seen: Seen::from_list(Revision(0)),
    floor: 0,
};

pub(crate) const TARGET: Target = Target {
    name: "lock",
    run: |input| target(input, write),
    broken: |input| target(input, forgetful),
    seeds: no_seeds,
    words: &[
        "metadata",
        "resourceVersion",
        "managedFields",
        "spec",
        "resource",
        "status",
        "holder",
        "lease",
        "token",
        "waiters",
        "incidents",
        "completed",
        "transitions",
        "conditions",
        "ownerId",
        "podUid",
        "session",
        "sessionTtlSeconds",
        "leaseId",
        "acquiredAt",
        "queuedAt",
        "kept",
        "preferred",
        "releaseRequest",
        "Force",
        "Ask",
        "LongHeld",
        "True",
        "lastTransitionTime",
        "Expired",
        "PodEnded",
        "ForceReleased",
        "fieldOfTomorrow",
        "election:jobs",
    ],
    tries: 6_000,
};

type Write = fn(&Stored<Lock>, &Lock) -> Result<Value, StoreError>;

fn target(input: &[u8], write: Write) -> Outcome {
    let object = match object_in(input) {
        Ok(object) => object,
        Err(refused) => return refused,
    };
    let stored = match read(object.clone()) {
        Ok(stored) => stored,
        Err(error) => return unreadable(error),
    };
    let lock = &stored.value;
    assert!(
        lock.grant.is_some() || lock.waiters.is_empty(),
        "a queue for a free lock"
    );
    assert_unchanged(&object, &stored, write);
    let mut steps = vec!["read"];
    for (step, next) in steps_from(&stored) {
        assert_keeps(&object, &stored, &next, write);
        steps.push(step);
    }
    Outcome::Taken(format!(
        "{}; {} wait, {} incidents",
        steps.join(", "),
        lock.waiters.len().min(4),
        lock.incidents.len().min(3)
    ))
}

/// Asserts that an unchanged lock is written as it was read.
fn assert_unchanged(object: &Value, stored: &Stored<Lock>, write: Write) {
    let lock = &stored.value;
    let written = write(stored, lock).expect("what was read can be written");
    let mut expected = as_read(object, stored);
    expected["status"]["token"] = bounded(lock.token.get());
    expected["status"]["transitions"] = bounded(lock.transitions);
    assert_eq!(written, expected);
}

/// Returns the possible next steps of a lock, each with its result.
fn steps_from(stored: &Stored<Lock>) -> Vec<(&'static str, Lock)> {
    let (lock, at) = (&stored.value, stored.version);
    let mut next: Vec<(&'static str, Option<Lock>)> = Vec::new();
    let claim = claim();
    match lock.acquire_or_queue(at, &MINT, &claim) {
        Decision::Granted(granted) => next.push(("acquired", Some(*granted))),
        Decision::Queued(waiter) => next.push(("joined", lock.joined_by(*waiter))),
        Decision::AlreadyGranted | Decision::AlreadyQueued(_) | Decision::Refused(_) => {}
    }
    let grant = lock.grant.as_ref().map_or_else(|| claim.key(), Grant::key);
    let now = WallTime(0);
    next.push(("released", lock.release(at, &MINT, &grant, now)));
    let is_dead = |who: &Claimant| Some(&who.session) == lock.holder_session();
    next.push((
        "taken over",
        lock.take_over(at, &MINT, is_dead, &ending(), Some(&claim)),
    ));
    next.push((
        "forced",
        lock.force_release(at, &MINT, &grant.id, |_| false, &ending()),
    ));
    next.push(("marked", lock.marked_long_held(Some(now))));
    next.push(("unmarked", lock.marked_long_held(None)));
    if let Some(first) = lock.waiters.entries().first() {
        next.push(("left", lock.leave_queue(&first.key())));
    }
    let done = next
        .into_iter()
        .filter_map(|(step, next)| Some((step, next?)));
    done.collect()
}

/// Asserts that a step keeps what it does not change, and that the result reads back.
fn assert_keeps(object: &Value, stored: &Stored<Lock>, next: &Lock, write: Write) {
    let written = write(stored, next).expect("what was decided can be written");
    assert_rest_is_kept(&written, object, KNOWN);
    assert!(next.token >= stored.value.token, "the token goes back");
    let again = read(written.clone()).expect("what was written can be read");
    // Larger tokens cannot be written, and no API server has them.
    if next.token.get() < MAX_BASE + LEASES_PER_GRANT {
        assert_says(&again.value, next, stored);
    }
}

/// Incidents that this version cannot read count towards the list's limit, too, and texts may be
/// truncated.
fn assert_says(again: &Lock, next: &Lock, stored: &Stored<Lock>) {
    let plain = |lock: &Lock| Lock {
        incidents: Vec::new(),
        transitions: 0,
        ..lock.clone()
    };
    assert_eq!(plain(again), plain(next));
    if next.incidents.len() > stored.value.incidents.len() {
        let (told, meant) = (
            again.incidents.last().unwrap(),
            next.incidents.last().unwrap(),
        );
        assert_eq!(
            (told.kind, &told.owner, told.token),
            (meant.kind, &meant.owner, meant.token)
        );
    }
    assert!(next.incidents == stored.value.incidents || again.incidents.len() <= INCIDENTS_MAX);
}

fn claim() -> Claim {
    Claim {
        grant: "g-fuzz".into(),
        claimant: Claimant {
            owner: "fuzz".into(),
            pod: PodRef {
                name: "pod".into(),
                uid: "uid".into(),
                node: None,
            },
            session: "pod-1".into(),
            session_ttl: SessionTtl::clamped(15),
        },
        kept: false,
        metadata: BTreeMap::new(),
        at: WallTime(0),
        preferred: true,
    }
}

fn ending() -> Ending {
    Ending {
        at: WallTime(0),
        kind: IncidentKind::Expired,
        actor: "fuzz".into(),
        reason: "it is dead".into(),
    }
}

/// Planted fault: drops the status fields that this version does not know.
fn forgetful(current: &Stored<Lock>, next: &Lock) -> Result<Value, StoreError> {
    write(current, next).map(|written| forgetting(written, KNOWN))
}

//! An arbitrary session object is read, renewed, revoked and written again. An error names what is
//! invalid, a revocation is final, and unknown fields survive.

use leasehold::k8s::convert::session::{read, write};
use leasehold::protocol::session::{RenewalFailures, Revocation, RevokeReason, Session};
use leasehold::protocol::time::WallTime;
use leasehold::store::{StoreError, Stored};
use serde_json::Value;

use super::{
    Outcome, Target, as_read, assert_rest_is_kept, bounded, forgetting, no_seeds, object_in,
    unreadable,
};

/// The fields of a status that this version writes.
const KNOWN: &[&str] = &["renewals", "renewedAt", "renewalFailures", "revoked"];

pub(crate) const TARGET: Target = Target {
    name: "session",
    run: |input| target(input, write),
    broken: |input| target(input, forgetful),
    seeds: no_seeds,
    words: &[
        "metadata",
        "name",
        "resourceVersion",
        "managedFields",
        "spec",
        "pod",
        "podUid",
        "node",
        "ttlSeconds",
        "agentVersion",
        "status",
        "renewals",
        "renewedAt",
        "renewalFailures",
        "count",
        "lastReason",
        "lastAt",
        "revoked",
        "at",
        "by",
        "reason",
        "Expired",
        "PodEnded",
        "fieldOfTomorrow",
    ],
    tries: 6_000,
};

type Write = fn(&Stored<Session>, &Session) -> Result<Value, StoreError>;

fn target(input: &[u8], write: Write) -> Outcome {
    let object = match object_in(input) {
        Ok(object) => object,
        Err(refused) => return refused,
    };
    let stored = match read(object.clone()) {
        Ok(stored) => stored,
        Err(error) => return unreadable(error),
    };
    let session = &stored.value;
    assert!((3..=3_600).contains(&session.ttl.as_secs()), "{session:?}");
    assert_unchanged(&object, &stored, write);
    let failures = RenewalFailures {
        count: session.failures.count.saturating_add(1),
        last_reason: Some("timeout".into()),
        last_at: Some(WallTime(0)),
    };
    let renewed = session.renewed(WallTime(1), failures);
    let revoked = session.revoked(Revocation {
        at: WallTime(0),
        by: "fuzz".into(),
        reason: RevokeReason::Expired,
    });
    assert_eq!(
        renewed.is_err(),
        session.revoked.is_some(),
        "one of the two wins"
    );
    assert_eq!(
        revoked.is_none(),
        session.revoked.is_some(),
        "a revocation is final"
    );
    for next in renewed.ok().into_iter().chain(revoked) {
        assert_keeps(&object, &stored, &next, write);
    }
    let end = session
        .revoked
        .as_ref()
        .map(|revocation| std::mem::discriminant(&revocation.reason));
    Outcome::Taken(format!(
        "{end:?}, renewed: {}, failed: {}, of a node: {}",
        session.renewed_at.is_some(),
        session.failures.count > 0,
        session.pod.node.is_some()
    ))
}

/// Asserts that an unchanged session is written as it was read.
fn assert_unchanged(object: &Value, stored: &Stored<Session>, write: Write) {
    let written = write(stored, &stored.value).expect("what was read can be written");
    let mut expected = as_read(object, stored);
    expected["status"]["renewals"] = bounded(stored.value.renewals);
    assert_eq!(written, expected);
}

/// Asserts that a step keeps what it does not change, and that the result reads back.
fn assert_keeps(object: &Value, stored: &Stored<Session>, next: &Session, write: Write) {
    let written = write(stored, next).expect("what was decided can be written");
    assert_rest_is_kept(&written, object, KNOWN);
    let mut again = read(written).expect("what was written can be read").value;
    // No number in an object is larger.
    again.renewals = next.renewals;
    again.failures.count = next.failures.count;
    assert_eq!(again, *next);
}

/// Planted fault: drops the status fields that this version does not know.
fn forgetful(current: &Stored<Session>, next: &Session) -> Result<Value, StoreError> {
    write(current, next).map(|written| forgetting(written, KNOWN))
}

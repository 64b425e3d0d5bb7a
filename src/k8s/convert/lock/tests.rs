//! Tests what survives a write, what does not, and what is rejected.

use super::*;
use crate::protocol::incident::Ending;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::{Claim, Decision};
use crate::protocol::time::{SessionTtl, WallTime};
use crate::protocol::token::{Mint, Revision, Seen};
use proptest::prelude::*;
use serde_json::json;

const MINT: Mint = Mint {
    seen: Seen::from_list(Revision(0)),
    floor: 0,
};
const EPOCH: &str = "1970-01-01T00:00:00.000000Z";

fn object(status: Value) -> Value {
    let mut object = json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock", "new": 1,
        "metadata": {"name": "r", "uid": "1", "resourceVersion": "7", "labels": {"x": "y"}},
        "spec": {"resource": "r", "retainSeconds": 60, "new": 2},
    });
    if !status.is_null() {
        object["status"] = status;
    }
    object
}

/// A holder, a waiter or an incident's owner, with a field that this version does not know.
fn entry(who: &str) -> Value {
    json!({"ownerId": who, "pod": who, "podUid": who, "session": who, "sessionTtlSeconds": 15,
        "new": who})
}

fn waiter(who: &str) -> Value {
    let mut waiter = entry(who);
    waiter["leaseId"] = json!(format!("g-{who}"));
    waiter["queuedAt"] = json!("2026-01-01T00:00:00.123456789Z");
    waiter
}

fn held(waiters: &[&str]) -> Value {
    let mut holder = entry("a");
    holder["node"] = json!("n");
    holder["metadata"] = json!({"k": "v"});
    let waiters: Vec<_> = waiters.iter().map(|who| waiter(who)).collect();
    let mut status = json!({
        "holder": holder, "token": 7000, "transitions": 3, "new": 3,
        "lease": {"id": "g-a", "acquiredAt": "2026-01-01T00:00:00.123456789Z", "kept": true,
            "new": 4},
    });
    if !waiters.is_empty() {
        status["waiters"] = json!(waiters);
    }
    status
}

fn incident_json(kind: &str, token: u64) -> Value {
    json!({"at": EPOCH, "kind": kind, "token": token, "ownerId": "o", "pod": "p", "actor": "x",
        "reason": "y", "new": token})
}

fn claim(who: &str) -> Claim {
    Claim {
        grant: format!("g-{who}").into(),
        claimant: Claimant {
            owner: who.into(),
            pod: PodRef {
                name: who.into(),
                uid: who.into(),
                node: None,
            },
            session: who.into(),
            session_ttl: SessionTtl::clamped(15),
        },
        kept: false,
        metadata: std::collections::BTreeMap::default(),
        at: WallTime(0),
        preferred: false,
    }
}

fn ending() -> Ending {
    Ending {
        at: WallTime(0),
        kind: IncidentKind::Expired,
        actor: "op".into(),
        reason: "z".repeat(3000).as_str().into(),
    }
}

fn holder(stored: &Stored<Lock>) -> GrantKey {
    stored.value.grant.as_ref().unwrap().key()
}

#[test]
fn a_lock_without_a_status_was_never_held() {
    let stored = read(object(Value::Null)).unwrap();
    let expected = Lock {
        settings: Settings {
            retain: Some(Duration::from_secs(60)),
            ..Settings::default()
        },
        ..Lock::unheld(Resource::parse("r").unwrap())
    };
    assert_eq!(stored.value, expected);
    assert_eq!(stored.version, Revision(7));
}

#[test]
fn unreadable_lock_is_free_only_without_any_grant_field() {
    let remains = |status: Value| read_free_lock(&object(status));
    let free = remains(json!({"token": 7, "transitions": 2, "incidents": []})).unwrap();
    assert_eq!(
        (free.token, free.version),
        (Token::from_raw(7), Revision(7))
    );
    assert_eq!(remains(Value::Null).unwrap().token, Token::NONE);
    let freed = remains(json!({"token": 7, "waiters": []}));
    assert_eq!(freed.unwrap().token, Token::from_raw(7), "nobody waits");
    for status in [
        json!({"token": -1}),
        json!({"transitions": 1}),
        json!({"token": 7, "lease": {"id": "g"}}),
        json!({"token": 7, "holder": null}),
        json!({"token": 7, "waiters": [waiter("a")]}),
        json!({"token": 7, "holders": []}),
        json!("free"),
    ] {
        assert_eq!(remains(status.clone()), None, "{status}");
    }
}

#[test]
fn long_held_condition_is_set_once_and_ends_with_the_grant() {
    let mut marked = held(&["b"]);
    marked["conditions"] = json!([{"type": "Other", "status": "True", "new": 1}]);
    let stored = read(object(marked)).unwrap();
    assert_eq!(stored.value.long_held, None);
    let next = stored.value.marked_long_held(Some(WallTime(0))).unwrap();
    assert_eq!(next.marked_long_held(Some(WallTime(1))), None);
    let written = write(&stored, &next).unwrap();
    let conditions = written["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions[0]["new"], 1, "kept as read");
    assert_eq!(conditions[1]["type"], "LongHeld");
    assert_eq!(conditions[1]["lastTransitionTime"], EPOCH);
    assert_eq!(
        written["status"]["holder"],
        object(held(&["b"]))["status"]["holder"]
    );

    let stored = read(written).unwrap();
    assert_eq!(stored.value.long_held, Some(WallTime(0)));
    let released = stored
        .value
        .release(stored.version, &MINT, &holder(&stored), WallTime(1));
    let written = write(&stored, &released.unwrap()).unwrap();
    let conditions = written["status"]["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0]["type"], "Other");
}

#[test]
fn valid_spec_settings_are_read_and_invalid_ones_ignored() {
    let mut lock = object(Value::Null);
    let request = json!({"leaseId": "g.0", "mode": "Force", "reason": "why", "actor": "me"});
    lock["spec"]["longHeldSeconds"] = json!(5);
    lock["spec"]["releaseRequest"] = request;
    let settings = read(lock.clone()).unwrap().value.settings;
    assert_eq!(settings.long_held, Some(Duration::from_secs(5)));
    let request = settings.release_request.unwrap();
    assert_eq!(request.mode, ReleaseMode::Force);
    assert!(request.names(&"g".into()));

    lock["spec"]["releaseRequest"]["mode"] = json!("Beg");
    lock["spec"]["retainSeconds"] = json!(-1);
    assert_eq!(
        read(lock).unwrap().value.settings,
        Settings {
            long_held: Some(Duration::from_secs(5)),
            ..Settings::default()
        }
    );
}

#[test]
fn a_lock_that_is_being_deleted_is_read_as_such() {
    let mut lock = object(held(&[]));
    assert!(!read(lock.clone()).unwrap().value.settings.is_being_deleted);
    lock["metadata"]["deletionTimestamp"] = json!("2026-11-22T10:00:00Z");
    assert!(read(lock).unwrap().value.settings.is_being_deleted);
}

#[test]
fn a_first_grant_is_written_with_every_field() {
    let stored = read(object(Value::Null)).unwrap();
    let Decision::Granted(next) = stored.value.acquire(stored.version, &MINT, &claim("b")) else {
        panic!("the lock is free");
    };
    let mut expected = object(Value::Null);
    expected["status"] = json!({
        "holder": {"ownerId": "b", "pod": "b", "podUid": "b", "session": "b",
            "sessionTtlSeconds": 15},
        "lease": {"id": "g-b", "acquiredAt": EPOCH, "kept": false},
        "token": 7000, "transitions": 1, "waiters": [],
    });
    assert_eq!(write(&stored, &next).unwrap(), expected);
}

#[test]
fn unchanged_lock_is_written_as_it_was_read() {
    let status = held(&["b", "c"]);
    let stored = read(object(status.clone())).unwrap();
    assert_eq!(write(&stored, &stored.value).unwrap(), object(status));
}

#[test]
fn a_larger_token_keeps_the_rest_of_the_grant_as_it_was_read() {
    let stored = read(object(held(&["b"]))).unwrap();
    let next = stored
        .value
        .rebase(Revision(9), &MINT, &holder(&stored))
        .unwrap()
        .unwrap();
    let mut expected = object(held(&["b"]));
    expected["status"]["token"] = json!(9000);
    assert_eq!(write(&stored, &next).unwrap(), expected);
}

#[test]
fn a_change_inside_a_grant_keeps_its_unknown_fields() {
    let stored = read(object(held(&[]))).unwrap();
    let mut next = stored.value.clone();
    let grant = next.grant.as_mut().unwrap();
    grant.kept = false;
    grant.metadata.clear();
    grant.holder.pod.node = None;
    let written = write(&stored, &next).unwrap();
    assert_eq!(written["status"]["holder"], entry("a"));
    assert_eq!(written["status"]["lease"]["new"], 4);
    assert_eq!(written["status"]["lease"]["kept"], false);
}

#[test]
fn new_holder_inherits_no_fields_and_waiters_keep_theirs() {
    let stored = read(object(held(&["b", "c"]))).unwrap();
    let next = stored
        .value
        .release(Revision(9), &MINT, &holder(&stored), WallTime(0))
        .unwrap();
    let written = write(&stored, &next).unwrap();
    let status = &written["status"];
    assert_eq!(
        status["holder"],
        json!({"ownerId": "b", "pod": "b", "podUid": "b", "session": "b", "sessionTtlSeconds": 15})
    );
    assert_eq!(
        status["lease"],
        json!({"id": "g-b", "acquiredAt": EPOCH, "kept": false})
    );
    assert_eq!(status["waiters"], json!([waiter("c")]));
    assert_eq!(
        (&status["new"], &status["transitions"]),
        (&json!(3), &json!(4))
    );
    assert_eq!(
        (&written["new"], &written["spec"]["new"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(written["metadata"]["labels"]["x"], "y");
}

#[test]
fn freed_lock_keeps_its_token_only() {
    let stored = read(object(held(&[]))).unwrap();
    let next = stored
        .value
        .release(Revision(9), &MINT, &holder(&stored), WallTime(0))
        .unwrap();
    let status = write(&stored, &next).unwrap()["status"].clone();
    assert_eq!(status, json!({"token": 7000, "transitions": 3, "new": 3}));
}

#[test]
fn lock_handed_to_its_last_waiter_keeps_an_empty_list() {
    let stored = read(object(held(&["b"]))).unwrap();
    let next = stored
        .value
        .release(Revision(9), &MINT, &holder(&stored), WallTime(0))
        .unwrap();
    let handed_over = write(&stored, &next).unwrap();
    assert_eq!(handed_over["status"]["lease"]["id"], "g-b");
    assert_eq!(handed_over["status"]["waiters"], json!([]));
}

#[test]
fn new_waiter_is_appended_to_the_queue() {
    let stored = read(object(held(&["b"]))).unwrap();
    let decision = stored
        .value
        .acquire_or_queue(stored.version, &MINT, &claim("c"));
    let Decision::Queued(joining) = decision else {
        panic!("{decision:?}")
    };
    let next = stored.value.joined_by(*joining.clone()).unwrap();
    let waiters = write(&stored, &next).unwrap()["status"]["waiters"].clone();
    assert_eq!(waiters[0], waiter("b"));
    assert_eq!(waiters[1]["leaseId"], "g-c");
    assert_eq!(waiters[1]["queuedAt"], EPOCH);

    let patch = patch_to_join(&stored, &joining).unwrap();
    let tested = json!({"op": "test", "path": "/metadata/uid", "value": "1"});
    let added = json!({"op": "add", "path": "/status/waiters/-", "value": waiters[1]});
    assert_eq!(patch, json!([tested, added]));
}

#[test]
fn preferred_flag_is_written_only_if_set_and_reads_back() {
    let mut held = object(held(&["b"]));
    held["spec"]["resource"] = json!("election:r");
    let stored = read(held).unwrap();
    let preferred = Claim {
        preferred: true,
        ..claim("c")
    };
    let decision = stored
        .value
        .acquire_or_queue(stored.version, &MINT, &preferred);
    let Decision::Queued(joining) = decision else {
        panic!("{decision:?}")
    };
    let next = stored.value.joined_by(*joining).unwrap();
    let written = write(&stored, &next).unwrap();
    let waiters = &written["status"]["waiters"];
    assert_eq!(
        (&waiters[0]["leaseId"], &waiters[0]["preferred"]),
        (&json!("g-c"), &json!(true))
    );
    assert_eq!(waiters[1], waiter("b"), "unchanged, without it");
    assert_eq!(read(written).unwrap().value, next);
}

/// Returns the incidents after a take-over from an expired holder, whose waiters expired, too.
fn incidents_after_a_take_over(stored: &Stored<Lock>) -> Vec<Value> {
    let lock = &stored.value;
    let next = lock.take_over(Revision(9), &MINT, |_| true, &ending(), None);
    let written = write(stored, &next.unwrap()).unwrap();
    written["status"]["incidents"].as_array().unwrap().clone()
}

#[test]
fn incidents_of_unknown_kinds_survive() {
    let mut status = held(&[]);
    status["incidents"] = json!([incident_json("Expired", 1), incident_json("Stolen", 2)]);
    let stored = read(object(status)).unwrap();
    assert_eq!(stored.value.incidents.len(), 1);
    let incidents = incidents_after_a_take_over(&stored);
    assert_eq!(
        incidents[..2],
        [incident_json("Expired", 1), incident_json("Stolen", 2)]
    );
    assert_eq!(
        (&incidents[2]["kind"], &incidents[2]["token"]),
        (&json!("Expired"), &json!(7000))
    );
    assert_eq!(incidents[2]["reason"].as_str().unwrap().len(), REASON_MAX);
}

#[test]
fn only_the_last_eight_incidents_are_kept_known_or_not() {
    let mut status = held(&[]);
    let kinds = ["Stolen", "Expired"].into_iter().cycle();
    status["incidents"] = kinds
        .zip(1..=8)
        .map(|(kind, token)| incident_json(kind, token))
        .collect();
    let incidents = incidents_after_a_take_over(&read(object(status)).unwrap());
    let tokens: Vec<_> = incidents
        .iter()
        .map(|incident| incident["token"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, [2, 3, 4, 5, 6, 7, 8, 7000]);
}

#[test]
fn inconsistent_status_is_unreadable_and_names_the_field() {
    let without = |field: &str| {
        let mut status = held(&["b"]);
        status.as_object_mut().unwrap().remove(field);
        status
    };
    let with = |field: &str, value: Value| {
        let mut status = held(&["b"]);
        status[field] = value;
        status
    };
    for (status, words) in [
        (without("lease"), "status.lease is missing"),
        (without("holder"), "status.holder is missing"),
        (without("token"), "status.token is missing"),
        (with("token", json!(-1)), "status.token is negative"),
        (with("token", json!(1.5)), "status.token"),
        (with("token", json!("7")), "status.token"),
        (
            with("holder", json!({"ownerId": "a"})),
            "status.holder: missing field",
        ),
        (
            with("waiters", json!([{}])),
            "status.waiters: missing field",
        ),
        (
            json!({"token": 1, "waiters": [waiter("b")]}),
            "status.waiters has entries",
        ),
        (json!("held"), "lock.status"),
    ] {
        let Err(StoreError::Unreadable(what)) = read(object(status.clone())) else {
            panic!("{status} was accepted");
        };
        assert!(what.contains(words) && what.contains("\"r\""), "{what}");
    }
}

#[test]
fn absurd_ttls_are_brought_to_the_bounds_and_not_written_back() {
    let mut status = held(&[]);
    status["holder"]["sessionTtlSeconds"] = json!(100_000);
    let stored = read(object(status)).unwrap();
    let ttl = stored.value.grant.as_ref().unwrap().holder.session_ttl;
    assert_eq!(ttl.get(), SessionTtl::MAX);
    let next = stored
        .value
        .rebase(Revision(9), &MINT, &holder(&stored))
        .unwrap()
        .unwrap();
    let written = write(&stored, &next).unwrap();
    assert_eq!(written["status"]["holder"]["sessionTtlSeconds"], 100_000);
}

#[test]
fn update_carries_the_version_and_uid_it_was_decided_on() {
    let mut stored = read(object(held(&[]))).unwrap();
    stored.version = Revision(1_760_342_223_637_167_018);
    let written = write(&stored, &stored.value).unwrap();
    assert_eq!(
        written["metadata"]["resourceVersion"],
        "1760342223637167018"
    );
    assert_eq!(written["metadata"]["uid"], "1");
}

proptest! {
    /// After any change of a lock, reading back what was written gives the intended lock.
    #[test]
    fn written_lock_reads_back_unchanged(steps in prop::collection::vec((0_u8..4, 0_u8..4), 1..20)) {
        let mut stored = read(object(Value::Null)).unwrap();
        for (number, (step, who)) in steps.into_iter().enumerate() {
            let lock = &stored.value;
            let who = claim(&format!("{who}-{number}"));
            let next = match (step, &lock.grant) {
                (0 | 1, _) => match lock.acquire_or_queue(stored.version, &MINT, &who) {
                    Decision::Granted(next) => Some(*next),
                    Decision::Queued(waiter) => lock.joined_by(*waiter),
                    _ => None,
                },
                (2, Some(held)) => lock.release(stored.version, &MINT, &held.key(), WallTime(0)),
                (_, Some(_)) => {
                    let ending = Ending { reason: "r".into(), ..ending() };
                    lock.take_over(stored.version, &MINT, |_| true, &ending, Some(&who))
                }
                _ => None,
            };
            let Some(next) = next else { continue };
            let mut written = write(&stored, &next).unwrap();
            let version = stored.version.0 + 1;
            written["metadata"]["resourceVersion"] = json!(version.to_string());
            stored = read(written).unwrap();
            prop_assert_eq!(&stored.value, &next);
        }
    }
}

//! The definitions' own rules are in force for administrators too. Each rule is evaluated in
//! `tests/policies`.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leasehold::crd::{DistributedLock, LockSession};
use serde_json::{Value, json};

use crate::harness::{Cluster, TakeOver};

const TIME: &str = "2026-01-01T00:00:00.123456Z";

/// A lock and a session in a namespace of a test's own.
struct Objects {
    locks: Api<DistributedLock>,
    sessions: Api<LockSession>,
}

impl Objects {
    async fn new() -> Self {
        // Without an operator: it would free, mark and revoke these fake objects.
        let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
        let namespace = cluster.namespace("rules").await.expect("a namespace");
        let lock = json!({"metadata": {"name": "l"}, "spec": {"resource": "l"}});
        let session = json!({"metadata": {"name": "s"},
            "spec": {"pod": "p", "podUid": "u", "ttlSeconds": 15, "agentVersion": "0"}});
        let locks = Api::namespaced(namespace.client.clone(), &namespace.name);
        let sessions = Api::namespaced(namespace.client.clone(), &namespace.name);
        let lock = serde_json::from_value(lock).expect("a lock");
        let session = serde_json::from_value(session).expect("a session");
        locks
            .create(&PostParams::default(), &lock)
            .await
            .expect("a new lock");
        sessions
            .create(&PostParams::default(), &session)
            .await
            .expect("a new session");
        Self { locks, sessions }
    }

    async fn lock(&self, status: Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({ "status": status }));
        answer(
            self.locks
                .patch_status("l", &PatchParams::default(), &patch)
                .await,
        )
    }

    async fn session(&self, status: Value) -> Result<(), String> {
        let patch = Patch::Merge(json!({ "status": status }));
        answer(
            self.sessions
                .patch_status("s", &PatchParams::default(), &patch)
                .await,
        )
    }
}

fn answer<T>(answer: kube::Result<T>) -> Result<(), String> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 422 => Err(status.message),
        Err(error) => panic!("neither done nor invalid: {error}"),
    }
}

#[track_caller]
fn refused(answer: Result<(), String>, words: &str) {
    let message = answer.expect_err("it breaks an invariant");
    assert!(
        message.contains(words),
        "refused with other words: {message}"
    );
}

fn holder(session: &str) -> Value {
    json!({"ownerId": "o", "pod": "p", "podUid": "u", "session": session, "sessionTtlSeconds": 15})
}

fn held() -> Value {
    json!({"holder": holder("s"), "lease": {"id": "g1", "acquiredAt": TIME}, "token": 5000})
}

#[tokio::test]
async fn token_neither_decreases_nor_vanishes() {
    let objects = Objects::new().await;
    objects.lock(held()).await.expect("a first grant");
    let words = "status.token can never be removed or decreased";
    refused(objects.lock(json!({"token": 4999})).await, words);
    refused(
        objects
            .lock(json!({"holder": null, "lease": null, "token": 4999}))
            .await,
        words,
    );
    let mut lock = objects.locks.get("l").await.expect("the lock");
    lock.status = None;
    let put = objects
        .locks
        .replace_status("l", &PostParams::default(), &lock)
        .await;
    refused(answer(put), words);
    objects
        .lock(json!({"token": 6000}))
        .await
        .expect("a larger token for the same grant");
    objects
        .lock(json!({"holder": null, "lease": null}))
        .await
        .expect("a release");
    refused(objects.lock(json!({"token": 5999})).await, words);
}

#[tokio::test]
async fn resource_of_a_lock_is_immutable_and_bounded() {
    let objects = Objects::new().await;
    let patch = Patch::Merge(json!({"spec": {"resource": "m"}}));
    let patched = objects
        .locks
        .patch("l", &PatchParams::default(), &patch)
        .await;
    refused(answer(patched), "spec.resource is immutable");
    for (resource, words) in [
        (String::new(), "should be at least 1 chars long"),
        ("a\nb".to_owned(), "must be printable text"),
        ("é".repeat(300), "more than 512 bytes"),
    ] {
        let name = "m-00000000000000000000";
        let lock = json!({"metadata": {"name": name}, "spec": {"resource": resource}});
        let lock = serde_json::from_value(lock).expect("a lock");
        let created = objects.locks.create(&PostParams::default(), &lock).await;
        refused(answer(created), words);
    }
    let mut long = held();
    long["holder"]["metadata"] = json!({"k".repeat(64): "v"});
    refused(objects.lock(long).await, "more than 63 characters");
}

#[tokio::test]
async fn end_of_a_session_is_final() {
    let objects = Objects::new().await;
    objects
        .session(json!({"renewals": 2}))
        .await
        .expect("a renewal");
    refused(
        objects.session(json!({"renewals": 1})).await,
        "status.renewals can never be",
    );
    let patch = Patch::Merge(json!({"spec": {"ttlSeconds": 30}}));
    let patched = objects
        .sessions
        .patch("s", &PatchParams::default(), &patch)
        .await;
    refused(answer(patched), "the spec of a session is immutable");
    let revoked = json!({"revoked": {"at": TIME, "by": "b", "reason": "Expired"}});
    objects.session(revoked).await.expect("a revocation");
    let words = "status.revoked is final";
    refused(objects.session(json!({"revoked": null})).await, words);
    refused(
        objects
            .session(json!({"revoked": {"reason": "Ended"}}))
            .await,
        words,
    );
    refused(
        objects.session(json!({"renewals": 3})).await,
        "can never be renewed",
    );
    let mut session = objects.sessions.get("s").await.expect("the session");
    session.status = None;
    let put = objects
        .sessions
        .replace_status("s", &PostParams::default(), &session)
        .await;
    refused(answer(put), words);
}

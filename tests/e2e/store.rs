//! The stores of the `k8s` adapter against a real API server, with a pod's own rights.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

use std::cell::Cell;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use leasehold::crd::{DistributedLock, LockSession};
use leasehold::k8s::names::object_name;
use leasehold::k8s::{K8sLockStore, K8sSessionStore};
use leasehold::protocol::ids::{Resource, SessionId};
use leasehold::protocol::lock::{Claim, Decision, Ending, IncidentKind, Lock};
use leasehold::protocol::session::{
    Claimant, PodRef, RenewalFailures, Revocation, RevokeReason, Session,
};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Seen};
use leasehold::store::{LockStore, SessionStore, StoreError, Stored};
use serde_json::{Value, json};

use crate::harness::{Cluster, Namespace, Pod, TakeOver, eventually};

const AT: WallTime = WallTime(1_767_225_600_123_456);

fn resource() -> Resource {
    Resource::parse("tenant_123:billing").expect("a resource")
}

fn session(pod: &Pod) -> Session {
    Session {
        id: format!("{}-0", pod.name).into(),
        pod: PodRef {
            name: pod.name.as_str().into(),
            uid: pod.uid.as_str().into(),
            node: None,
        },
        ttl: SessionTtl::clamped(15),
        agent_version: "0".into(),
        renewals: 0,
        renewed_at: None,
        failures: RenewalFailures::default(),
        revoked: None,
    }
}

fn claim(pod: &Pod) -> Claim {
    let session = session(pod);
    Claim {
        grant: format!("g-{}", pod.name).into(),
        claimant: Claimant {
            owner: pod.name.as_str().into(),
            pod: session.pod,
            session: session.id,
            session_ttl: session.ttl,
        },
        metadata: [("key".to_owned(), "value".to_owned())].into(),
        at: AT,
    }
}

fn take(lock: &Stored<Lock>, mint: &Mint, claim: &Claim) -> Lock {
    match lock.value.acquire_or_queue(lock.version, mint, claim) {
        Decision::Granted(next) | Decision::Queued(next) => *next,
        other => panic!("{other:?}"),
    }
}

async fn locks_of(pod: &Pod) -> K8sLockStore {
    K8sLockStore::new(pod.client().await.expect("a client"), &pod.namespace)
}

async fn mint(locks: &K8sLockStore) -> Mint {
    let page = locks.list(1, None).await.expect("a listing");
    Mint {
        seen: Seen::from_list(page.revision),
        floor: 0,
    }
}

#[tokio::test]
async fn a_lock_goes_from_hand_to_hand_and_reads_back_as_it_was_written() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let b = namespace.pod("b").await.expect("a pod");
    let (locks_a, locks_b) = (locks_of(&a).await, locks_of(&b).await);
    assert!(locks_a.get(&resource()).await.expect("a read").is_none());
    let mint = mint(&locks_a).await;
    let made = locks_a.create(&resource()).await.expect("a new lock");
    assert_eq!(made.value, Lock::unheld(resource()));
    assert_eq!(
        locks_b.create(&resource()).await.err(),
        Some(StoreError::Conflict)
    );

    let next = take(&made, &mint, &claim(&a));
    let held = locks_a.update(&made, &next).await.expect("a grant");
    assert_eq!(held.value, next);
    // One version lets one write through.
    let late = take(&made, &mint, &claim(&b));
    assert_eq!(
        locks_b.update(&made, &late).await.err(),
        Some(StoreError::Conflict)
    );
    let queued = locks_b
        .update(&held, &take(&held, &mint, &claim(&b)))
        .await
        .expect("a place");
    let handed = queued
        .value
        .release(queued.version, &mint, &"g-a".into(), AT)
        .expect("held");
    let handed = locks_a.update(&queued, &handed).await.expect("a hand-over");
    assert!(handed.value.is_held_by(&"g-b".into()) && handed.value.token > next.token);
    let theft = handed
        .value
        .release(handed.version, &mint, &"g-b".into(), AT)
        .expect("held");
    assert!(matches!(
        locks_a.update(&handed, &theft).await,
        Err(StoreError::DeniedByPolicy(words)) if words.contains("only the operator ends")
    ));
    let read = locks_a
        .get(&resource())
        .await
        .expect("a read")
        .expect("a lock");
    assert_eq!((&read.value, read.version), (&handed.value, handed.version));
}

#[tokio::test]
async fn a_session_is_owned_by_its_pod_and_ends_once() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let sessions = K8sSessionStore::new(a.client().await.expect("a client"), &a.namespace);
    let made = sessions.create(&session(&a)).await.expect("a new session");
    assert_eq!(made.value, session(&a));
    let objects = Api::<LockSession>::namespaced(namespace.client.clone(), &namespace.name);
    let object = objects.get("a-0").await.expect("the object");
    let owners = object.metadata.owner_references.expect("an owner");
    assert_eq!((owners.len(), &owners[0].uid), (1, &a.uid));
    assert_eq!(owners[0].block_owner_deletion, Some(false));

    let renewed = made
        .value
        .renewed(AT, RenewalFailures::default())
        .expect("it lives");
    let written = sessions.update(&made, &renewed).await.expect("a renewal");
    assert_eq!(written.value, renewed);
    assert_eq!(
        sessions.update(&made, &renewed).await.err(),
        Some(StoreError::Conflict)
    );
    let end = Revocation {
        at: AT,
        by: "a".into(),
        reason: RevokeReason::Ended,
    };
    let ended = written.value.revoked(end).expect("it lives");
    let ended = sessions.update(&written, &ended).await.expect("an end");
    let again = Session {
        renewals: 9,
        ..ended.value.clone()
    };
    assert!(matches!(
        sessions.update(&ended, &again).await,
        Err(StoreError::Invalid(words)) if words.contains("can never be renewed")
    ));
}

#[tokio::test]
async fn refusals_say_what_is_known() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let client = a.client().await.expect("a client");
    let elsewhere = K8sLockStore::new(client.clone(), "default");
    assert!(matches!(
        elsewhere.create(&resource()).await,
        Err(StoreError::Denied(words)) if words.contains("cannot create resource")
    ));
    let nowhere = K8sLockStore::new(namespace.client.clone(), "no-such-namespace");
    assert!(matches!(
        nowhere.create(&resource()).await,
        Err(StoreError::NotInstalled(words)) if words.contains("no-such-namespace")
    ));

    squat(&namespace).await;
    let locks = K8sLockStore::new(client, &a.namespace);
    assert_eq!(
        locks.create(&resource()).await.err(),
        Some(StoreError::Conflict)
    );
    assert!(matches!(
        locks.get(&resource()).await,
        Err(StoreError::Collision { found, .. }) if found == "another"
    ));
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_named() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let count = json!({"count/distributedlocks.leasehold.dev": "0"});
    let quotas = Api::<ResourceQuota>::namespaced(namespace.client.clone(), &namespace.name);
    let quota = json!({"metadata": {"name": "few-locks"}, "spec": {"hard": count}});
    let quota = serde_json::from_value(quota).expect("a quota");
    quotas
        .create(&PostParams::default(), &quota)
        .await
        .expect("a new quota");
    // No controller counts here.
    let status = Patch::Merge(json!({"status": {"hard": count, "used": count}}));
    let params = PatchParams::default();
    quotas
        .patch_status("few-locks", &params, &status)
        .await
        .expect("a count");
    let (locks, tries) = (locks_of(&a).await, Cell::new(0));
    // The API server learns of the quota a moment later.
    let refusal = eventually(
        "the quota to be enforced",
        Duration::from_secs(30),
        async || {
            let resource = Resource::parse(&format!("r-{}", tries.replace(tries.get() + 1)));
            locks.create(&resource.expect("a resource")).await.err()
        },
    );
    let refusal = refusal.await.expect("a refusal");
    assert!(
        matches!(&refusal, StoreError::QuotaExceeded(words) if words.contains("few-locks")),
        "{refusal:?}"
    );
}

/// Puts another resource under the name of ours, as an administrator may.
async fn squat(namespace: &Namespace) {
    let lock = json!({"metadata": {"name": object_name(&resource())},
        "spec": {"resource": "another"}});
    let lock = serde_json::from_value(lock).expect("a lock");
    let locks = Api::<DistributedLock>::namespaced(namespace.client.clone(), &namespace.name);
    locks
        .create(&PostParams::default(), &lock)
        .await
        .expect("a new lock");
}

/// Lets every object of the definition carry fields that it does not name, as if a newer version
/// had brought them.
fn open_up(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("properties").is_some() {
                map.insert(
                    "x-kubernetes-preserve-unknown-fields".to_owned(),
                    json!(true),
                );
            }
            map.values_mut().for_each(open_up);
        }
        Value::Array(list) => list.iter_mut().for_each(open_up),
        _ => {}
    }
}

async fn open_up_the_definition(admin: &Client) {
    let definitions = Api::<CustomResourceDefinition>::all(admin.clone());
    let name = "distributedlocks.leasehold.dev";
    let definition = definitions.get(name).await.expect("a definition");
    let mut definition = serde_json::to_value(definition).expect("JSON");
    open_up(&mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]);
    let definition = serde_json::from_value(definition).expect("a definition");
    definitions
        .replace(name, &PostParams::default(), &definition)
        .await
        .expect("a new definition");
}

/// The status as it is stored, with all its fields.
async fn status_of(namespace: &Namespace) -> Value {
    let path = format!(
        "/apis/leasehold.dev/v1alpha1/namespaces/{}/distributedlocks/{}",
        namespace.name,
        object_name(&resource())
    );
    let request = http::Request::get(path)
        .body(Vec::new())
        .expect("a request");
    let object: Value = namespace.client.request(request).await.expect("an object");
    object["status"].clone()
}

/// Writes a field called `new` into every part of the status.
async fn add_new_fields(namespace: &Namespace) {
    let mut waiters = status_of(namespace).await["waiters"].clone();
    waiters[0]["new"] = json!(1);
    let incident = json!({"at": "2026-01-01T00:00:00Z", "kind": "Newer", "token": 1,
        "ownerId": "o", "pod": "p", "actor": "x", "reason": "y", "new": 1});
    let patch = json!({"status": {"new": 1, "holder": {"new": 1}, "lease": {"new": 1},
        "waiters": waiters, "incidents": [incident]}});
    let locks = Api::<DistributedLock>::namespaced(namespace.client.clone(), &namespace.name);
    let name = object_name(&resource());
    // A definition that was changed takes effect a moment later.
    let limit = Duration::from_secs(30);
    let kept = eventually("unknown fields to be kept", limit, async || {
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        locks
            .patch_status(&name, &params, &patch)
            .await
            .expect("a write");
        (status_of(namespace).await["new"] == 1).then_some(())
    });
    kept.await.expect("unknown fields");
}

/// On a cluster of its own: a definition that changes ends the watches of others.
#[tokio::test]
async fn fields_of_a_newer_version_survive_every_write() {
    let cluster = Cluster::fresh(TakeOver::Peer).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    open_up_the_definition(&namespace.client).await;
    let a = namespace.pod("a").await.expect("a pod");
    let b = namespace.pod("b").await.expect("a pod");
    let (locks_a, locks_b) = (locks_of(&a).await, locks_of(&b).await);
    let mint = mint(&locks_a).await;
    let made = locks_a.create(&resource()).await.expect("a new lock");
    let held = locks_a
        .update(&made, &take(&made, &mint, &claim(&a)))
        .await
        .expect("a grant");
    locks_b
        .update(&held, &take(&held, &mint, &claim(&b)))
        .await
        .expect("a place");
    add_new_fields(&namespace).await;

    let lock = locks_a
        .get(&resource())
        .await
        .expect("a read")
        .expect("a lock");
    let mut kept = lock.value.clone();
    kept.grant.as_mut().expect("held").kept = true;
    let lock = locks_a
        .update(&lock, &kept)
        .await
        .expect("a change of one's own grant");
    let status = status_of(&namespace).await;
    for part in [
        &status,
        &status["holder"],
        &status["lease"],
        &status["waiters"][0],
    ] {
        assert_eq!(part["new"], 1, "{status}");
    }

    let (kind, actor) = (IncidentKind::Expired, "b".into());
    let ending = Ending {
        at: AT,
        kind,
        actor,
        reason: "r".into(),
    };
    let is_dead = |session: &SessionId| session.as_str() == "a-0";
    let taken = lock
        .value
        .take_over(lock.version, &mint, is_dead, &ending, None);
    locks_b
        .update(&lock, &taken.expect("it is dead"))
        .await
        .expect("a take-over");
    let status = status_of(&namespace).await;
    assert_eq!(
        (&status["new"], &status["incidents"][0]["new"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(status["incidents"][0]["kind"], "Newer");
    assert_eq!(status["incidents"][1]["kind"], "Expired");
    // What a newer version wrote about the old holder is not the new one's.
    assert_eq!(
        (&status["holder"]["new"], &status["lease"]["new"]),
        (&Value::Null, &Value::Null)
    );
}

//! What only the `k8s` adapter has to keep, on a real API server and with a pod's own rights. The rest is in the
//! contract. No operator runs here: it would write to unused locks and sessions, between a read and the write that
//! depends on it.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

use std::cell::Cell;
use std::time::Duration;

use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use leasehold::crd::{DistributedLock, LockSession};
use leasehold::k8s::names::object_name;
use leasehold::k8s::{K8sLockStore, K8sSessionStore};
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::{Claim, Decision};
use leasehold::protocol::session::{Claimant, PodRef, RenewalFailures, Session};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Seen};
use leasehold::store::{LockStore, SessionStore, StoreError};
use serde_json::json;

use crate::harness::{Cluster, Namespace, Pod, TakeOver, eventually};

const AT: WallTime = WallTime(1_767_225_600_123_456);

fn resource() -> Resource {
    Resource::parse("tenant_123:billing").expect("a resource")
}

fn session(pod: &Pod) -> Session {
    Session {
        id: format!("{}-0123456789ab", pod.name).into(),
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
        kept: false,
        metadata: [("key".to_owned(), "value".to_owned())].into(),
        at: AT,
        preferred: false,
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
async fn a_pod_cannot_end_the_grant_of_another() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let b = namespace.pod("b").await.expect("a pod");
    let (locks_a, locks_b) = (locks_of(&a).await, locks_of(&b).await);
    let mint = mint(&locks_b).await;
    let made = locks_b.create(&resource()).await.expect("a new lock");
    let next = match made.value.acquire(made.version, &mint, &claim(&b)) {
        Decision::Granted(next) => *next,
        other => panic!("{other:?}"),
    };
    let held = locks_b.update(&made, &next).await.expect("a grant");
    let theft = held
        .value
        .release(
            held.version,
            &mint,
            &held.value.grant.as_ref().expect("held").key(),
            AT,
        )
        .expect("held");
    assert!(matches!(
        locks_a.update(&held, &theft).await,
        Err(StoreError::DeniedByPolicy(words)) if words.contains("only the operator ends")
    ));
}

#[tokio::test]
async fn a_session_is_owned_by_its_pod() {
    let cluster = Cluster::shared(TakeOver::Strict).await.expect("a cluster");
    let namespace = cluster.namespace("store").await.expect("a namespace");
    let a = namespace.pod("a").await.expect("a pod");
    let sessions = K8sSessionStore::new(a.client().await.expect("a client"), &a.namespace);
    let made = sessions.create(&session(&a)).await.expect("a new session");
    assert_eq!(made.value, session(&a));
    let objects = Api::<LockSession>::namespaced(namespace.client.clone(), &namespace.name);
    let object = objects.get("a-0123456789ab").await.expect("the object");
    let owners = object.metadata.owner_references.expect("an owner");
    assert_eq!((owners.len(), &owners[0].uid), (1, &a.uid));
    assert_eq!(owners[0].block_owner_deletion, Some(false));
}

#[tokio::test]
async fn refusals_name_their_cause() {
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
async fn exhausted_quota_is_named() {
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

//! Objects created, deleted and read: what depends on tokens, roles and the namespace.

use kube::api::{Api, DeleteParams, Patch, PatchParams};
use leasehold::crd::lock::DistributedLock;
use leasehold::crd::session::LockSession;
use serde_json::json;

use super::fixture::{Expect, bare_lock, grant, outcome, revocation, session_of};
use super::world::World;
use crate::harness::{PATIENCE, TakeOver, eventually};

/// A session of the pod `a`, as its agent would name it.
const SESSION: &str = "a-0123456789ab";

#[tokio::test]
async fn tokens_without_a_pod_or_of_another_namespace_are_refused() {
    let world = World::new(TakeOver::Peer).await;
    let a = world.pod("a").await;
    let lock = world.lock(None).await;
    let unbound = world.unbound().await;
    let words = "this ServiceAccount token is not bound to a pod";
    world
        .create(&unbound, &bare_lock("unbound"))
        .await
        .refused(words);
    world
        .create(&unbound, &session_of(&a, SESSION))
        .await
        .refused(words);
    world
        .write(&unbound, &lock, |status| grant(status, &a))
        .await
        .refused(words);
    world
        .create(&a.client, &session_of(&a, SESSION))
        .await
        .allowed();
    world
        .write_session(&unbound, SESSION, |status| {
            status.revoked = Some(revocation("Expired", "a"));
        })
        .await
        .refused(words);

    let elsewhere = World::new(TakeOver::Peer).await;
    let stranger = elsewhere.pod("a").await;
    let words = "cannot";
    world
        .create(&stranger.client, &bare_lock("foreign"))
        .await
        .refused(words);
    world
        .write(&stranger.client, &lock, |status| grant(status, &stranger))
        .await
        .refused(words);
    let locks = world.api::<DistributedLock>(&stranger.client);
    outcome(locks.get(&lock).await).refused("cannot get resource");
}

#[tokio::test]
async fn sidecar_role_allows_neither_delete_nor_spec_changes() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.lock(None).await;
    world
        .create(&a.client, &session_of(&a, SESSION))
        .await
        .allowed();
    let locks = world.api::<DistributedLock>(&a.client);
    let sessions = world.api::<LockSession>(&a.client);
    let patch = Patch::Merge(json!({"spec": {"retainSeconds": 60}}));
    let delete = DeleteParams::default();
    outcome(locks.patch(&lock, &PatchParams::default(), &patch).await).refused("cannot patch");
    outcome(locks.delete(&lock, &delete).await).refused("cannot delete");
    outcome(sessions.delete(SESSION, &delete).await).refused("cannot delete");
    let pods: Api<k8s_openapi::api::core::v1::Pod> = world.api(&a.client);
    outcome(pods.get("a").await).refused("cannot get");
}

#[tokio::test]
async fn a_held_lock_is_deleted_only_with_its_namespace() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.held(&a, &[]).await;
    let free_lock = world.lock(None).await;
    let locks = world.api::<DistributedLock>(&world.admin);
    let delete = DeleteParams::default();
    let words = "the lock is held by a in pod a; stop that app or delete its pod";
    outcome(locks.delete(&lock, &delete).await).refused(words);
    outcome(locks.delete(&free_lock, &delete).await).allowed();
    outcome(
        locks
            .delete_collection(&delete, &kube::api::ListParams::default())
            .await,
    )
    .refused("the lock is held");
    world.terminate().await;
    // The policies learn of the namespace's end a moment later.
    let deleted = eventually("the lock to go", PATIENCE, async || {
        locks.delete(&lock, &delete).await.ok()
    });
    deleted.await.expect("a deletion");
}

//! Objects made, deleted and asked about: bare ones, one's own ones, and with the right to.

use kube::api::{Api, DeleteParams, Patch, PatchParams};
use leasehold::crd::lock::{DistributedLock, ReleaseMode, ReleaseRequest};
use leasehold::crd::session::LockSession;
use serde_json::json;

use super::stage::{Expect, bare_lock, grant, outcome, revocation, session_of};
use super::world::World;
use crate::harness::{PATIENCE, TakeOver, eventually};

#[tokio::test]
async fn a_pod_starts_and_ends_its_own_session() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let words = "spec must name pod b";
    world
        .create(&b.client, &session_of(&a, "a-0"))
        .await
        .refused(words);
    let mut dressed = session_of(&a, "a-0");
    dressed.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
    world
        .create(&a.client, &dressed)
        .await
        .refused("without labels, annotations and finalizers");
    for block in [true, false] {
        let mut session = session_of(&a, "a-0");
        let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": a.name, "uid": a.uid,
            "blockOwnerDeletion": block}]);
        session.metadata.owner_references = serde_json::from_value(owner).expect("an owner");
        let answer = world.create(&a.client, &session).await;
        if block {
            answer.refused("its only owner is its own pod");
        } else {
            answer.allowed();
        }
    }
    world
        .write_session(&a.client, "a-0", |status| {
            status.revoked = Some(revocation("Ended", "a"));
        })
        .await
        .allowed();
}

#[tokio::test]
async fn a_sidecar_makes_bare_locks_under_names_that_agents_look_for() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let words = "spec.resource and nothing else";
    let more: [fn(&mut DistributedLock); 3] = [
        |lock| lock.spec.retain_seconds = Some(60),
        |lock| lock.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into()),
        |lock| lock.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]),
    ];
    for change in more {
        let mut lock = bare_lock("dressed");
        change(&mut lock);
        world.create(&a.client, &lock).await.refused(words);
    }
    let mut forced = bare_lock("forced");
    forced.spec.release_request = Some(ReleaseRequest {
        lease_id: "g-a".to_owned(),
        mode: ReleaseMode::Force,
        reason: "maintenance".to_owned(),
        actor: "a".to_owned(),
    });
    let words = "it takes the verb `force-release`";
    world.create(&a.client, &forced).await.refused(words);
    let mut misnamed = bare_lock("billing");
    misnamed.spec.resource = "payroll".to_owned();
    world
        .create(&a.client, &misnamed)
        .await
        .refused("no agent would look for");
    world.create(&a.client, &bare_lock("bare")).await.allowed();
    let mut dressed = bare_lock("dressed");
    dressed.spec.retain_seconds = Some(60);
    world.create(&world.admin, &dressed).await.allowed();
}

#[tokio::test]
async fn a_token_without_a_pod_and_a_pod_from_elsewhere_get_nowhere() {
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
        .create(&unbound, &session_of(&a, "a-0"))
        .await
        .refused(words);
    world
        .write(&unbound, &lock, |status| grant(status, &a))
        .await
        .refused(words);
    world
        .create(&a.client, &session_of(&a, "a-0"))
        .await
        .allowed();
    world
        .write_session(&unbound, "a-0", |status| {
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
async fn a_sidecars_role_has_no_delete_and_no_spec() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.lock(None).await;
    world
        .create(&a.client, &session_of(&a, "a-0"))
        .await
        .allowed();
    let locks = world.api::<DistributedLock>(&a.client);
    let sessions = world.api::<LockSession>(&a.client);
    let patch = Patch::Merge(json!({"spec": {"retainSeconds": 60}}));
    let delete = DeleteParams::default();
    outcome(locks.patch(&lock, &PatchParams::default(), &patch).await).refused("cannot patch");
    outcome(locks.delete(&lock, &delete).await).refused("cannot delete");
    outcome(sessions.delete("a-0", &delete).await).refused("cannot delete");
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

//! Requests to end a foreign grant: who may write them and how, and the command that a refused deletion prints.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use leasehold::crd::lock::{DistributedLock, ReleaseMode, ReleaseRequest};
use serde_json::{Value, json};

use super::fixture::{Expect, Outcome, outcome};
use super::world::{User, World};
use crate::harness::{PATIENCE, TakeOver, eventually};

const NO_RIGHT: &str = "this requires the verb `force-release`";

fn request(actor: &str) -> ReleaseRequest {
    ReleaseRequest {
        lease_id: "g-a".to_owned(),
        mode: ReleaseMode::Force,
        reason: "maintenance".to_owned(),
        actor: actor.to_owned(),
    }
}

async fn patch(world: &World, by: &User, lock: &str, spec: Value) -> Outcome {
    let locks = world.api::<DistributedLock>(&by.client);
    let patch = Patch::Merge(json!({"spec": spec}));
    outcome(locks.patch(lock, &PatchParams::default(), &patch).await)
}

/// The role that we ship for users is enough, and does not let them write the status.
#[tokio::test]
async fn a_lock_admin_ends_a_grant_on_the_record_and_not_by_hand() {
    // An operator would carry out the request.
    let world = World::without_operator(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.held(&a, &[]).await;
    let admin = world.person_in_role("keeper", "leasehold-lock-admin").await;
    let own = request(&admin.name);
    world.ask(&admin.client, &lock, Some(own)).await.allowed();
    let by_hand = world.write(&admin.client, &lock, |status| status.waiters.clear());
    by_hand.await.refused("cannot update");
    let locks = world.api::<DistributedLock>(&admin.client);
    let delete = DeleteParams::default();
    outcome(locks.delete(&lock, &delete).await).refused("cannot delete");
}

#[tokio::test]
async fn pod_cannot_write_release_requests() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let lock = world.held(&a, &[]).await;
    let name = format!("system:serviceaccount:{}:app", world.name());
    // With its own rights, by the name of its account and of its pod; for another's lock and its own.
    for pod in [&a, &b] {
        for actor in [&name, &pod.name] {
            let asked = world.ask(&pod.client, &lock, Some(request(actor)));
            asked.await.refused("cannot patch");
        }
    }
    // If pods were given the right to change locks.
    world.let_pods_edit_locks().await;
    let may = eventually("the right to edit locks", PATIENCE, async || {
        let answer = patch(&world, &b, &lock, json!({"retainSeconds": 60})).await;
        answer.ok()
    });
    may.await.expect("a right");
    for pod in [&a, &b] {
        let asked = world.ask(&pod.client, &lock, Some(request(&name)));
        asked.await.refused(NO_RIGHT);
    }
    // Not by the way of a status either: there the spec stays as it is.
    let smuggle = async |pod: &User| {
        let locks = world.api::<DistributedLock>(&pod.client);
        let mut read = locks.get(&lock).await.expect("a lock");
        read.spec.release_request = Some(request(&name));
        outcome(
            locks
                .replace_status(&lock, &PostParams::default(), &read)
                .await,
        )
    };
    smuggle(&a).await.allowed();
    let locks = world.api::<DistributedLock>(&world.admin);
    let read = locks.get(&lock).await.expect("a lock");
    assert!(read.spec.release_request.is_none());
}

/// The command in backquotes of a refused deletion.
async fn command_in_refusal(world: &World, lock: &str) -> String {
    let locks = world.api::<DistributedLock>(&world.admin);
    let deleted = locks.delete(lock, &DeleteParams::default()).await;
    let refusal = outcome(deleted).expect_err("a refusal");
    let mut parts = refusal.split('`');
    let command = parts.nth(1).expect("a command").to_owned();
    assert_eq!(parts.count(), 1, "more than one command: {refusal}");
    command
}

#[tokio::test]
async fn command_in_a_refused_deletion_requests_the_grants_end() {
    // An operator would carry out the request.
    let world = World::without_operator(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let lock = world.held(&a, &[&b]).await;
    let command = command_in_refusal(&world, &lock).await;
    world.shell(&command).await;
    let locks = world.api::<DistributedLock>(&world.admin);
    let asked = locks.get(&lock).await.expect("a lock");
    let expected = ReleaseRequest {
        reason: "WHY".to_owned(),
        ..request("admin")
    };
    assert_eq!(asked.spec.release_request, Some(expected));
    // The operator's part; the waiter has the lock.
    assert!(asked.status.expect("a status").holder.is_some());
    let general = [
        (&*lock, "NAME"),
        (world.name(), "NAMESPACE"),
        ("g-a", "ID"),
        ("admin", "YOU"),
    ];
    let general = general.into_iter().fold(command, |command, (ours, any)| {
        command.replacen(ours, any, 1)
    });
    let page = include_str!("../../../docs/force-release.md");
    assert!(
        page.contains(&general),
        "docs/force-release.md has another command: {general}"
    );
}

//! Leases that their apps ended around a restart.

use super::*;

/// What a release is answered, without any wait.
fn release_without_wait(pod: &Pod, lease: &LeaseView) -> Option<Result<Released, LeaseError>> {
    futures::FutureExt::now_or_never(pod.agent.release(&lease.lease))
}

const PENDING: Option<Result<Released, LeaseError>> = Some(Ok(Released::Pending));
const DONE: Option<Result<Released, LeaseError>> = Some(Ok(Released::Done));

#[tokio::test(start_paused = true)]
async fn resumed_lease_is_released_at_once() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &lease).await.unwrap();
    let before = pod.now();
    assert_eq!(release(&pod, &lease).await, DONE);
    assert!(pod.is_free("r") && pod.now() == before);
}

/// A sidecar that was started again and killed once more, and the lease that its app ended in between, before
/// the store answered.
async fn ended_and_killed(node: &mut Node) -> LeaseView {
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    node.store.fail_all(StoreError::Unavailable("away".into()));
    let pod = node.start();
    assert_eq!(release_without_wait(&pod, &lease), PENDING);
    node.kill(&pod);
    node.store.heal();
    lease
}

#[tokio::test(start_paused = true)]
async fn pending_release_is_sent_after_another_restart() {
    let mut node = Node::in_paused_time();
    let lease = ended_and_killed(&mut node).await;
    let pod = node.start();
    assert_eq!(release_without_wait(&pod, &lease), PENDING);
    // That is answered once it is known which leases continue.
    pod.lease("s").await;
    eventually("it is released", || {
        release_without_wait(&pod, &lease) == DONE
    })
    .await;
    assert!(pod.is_free("r"));
    assert_eq!(node.store.lock("r").unwrap().transitions, 1);
}

/// Nothing is left to be released.
#[tokio::test(start_paused = true)]
async fn pending_release_ends_with_its_session() {
    let mut node = Node::in_paused_time();
    let lease = ended_and_killed(&mut node).await;
    let session = node.store.session_of("r").unwrap();
    node.store.revoke_session(&session);
    let pod = node.start();
    pod.lease("s").await;
    assert_eq!(release_without_wait(&pod, &lease), DONE);
}

/// The unreadable lock may be any: one whose release never arrived is still held.
#[tokio::test(start_paused = true)]
async fn release_is_resent_for_an_unreadable_lock() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (landed, lease) = (pod.lease("landed").await, pod.lease("r").await);
    assert_eq!(release(&pod, &landed).await, DONE);
    node.store
        .fail(Call::UpdateLock, StoreError::Unavailable("away".into()));
    assert_eq!(release(&pod, &lease).await, PENDING);
    node.kill(&pod);
    node.store.heal();
    node.store.make_unreadable_in_lists("r");
    let pod = node.start();
    pod.lease("s").await;
    eventually("the lock is free", || pod.is_free("r")).await;
    eventually("both are released", || {
        [&landed, &lease].map(|lease| release_without_wait(&pod, lease)) == [DONE, DONE]
    })
    .await;
}

async fn release(pod: &Pod, lease: &LeaseView) -> Option<Result<Released, LeaseError>> {
    Some(pod.agent.release(&lease.lease).await)
}

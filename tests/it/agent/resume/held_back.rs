//! Leases that their apps ended after or during a restart, whose grants are held back for a while; and another
//! restart in that time.

use super::*;

/// What a release is answered, without any wait.
fn asked(pod: &Pod, lease: &LeaseView) -> Option<Result<Released, LeaseError>> {
    futures::FutureExt::now_or_never(pod.agent.release(&lease.lease))
}

const PENDING: Option<Result<Released, LeaseError>> = Some(Ok(Released::Pending));
const DONE: Option<Result<Released, LeaseError>> = Some(Ok(Released::Done));

/// When the lease was ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    /// After it was known which leases continue.
    After,
    /// Before it was known which leases continue.
    During,
}

/// A sidecar that was started again and killed once more, and the lease that its app ended in
/// between.
async fn held_back_and_killed(node: &mut Node, ended: Ended) -> LeaseView {
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    if ended == Ended::During {
        node.store.fail_all(StoreError::Unavailable("away".into()));
    }
    let pod = node.start();
    if ended == Ended::After {
        renewed(&pod, &lease).await.unwrap();
    }
    assert_eq!(asked(&pod, &lease), PENDING);
    node.kill(&pod);
    node.store.heal();
    lease
}

#[tokio::test(start_paused = true)]
async fn held_back_release_stays_pending_over_another_restart() {
    for ended in [Ended::After, Ended::During] {
        let mut node = Node::in_paused_time();
        let lease = held_back_and_killed(&mut node, ended).await;
        let pod = node.start();
        assert_eq!(asked(&pod, &lease), PENDING, "{ended:?}: at once");
        // That is answered once it is known which leases continue.
        pod.lease("s").await;
        while !pod.is_free("r") {
            assert_eq!(asked(&pod, &lease), PENDING, "{ended:?}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        eventually("it is released", || asked(&pod, &lease) == DONE).await;
        assert_eq!(node.store.lock("r").unwrap().transitions, 1);
    }
}

/// Nothing is left to be released.
#[tokio::test(start_paused = true)]
async fn held_back_lease_ends_with_its_session() {
    for ended in [Ended::After, Ended::During] {
        let mut node = Node::in_paused_time();
        let lease = held_back_and_killed(&mut node, ended).await;
        let session = node.store.session_of("r").unwrap();
        node.store.revoke_session(&session);
        let pod = node.start();
        pod.lease("s").await;
        assert_eq!(asked(&pod, &lease), DONE, "{ended:?}");
    }
}

/// The same, and the process before knew it.
#[tokio::test(start_paused = true)]
async fn held_back_lease_ends_with_its_sessions_recorded_end() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (lease, other) = (pod.lease("r").await, pod.lease("s").await);
    let session = node.store.session_of("r").unwrap();
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &lease).await.unwrap();
    assert_eq!(asked(&pod, &lease), PENDING);
    node.store.revoke_session(&session);
    eventually("the session is lost", || {
        pod.agent.lease(&other.lease, pod.now()) == lost(Loss::SessionRevoked)
    })
    .await;
    let pod = node.kill_and_start(&pod);
    assert_eq!(asked(&pod, &lease), DONE);
}

/// The earlier process may have sent its release, and it lands late: that is not a loss.
#[tokio::test(start_paused = true)]
async fn held_back_lease_is_released_by_a_late_write() {
    let mut node = Node::in_paused_time();
    let lease = held_back_and_killed(&mut node, Ended::After).await;
    let pod = node.start();
    pod.lease("s").await;
    node.store.edit_lock("r", |lock| lock.grant = None);
    eventually("it is released", || asked(&pod, &lease) == DONE).await;
}

/// The unreadable lock may be any: one whose release never arrived is still held.
#[tokio::test(start_paused = true)]
async fn release_is_resent_for_an_unreadable_lock() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (landed, lease) = (pod.lease("landed").await, pod.lease("r").await);
    assert_eq!(asked_and_answered(&pod, &landed).await, DONE);
    node.store
        .fail(Call::UpdateLock, StoreError::Unavailable("away".into()));
    assert_eq!(asked_and_answered(&pod, &lease).await, PENDING);
    node.kill(&pod);
    node.store.heal();
    node.store.make_unreadable_in_lists("r");
    let pod = node.start();
    pod.lease("s").await;
    eventually("the lock is free", || pod.is_free("r")).await;
    eventually("both are released", || {
        [&landed, &lease].map(|lease| asked(&pod, lease)) == [DONE, DONE]
    })
    .await;
}

async fn asked_and_answered(pod: &Pod, lease: &LeaseView) -> Option<Result<Released, LeaseError>> {
    Some(pod.agent.release(&lease.lease).await)
}

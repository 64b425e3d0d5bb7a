//! A grant that had served several leases when its sidecar crashed, or was kept for an app that may return.

use super::*;

const KEEP: Duration = Duration::from_secs(60);

async fn take(pod: &Pod, request: AcquireRequest) -> LeaseView {
    match pod.agent.acquire(request, pod.now()).await {
        Ok(Acquired::Granted { lease, .. }) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// The second lease of a grant, and the first, which is over.
async fn second_of_a_grant(pod: &Pod) -> (LeaseView, LeaseView) {
    let first = take(pod, kept("r", KEEP)).await;
    pod.agent.release(&first.lease).await.unwrap();
    let second = take(pod, kept("r", KEEP)).await;
    assert_eq!(second.token.get(), first.token.get() + 1);
    (second, first)
}

#[tokio::test(start_paused = true)]
async fn last_lease_of_a_grant_resumes_and_earlier_ones_stay_ended() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (second, first) = second_of_a_grant(&pod).await;
    let pod = node.kill_and_start(&pod);
    let again = renewed(&pod, &second).await.unwrap();
    assert_eq!((&again.lease, again.token), (&second.lease, second.token));
    let over = pod.agent.renew(&first.lease, None, pod.now());
    assert_eq!(over, Err(LeaseError::Released));
    assert_eq!(pod.agent.release(&first.lease).await, Ok(Released::Done));
}

/// The agent crashed after the end of the last lease: only that one is still being released.
#[tokio::test(start_paused = true)]
async fn earlier_lease_of_a_released_grant_counts_as_released() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (second, first) = second_of_a_grant(&pod).await;
    // Another pod wants it, so it is given back; the release never arrives.
    let other = Pod::in_paused_time("other", &node.store);
    let waiting = wait(&other, "r");
    eventually("it waits", || {
        node.store
            .lock("r")
            .is_some_and(|lock| lock.waiters.len() == 1)
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.store
        .fail(Call::UpdateLock, StoreError::Unavailable("away".into()));
    let released = pod.agent.release(&second.lease).await;
    assert_eq!(released, Ok(Released::Pending));
    node.kill(&pod);
    let pod = node.start();
    eventually("the session is taken up", || {
        let sessions = node.store.sessions();
        sessions.iter().any(|session| session.renewals > 0)
    })
    .await;
    assert_eq!(
        pod.agent.release(&second.lease).await,
        Ok(Released::Pending)
    );
    assert_eq!(pod.agent.release(&first.lease).await, Ok(Released::Done));
    node.store.heal();
    let next = waiting.await.unwrap();
    assert!(next.token > second.token);
}

/// No lease on file continues with it.
#[tokio::test(start_paused = true)]
async fn kept_idle_grant_is_released_after_its_promise() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let (second, _) = second_of_a_grant(&pod).await;
    let told_until = pod.now().after(second.valid_for);
    pod.agent.release(&second.lease).await.unwrap();
    assert!(!pod.is_free("r"), "it is kept");
    let pod = node.kill_and_start(&pod);
    // Its app received that before, and it stays true.
    assert_eq!(pod.agent.release(&second.lease).await, Ok(Released::Done));
    assert_stays_held_until(&node, &pod, "r", told_until).await;
    assert_eq!(
        pod.agent.renew(&second.lease, None, pod.now()),
        Err(LeaseError::Released)
    );
}

#[tokio::test(start_paused = true)]
async fn resumed_leases_grant_is_not_kept() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = take(&pod, kept("r", KEEP)).await;
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &lease).await.unwrap();
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
    assert!(pod.is_free("r"));
}

/// The session is not ended under a promise, unless the apps have ended.
#[tokio::test(start_paused = true)]
async fn stopping_agent_waits_for_promises_from_before_its_restart() {
    for on_term in [OnTerm::Wait, OnTerm::AppsEnded] {
        let mut node = Node::in_paused_time();
        let pod = node.start();
        let lease = pod.lease("known").await;
        let mut held = hold(&pod, "r").await;
        let Some(leasehold::agent::LeaseEvent::Acquired(first)) = held.next().await else {
            panic!("not acquired");
        };
        let told_until = pod.now().after(first.valid_for);
        let session = node.store.session_of("r").unwrap();
        node.kill(&pod);
        drop(held);
        let pod = node.start();
        renewed(&pod, &lease).await.unwrap();
        assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
        let agent = pod.agent.clone();
        let stopping = tokio::spawn(async move { agent.shut_down(on_term).await });
        while on_term == OnTerm::Wait && pod.now() < told_until {
            let is_over = node.store.session(&session).unwrap().revoked.is_some();
            assert!(!is_over && !pod.is_free("r"));
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        stopping.await.unwrap();
        assert!(pod.is_free("r"));
        assert_eq!(pod.now() >= told_until, on_term == OnTerm::Wait);
    }
}

/// Waiters from before the restart are not forgotten: a caller of this pod is queued behind them.
#[tokio::test(start_paused = true)]
async fn earlier_waiters_of_other_pods_are_served_first() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let other = Pod::in_paused_time("other", &node.store);
    let waiting = wait(&other, "r");
    let queue = |count: usize| {
        let lock = node.store.lock("r");
        lock.is_some_and(|lock| lock.waiters.len() == count)
    };
    eventually("it waits", || queue(1)).await;
    node.kill(&pod);
    let pod = node.start();
    renewed(&pod, &lease).await.unwrap();
    let own = wait(&pod, "r");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(
        node.store.lock("r").unwrap().waiters.len() == 2,
        "it stands in the queue as soon as it is the others' turn"
    );
    tokio::time::sleep(Duration::from_secs(15)).await;
    pod.agent.release(&lease.lease).await.unwrap();
    let theirs = waiting.await.unwrap();
    assert!(!own.is_finished());
    other.agent.release(&theirs.lease).await.unwrap();
    assert!(own.await.unwrap().token > theirs.token);
}

/// Waits for a lock.
fn wait(pod: &Pod, resource: &str) -> tokio::task::JoinHandle<LeaseView> {
    let request = AcquireRequest {
        wait: Duration::from_mins(2),
        ..kept(resource, Duration::ZERO)
    };
    let (agent, arrived) = (pod.agent.clone(), pod.now());
    tokio::spawn(async move {
        match agent.acquire(request, arrived).await {
            Ok(Acquired::Granted { lease, .. }) => lease,
            other => panic!("not granted: {other:?}"),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn grant_of_another_pod_in_the_own_session_is_not_resumed() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    node.kill(&pod);
    node.store.edit_lock("r", |lock| {
        let grant = lock.grant.as_mut().unwrap();
        grant.holder.pod = pod_ref("m");
    });
    let pod = node.start();
    let calls = node.store.record_calls();
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::GrantGone));
    tokio::time::sleep(Duration::from_mins(1)).await;
    let calls = calls.lock().unwrap().clone();
    assert!(!calls.contains(&Call::UpdateLock), "{calls:?}");
}

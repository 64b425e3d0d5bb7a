//! An agent that was stopped by `release-now` under a running app, and its successor.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_stopped_agents_leases_are_resumed_by_the_next_one() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let ended = pod.lease("ended").await;
    // Past the first renewal of the session.
    tokio::time::sleep(Duration::from_secs(6)).await;
    pod.agent.renew(&lease.lease, None, pod.now()).unwrap();
    pod.agent.release(&ended.lease).await.unwrap();
    let session = node.store.session_of("r");
    pod.agent.shut_down(OnTerm::ReleaseNow).await;
    let pod = node.kill_and_start(&pod);
    let again = renewed(&pod, &lease).await.expect("the lease must go on");
    assert_eq!((again.lease, again.token), (lease.lease, lease.token));
    assert_eq!(node.store.session_of("r"), session);
    let known = pod.agent.renew(&ended.lease, None, pod.now());
    assert_eq!(known, Err(LeaseError::Released));
}

/// The next agent can renew the session only if its version is on file.
#[tokio::test(start_paused = true)]
async fn stop_waits_for_a_renewal_in_flight() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    let gate = node.store.hold(Call::RenewSession, Half::Answer);
    eventually("a renewal is in flight", || gate.arrived() > 0).await;
    let agent = pod.agent.clone();
    let stopping = tokio::spawn(async move { agent.shut_down(OnTerm::ReleaseNow).await });
    eventually("the agent is stopping", || pod.agent.is_draining()).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!stopping.is_finished());
    gate.open();
    stopping.await.unwrap();
    let pod = node.kill_and_start(&pod);
    renewed(&pod, &lease).await.expect("the lease must go on");
}

#[tokio::test(start_paused = true)]
async fn stopped_agent_without_leases_leaves_no_file() {
    let node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease("r").await;
    pod.agent.release(&lease.lease).await.unwrap();
    pod.agent.shut_down(OnTerm::ReleaseNow).await;
    assert!(!node.file().exists());
    assert!(node.store.sessions().iter().all(|s| s.revoked.is_some()));
}

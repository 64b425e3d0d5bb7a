//! Readers of an election in a pod whose sidecar was restarted: no answer says that it leads before that is known
//! again.

use futures::FutureExt as _;
use leasehold::protocol::election::ElectionName;

use super::*;
use crate::memory_store::Half;

const RESOURCE: &str = "election:e";

/// Whether this pod leads by its own answer, and the holder in it.
async fn leads(pod: &Pod) -> (bool, Option<String>) {
    let election = ElectionName::parse("e").unwrap();
    let view = pod.agent.election(&election, pod.now()).await.unwrap();
    let holder = view.holder.map(|holder| holder.pod);
    (view.lead.is_some(), holder)
}

#[tokio::test(start_paused = true)]
async fn lead_is_reported_only_after_it_is_resumed() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease(RESOURCE).await;
    let own = Some("a".to_owned());
    assert_eq!(leads(&pod).await, (true, own.clone()));
    node.kill(&pod);
    let gate = node.store.hold(Call::RenewSession, Half::Request);
    let pod = node.start();
    eventually("the renewal is sent", || gate.arrived() > 0).await;
    assert_eq!(leads(&pod).await, (false, own.clone()));
    gate.open();
    assert_eq!(renewed(&pod, &lease).await.unwrap().token, lease.token);
    assert_eq!(leads(&pod).await, (true, own));
}

/// Its app ended it; only its readers from before may still believe.
#[tokio::test(start_paused = true)]
async fn ended_lead_is_not_resumed_and_expires() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease(RESOURCE).await;
    let told_until = pod.now().after(lease.valid_for);
    assert!(leads(&pod).await.0);
    let releasing = pod.agent.release(&lease.lease).now_or_never();
    assert_eq!(releasing, None, "its readers' time is not over");
    let pod = node.kill_and_start(&pod);
    assert_eq!(renewed(&pod, &lease).await, Err(LeaseError::Released));
    // That is answered once it is known which leases continue.
    pod.lease("other").await;
    assert_eq!(leads(&pod).await, (false, Some("a".to_owned())));
    let pending = Ok(Released::Pending);
    assert_eq!(pod.agent.release(&lease.lease).await, pending);
    assert_stays_held_until(&node, &pod, RESOURCE, told_until).await;
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
}

/// The file that the next process rewrote says so, too.
#[tokio::test(start_paused = true)]
async fn ended_lead_is_kept_from_others_over_another_restart() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let lease = pod.lease(RESOURCE).await;
    let told_until = pod.now().after(lease.valid_for);
    assert!(leads(&pod).await.0);
    let releasing = pod.agent.release(&lease.lease).now_or_never();
    assert_eq!(releasing, None, "its readers' time is not over");
    let pod = node.kill_and_start(&pod);
    pod.lease("other").await;
    let pod = node.kill_and_start(&pod);
    assert_stays_held_until(&node, &pod, RESOURCE, told_until).await;
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
}

#[tokio::test(start_paused = true)]
async fn held_lead_is_not_reported_and_expires() {
    let mut node = Node::in_paused_time();
    let pod = node.start();
    let mut hold = hold(&pod, RESOURCE).await;
    let Some(leasehold::agent::LeaseEvent::Acquired(lease)) = hold.next().await else {
        panic!("not acquired");
    };
    assert!(leads(&pod).await.0);
    let told_until = pod.now().after(lease.valid_for);
    node.kill(&pod);
    drop(hold);
    let gate = node.store.hold(Call::RenewSession, Half::Request);
    let pod = node.start();
    eventually("the renewal is sent", || gate.arrived() > 0).await;
    let own = Some("a".to_owned());
    assert_eq!(leads(&pod).await, (false, own.clone()));
    gate.open();
    assert_eq!(renewed(&pod, &lease).await, lost(Loss::AgentRestarted));
    assert_eq!(leads(&pod).await, (false, own));
    assert_stays_held_until(&node, &pod, RESOURCE, told_until).await;
}

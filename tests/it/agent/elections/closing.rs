//! A lead that its app has ended, while its readers may still believe in it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use leasehold::agent::{
    AcquireError, AcquireRequest, Acquired, EventsError, LeaseError, LeaseEvent, Life, Released,
};
use leasehold::protocol::ids::OwnerId;

use super::super::{Pod, eventually};
use super::{RESOURCE, name};
use crate::memory_store::MemoryStore;

fn two_pods() -> (MemoryStore, Pod, Pod) {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let b = Pod::in_paused_time("b", &store);
    (store, a, b)
}

/// An app's own lease of the election's lock, with a `requestId`.
async fn acquire(pod: &Pod) -> Result<Acquired, AcquireError> {
    acquire_for(pod, Duration::from_mins(10)).await
}

async fn acquire_for(pod: &Pod, ttl: Duration) -> Result<Acquired, AcquireError> {
    let request = AcquireRequest {
        resource: name("e").resource().clone(),
        owner: OwnerId::from("app"),
        life: Life::Ttl(ttl),
        wait: Duration::ZERO,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        preferred: false,
        request_id: Some("once".into()),
    };
    pod.agent.acquire(request, pod.now()).await
}

#[tokio::test(start_paused = true)]
async fn no_call_returns_a_closing_lease() {
    let (_, a, _) = two_pods();
    let (lead, lease) = a.candidacy_with_lease().await;
    let mut events = a.agent.events(&lease, a.now()).unwrap();
    let opening = events.next().await;
    assert!(
        matches!(opening, Some(LeaseEvent::Heartbeat(_))),
        "{opening:?}"
    );
    let mut followed = a.election_events().await;
    assert!(followed.next().await.unwrap().view.lead.is_some());
    let until = a.leads_until().await.unwrap();
    drop(lead);
    assert!(a.now() < until && !a.is_free(RESOURCE), "it is kept");

    let released = Err(LeaseError::Released);
    assert_eq!(a.agent.lease(&lease, a.now()), released);
    assert_eq!(a.agent.renew(&lease, None, a.now()), released);
    let refused = a.agent.events(&lease, a.now()).err();
    assert_eq!(refused, Some(EventsError::Lease(LeaseError::Released)));
    assert_eq!(events.next().await, None);
    assert_eq!(a.leads_until().await, None);
    assert_eq!(followed.next().await.unwrap().view.lead, None);
    assert!(!a.is_free(RESOURCE), "all that was before its time is over");
    assert_eq!(a.agent.release(&lease).await, Ok(Released::Pending));

    eventually("the lock is free", || a.is_free(RESOURCE)).await;
    assert!(a.now() >= until);
    assert_eq!(a.agent.release(&lease).await, Ok(Released::Done));
    assert_eq!(a.agent.lease(&lease, a.now()), released);
}

#[tokio::test(start_paused = true)]
async fn deleted_candidacy_ends_at_once_and_hands_over_in_time() {
    let (store, a, b) = two_pods();
    let (mut lead, lease) = a.candidacy_with_lease().await;
    b.run();
    eventually("b waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let until = a.leads_until().await.unwrap();
    let deleting = tokio::spawn({
        let (agent, lease) = (a.agent.clone(), lease.clone());
        async move { agent.release(&lease).await }
    });
    assert_eq!(lead.next().await, None, "its own stream ends");
    assert!(a.now() < until);
    assert_eq!(a.leads_until().await, None);
    assert_eq!(
        a.agent.lease(&lease, a.now()),
        Err(LeaseError::Released),
        "at once"
    );
    drop(lead);
    assert_eq!(b.leads_until().await, None, "not yet");
    assert_eq!(deleting.await.unwrap(), Ok(Released::Done));
    assert!(a.now() >= until, "the store has it when that was answered");
    b.until_leader().await;
    assert!(b.now() >= until);
}

/// The store is away when the readers' time is over.
#[tokio::test(start_paused = true)]
async fn deleted_candidacy_is_pending_during_an_outage() {
    let (store, a, _) = two_pods();
    let (lead, lease) = a.candidacy_with_lease().await;
    assert!(a.leads_until().await.is_some());
    store.fail_all(leasehold::store::StoreError::Unavailable("away".into()));
    assert_eq!(a.agent.release(&lease).await, Ok(Released::Pending));
    assert_eq!(a.leads_until().await, None);
    store.heal();
    eventually("the lock is free", || a.is_free(RESOURCE)).await;
    drop(lead);
}

#[tokio::test(start_paused = true)]
async fn deleted_lead_of_a_campaign_is_handed_over_at_once() {
    let (store, a, b) = two_pods();
    a.run();
    let lease = a.until_leader().await.lead.unwrap().lease;
    b.run();
    eventually("b waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    assert!(a.leads_until().await.is_some());
    let before = a.now();
    assert_eq!(a.agent.release(&lease).await, Ok(Released::Done));
    assert_eq!(a.now(), before, "nobody is waited for");
}

#[tokio::test(start_paused = true)]
async fn repeated_request_of_a_closing_lease_has_ended() {
    let (_, a, _) = two_pods();
    let Ok(Acquired::Granted { lease, .. }) = acquire(&a).await else {
        panic!("it is free");
    };
    let until = a.leads_until().await.unwrap();
    let asked = a.now();
    assert!(
        until.since(asked) <= Duration::from_millis(1_500),
        "readers of an app's lease are told of a short time"
    );
    let deleting = a.agent.release(&lease.lease);
    let mut deleting = std::pin::pin!(deleting);
    assert_eq!((&mut deleting).now_or_never(), None);
    let mut ended = 0;
    while a.now() < until {
        let again = acquire(&a).await;
        let told = matches!(&again, Err(AcquireError::RequestEnded { why, .. }) if *why == LeaseError::Released);
        assert!(told, "{again:?}");
        ended += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(ended > 5);
    assert_eq!(deleting.await, Ok(Released::Done));
}

#[tokio::test(start_paused = true)]
async fn former_leader_never_names_its_predecessor() {
    let (store, a, b) = two_pods();
    let before = b.leading_candidacy().await;
    a.run();
    eventually("a waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    assert_eq!(&*a.view().await.holder.unwrap().pod, "b");
    let mut events = a.election_events().await;
    assert_eq!(&*events.next().await.unwrap().view.holder.unwrap().pod, "b");
    drop(before);
    a.until_leader().await;
    store.fail_all(leasehold::store::StoreError::Unavailable("away".into()));
    loop {
        let event = events.next().await.unwrap();
        let names_b = |pod: &str| pod == "b";
        let holder = event.view.holder.as_ref();
        assert!(
            !holder.is_some_and(|holder| names_b(&holder.pod)),
            "{event:?}"
        );
        if event.view.lead.is_none() {
            break;
        }
    }
    for _ in 0..30 {
        if let Ok(view) = a.ask().await {
            assert_eq!(view.lead, None);
            let pod = view.holder.map(|holder| holder.pod);
            assert_ne!(pod.as_deref(), Some("b"));
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Its own time and its readers' are over at one moment. In any order of events, its app had ended it.
#[tokio::test(start_paused = true)]
async fn expired_closing_lease_counts_as_released() {
    let store = MemoryStore::default();
    let a = Pod::new("a", &store, |_| {});
    let ttl = Duration::from_secs(1);
    let Ok(Acquired::Granted { lease, .. }) = acquire_for(&a, ttl).await else {
        panic!("it is free");
    };
    assert_eq!(a.lead_now().unwrap().valid_for, ttl);
    let releasing = a.agent.release(&lease.lease).now_or_never();
    assert_eq!(releasing, None, "its readers' time is not over");
    // No timer has seen that yet.
    a.clock.advance(ttl);
    let released = Err(LeaseError::Released);
    assert_eq!(a.agent.lease(&lease.lease, a.now()), released);
    eventually("the lock is free", || a.is_free(RESOURCE)).await;
    assert_eq!(a.agent.release(&lease.lease).await, Ok(Released::Done));
}

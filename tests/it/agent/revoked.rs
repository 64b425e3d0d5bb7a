//! Sessions that are revoked under a live agent: what its apps receive, and when it begins another session.

use std::time::Duration;

use leasehold::agent::{AcquireError, LeaseError};
use leasehold::protocol::incident::{Incident, IncidentKind};
use leasehold::protocol::lease::Loss;
use leasehold::protocol::session::RevokeReason;
use leasehold::protocol::time::WallTime;

use super::{Pod, eventually};
use crate::memory_store::MemoryStore;

const REVOKED: LeaseError = LeaseError::Lost(Loss::SessionRevoked);

/// Revokes the session that holds a lock and frees it, as the operator does in two writes.
fn reclaim(store: &MemoryStore, resource: &str, reason: RevokeReason) {
    let session = store.session_of(resource).unwrap();
    if store.session(&session).unwrap().revoked.is_none() {
        store.revoke_session_as(&session, reason);
    }
    store.edit_lock(resource, |lock| {
        let grant = lock.grant.take().unwrap();
        lock.incidents.push(Incident {
            at: WallTime(0),
            kind: IncidentKind::Expired,
            token: lock.token,
            grant: Some(grant.id),
            owner: grant.holder.owner,
            pod: grant.holder.pod.name,
            actor: "operator-0".into(),
            reason: "session s was revoked by jane (hangs)".into(),
        });
    });
}

/// The watch reports the lock long before the next renewal reveals the state of the session.
#[tokio::test(start_paused = true)]
async fn revoked_session_is_named_as_the_cause_and_replaced() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let (lease, other) = (pod.lease("r").await, pod.lease("other").await);
    let session = store.session_of("r").unwrap();
    let since = pod.now();
    reclaim(&store, "r", RevokeReason::Other("hangs".into()));
    eventually("both are lost", || {
        let told = |lease| pod.agent.lease(lease, pod.now());
        told(&lease.lease) == Err(REVOKED) && told(&other.lease) == Err(REVOKED)
    })
    .await;
    assert!(pod.now().since(since) < Duration::from_secs(1));
    let metrics = pod.agent.metrics().encode();
    let suspected = "leasehold_dual_owners_suspected_total 1";
    assert!(metrics.contains(suspected), "its app could still believe");
    let again = pod.lease("r").await;
    assert!(again.token > lease.token);
    assert_ne!(store.session_of("r").unwrap(), session);
}

#[tokio::test(start_paused = true)]
async fn pod_reported_as_ended_pauses_between_sessions() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let mut pauses = Vec::new();
    for _ in 0..3 {
        let since = pod.now();
        loop {
            match pod.acquire("r").await {
                Ok(_) => break,
                Err(error) => assert!(
                    matches!(error, AcquireError::ReportedEnded { .. }),
                    "{error:?}"
                ),
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        pauses.push(pod.now().since(since).as_secs());
        reclaim(&store, "r", RevokeReason::PodEnded);
        eventually("its loss is known", || {
            pod.agent.metrics().encode().contains("leasehold_leases 0")
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(pauses[0], 0);
    assert!((13..=15).contains(&pauses[1]), "{pauses:?}");
    assert!((28..=30).contains(&pauses[2]), "{pauses:?}");
    assert_eq!(store.sessions().len(), 3);

    // The report was corrected: the next session stays valid.
    tokio::time::sleep(Duration::from_mins(2)).await;
    let lease = pod.lease("r").await;
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert!(pod.agent.lease(&lease.lease, pod.now()).is_ok());
}

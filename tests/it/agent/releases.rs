//! What a release finds in the store: its grant, or nothing, by its own write or by another one.

use std::time::Duration;

use leasehold::agent::{LeaseError, Released};
use leasehold::protocol::ids::{GrantId, LeaseId, SessionId};
use leasehold::protocol::lease::Loss;
use leasehold::protocol::lock::{Grant, Lock};
use leasehold::protocol::token::Token;
use leasehold::store::StoreError;

use super::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

const LOST: Result<Released, LeaseError> = Err(LeaseError::Lost(Loss::GrantGone));

type TakeAway = fn(&MemoryStore);

fn give_to_another(lock: &mut Lock) {
    let mut grant = lock.grant.take().unwrap();
    grant.holder.session = SessionId::from("another's");
    let id = GrantId::from("another");
    lock.grant = Some(Grant { id, ..grant });
    lock.token = Token::from_raw(lock.token.get() + 1_000);
    lock.transitions += 1;
}

/// How often a lease was valid here while the store knew better, and how often one was lost so.
fn alarms(pod: &Pod) -> (bool, bool) {
    let metrics = pod.agent.metrics().encode();
    let suspected = metrics.contains("leasehold_dual_owners_suspected_total 1");
    let lost = metrics.contains("leasehold_leases_lost_total{reason=\"grant_gone\"} 1");
    (suspected, lost)
}

/// Repeats the release until it is no longer pending.
async fn until_answered(pod: &Pod, lease: &LeaseId, expected: Result<Released, LeaseError>) {
    for _ in 0..1_000 {
        match pod.agent.release(lease).await {
            Ok(Released::Pending) => tokio::time::sleep(Duration::from_millis(10)).await,
            answer => return assert_eq!(answer, expected),
        }
    }
    panic!("the release is pending for ever");
}

#[tokio::test]
async fn release_of_a_removed_grant_reports_the_loss_once() {
    let others: [(&str, TakeAway); 4] = [
        ("another's", |store| store.edit_lock("r", give_to_another)),
        ("edited", |store| {
            store.edit_lock("r", |lock| lock.grant = None);
        }),
        ("deleted", |store| store.delete_lock("r")),
        ("made anew", |store| {
            store.delete_lock("r");
            store.make_lock("r");
        }),
    ];
    for (how, take_away) in others {
        let store = MemoryStore::default();
        let pod = Pod::new("a", &store, |_| {});
        let lease = pod.lease("r").await;
        take_away(&store);
        let writes = store.writes();
        assert_eq!(pod.agent.release(&lease.lease).await, LOST, "{how}");
        assert_eq!(alarms(&pod), (true, true), "{how}");
        let calls = store.calls();
        assert_eq!(pod.agent.release(&lease.lease).await, LOST, "{how}, again");
        assert_eq!(alarms(&pod), (true, true), "{how}: it is said once");
        let renewed = pod.agent.renew(&lease.lease, None, pod.now());
        assert_eq!(renewed.unwrap_err(), LOST.unwrap_err(), "{how}");
        assert_eq!(store.calls(), calls, "what is known is not asked again");
        assert_eq!(
            store.writes(),
            writes,
            "{how}: nothing of another's is undone"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn release_with_a_lost_answer_counts_as_done() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    store.lose_answer(Call::UpdateLock);
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));
    assert!(pod.is_free("r"));
    assert_eq!(alarms(&pod), (false, false));
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Done));

    // The same if another pod has the lock before the agent reads it.
    let lease = pod.lease("r").await;
    let grant = store.lock("r").unwrap().grant.unwrap();
    store.lose_answer(Call::UpdateLock);
    let looking = store.hold(Call::GetLock, Half::Request);
    let agent = pod.agent.clone();
    let releasing = tokio::spawn(async move { agent.release(&lease.lease).await });
    eventually("the agent looks", || looking.arrived() == 1).await;
    assert!(pod.is_free("r"), "the release has landed");
    store.edit_lock("r", |lock| {
        lock.grant = Some(grant);
        give_to_another(lock);
    });
    looking.open();
    assert_eq!(releasing.await.unwrap(), Ok(Released::Done));
    assert_eq!(alarms(&pod), (false, false));
}

#[tokio::test(start_paused = true)]
async fn unsent_release_explains_no_removed_grant() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    store.edit_lock("r", give_to_another);
    // The write failed without effect: the next read shows a change by another client.
    let mut tries = 0;
    store.on_call(move |call| {
        tries += usize::from(call == Call::UpdateLock);
        let refused = StoreError::Unavailable("connection refused".into());
        (call == Call::UpdateLock && tries == 1).then_some(refused)
    });
    assert_eq!(pod.agent.release(&lease.lease).await, LOST);
    assert_eq!(alarms(&pod), (true, true));
}

#[tokio::test]
async fn rightful_take_over_before_the_release_raises_no_alarm() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    store.fail_all(StoreError::Unavailable("connection refused".into()));
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    pod.clock.advance(Duration::from_secs(20));
    store.edit_lock("r", give_to_another);
    store.heal();
    until_answered(&pod, &lease.lease, Ok(Released::Done)).await;
    assert_eq!(alarms(&pod), (false, false));
}

#[tokio::test(start_paused = true)]
async fn pending_release_can_turn_out_lost() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let lease = pod.lease("r").await;
    store.edit_lock("r", give_to_another);
    store.fail_all(StoreError::Unavailable("connection refused".into()));
    assert_eq!(pod.agent.release(&lease.lease).await, Ok(Released::Pending));
    store.heal();
    until_answered(&pod, &lease.lease, LOST).await;
    assert_eq!(alarms(&pod), (true, true));
}

#[tokio::test]
async fn release_that_finds_an_older_object_reports_the_restore() {
    let store = MemoryStore::default();
    let pod = Pod::new("a", &store, |_| {});
    let lease = pod.lease("r").await;
    store.go_back(3);
    store.edit_lock("r", |lock| lock.grant = None);
    let lost = Err(LeaseError::Lost(Loss::StoreRestored));
    assert_eq!(pod.agent.release(&lease.lease).await, lost);
    assert_eq!(pod.agent.release(&lease.lease).await, lost);
}

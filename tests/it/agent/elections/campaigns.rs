//! The agent as a candidate: it runs automatically, and again after every end.

use std::sync::Arc;
use std::time::Duration;

use leasehold::agent::{ElectionView, LeaseView, OnTerm, Released};
use leasehold::protocol::incident::IncidentKind;
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest};
use leasehold::store::StoreError;
use tokio::sync::watch;

use super::super::{Pod, eventually};
use super::{RESOURCE, SHARE};
use crate::memory_store::MemoryStore;

fn pods<const N: usize>(store: &MemoryStore, names: [&str; N]) -> [Pod; N] {
    names.map(|name| Pod::in_paused_time(name, store))
}

/// Pod a leads, and its app received an answer that says so; pod b is queued.
async fn leader_and_candidate() -> (MemoryStore, Pod, Pod, ElectionView) {
    let store = MemoryStore::default();
    let [a, b] = pods(&store, ["a", "b"]);
    a.run();
    let view = a.until_leader().await;
    b.run();
    until_waiting(&store, 1).await;
    (store, a, b, view)
}

async fn until_waiting(store: &MemoryStore, count: usize) {
    eventually("they wait", || {
        let lock = store.lock(RESOURCE);
        lock.is_some_and(|lock| lock.waiters.len() == count)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn leaders_view_has_its_deadline_and_its_pods_name() {
    let store = MemoryStore::default();
    let [a] = pods(&store, ["a"]);
    a.run();
    let view = a.until_leader().await;
    let lead = view.lead.unwrap();
    assert!(lead.valid_for > SHARE / 2 && lead.valid_for <= SHARE);
    let holder = view.holder.unwrap();
    assert_eq!((&*holder.pod, holder.owner.as_str()), ("a", "a"));
    assert_eq!(holder.token, view.token);
    assert_eq!(view.age, None);
}

#[tokio::test(start_paused = true)]
async fn leader_keeps_its_lead_while_nothing_happens() {
    let store = MemoryStore::default();
    let [a, b] = pods(&store, ["a", "b"]);
    a.run();
    let token = a.until_leader().await.token;
    b.run();
    for _ in 0..20 {
        assert_eq!(a.view().await.token, token);
        assert_eq!(b.leads_until().await, None);
        tokio::time::sleep(Duration::from_mins(10)).await;
    }
    assert!(a.leads_until().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn leader_that_steps_down_queues_behind_the_others() {
    let store = MemoryStore::default();
    let [a, b, c] = pods(&store, ["a", "b", "c"]);
    a.run();
    let mut view = a.until_leader().await;
    b.run();
    until_waiting(&store, 1).await;
    c.run();
    until_waiting(&store, 2).await;
    for (now, next) in [(&a, &b), (&b, &c), (&c, &a)] {
        let lease = view.lead.unwrap().lease;
        let released = now.agent.release(&lease).await;
        assert_eq!(released, Ok(Released::Done));
        assert_eq!(now.leads_until().await, None);
        let after = next.until_leader().await;
        assert!(after.token > view.token);
        view = after;
        until_waiting(&store, 2).await;
    }
}

/// Asks the holder of the election's lock to release it.
fn ask(store: &MemoryStore) {
    store.edit_lock(RESOURCE, |lock| {
        let grant = lock.grant.as_ref().unwrap();
        lock.settings.release_request = Some(Arc::new(ReleaseRequest {
            lease: grant.id.as_str().into(),
            mode: ReleaseMode::Ask,
            reason: "maintenance".into(),
            actor: "alice".into(),
        }));
    });
}

/// Reads the lock itself: an answer to an app would be a promise to it.
async fn until_held_by(store: &MemoryStore, pod: &str) {
    eventually("the pod leads", || {
        let grant = store.lock(RESOURCE).and_then(|lock| lock.grant);
        grant.is_some_and(|grant| &*grant.holder.pod.name == pod)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn leader_asked_to_resign_waits_out_what_its_app_was_promised() {
    let store = MemoryStore::default();
    let [a, b] = pods(&store, ["a", "b"]);
    a.run();
    let first = a.until_leader().await;
    let promised_until = a.now().after(first.lead.unwrap().valid_for);
    b.run();
    until_waiting(&store, 1).await;
    ask(&store);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(a.leads_until().await, None, "no further promise is made");
    let second = b.until_leader().await;
    assert!(second.token > first.token);
    assert!(b.now() >= promised_until);
    until_waiting(&store, 1).await;
    assert_eq!(store.lock(RESOURCE).unwrap().incidents.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn leader_asked_to_resign_waits_out_renewals_by_its_app() {
    let (store, a, b, first) = leader_and_candidate().await;
    let lease = first.lead.unwrap().lease;
    // The answer about the election is over, and those that name the lease are not.
    let calls: [&dyn Fn() -> LeaseView; 2] =
        [&|| a.agent.renew(&lease, None, a.now()).unwrap(), &|| {
            a.agent.lease(&lease, a.now()).unwrap()
        }];
    let mut promised_until = a.now();
    for call in calls {
        tokio::time::sleep(SHARE * 2).await;
        promised_until = a.now().after(call().valid_for);
    }
    ask(&store);
    until_held_by(&store, "b").await;
    assert!(b.now() >= promised_until);
}

#[tokio::test(start_paused = true)]
async fn resignation_under_way_is_left_alone_by_a_stop() {
    let (store, a, _b, _) = leader_and_candidate().await;
    ask(&store);
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.agent.shut_down(OnTerm::ReleaseNow).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let holder = store.lock(RESOURCE).unwrap().grant.unwrap().holder;
    assert_eq!(&*holder.pod.name, "a", "an app was promised the lead");
}

#[tokio::test(start_paused = true)]
async fn preferred_leaders_asked_to_resign_queue_behind_the_others() {
    let store = MemoryStore::default();
    let [a, b, c] = pods(&store, ["a", "b", "c"]);
    a.run_as(true);
    until_held_by(&store, "a").await;
    b.run_as(true);
    until_waiting(&store, 1).await;
    c.run();
    until_waiting(&store, 2).await;
    for (asked, next) in [("a", "b"), ("b", "c")] {
        until_held_by(&store, asked).await;
        ask(&store);
        until_held_by(&store, next).await;
        until_waiting(&store, 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn leader_asked_to_resign_queues_behind_the_others() {
    let store = MemoryStore::default();
    let [a, b] = pods(&store, ["a", "b"]);
    a.run();
    until_held_by(&store, "a").await;
    b.run();
    until_waiting(&store, 1).await;
    let since = a.now();
    ask(&store);
    until_held_by(&store, "b").await;
    let second = b.until_leader().await;
    assert!(b.now().since(since) < Duration::from_secs(1));
    assert_eq!(a.leads_until().await, None);
    let [incident] = &store.lock(RESOURCE).unwrap().incidents[..] else {
        panic!("it is on the record");
    };
    assert_eq!(incident.kind, IncidentKind::ReleasedOnRequest);
    assert_eq!((&*incident.actor, &*incident.pod), ("alice", "a"));
    until_waiting(&store, 1).await;
    // A request to the last leader does not reach the next.
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(b.view().await.token, second.token);
}

#[tokio::test(start_paused = true)]
async fn unfit_candidate_takes_no_lead_and_releases_its_own() {
    let store = MemoryStore::default();
    let [a, b] = pods(&store, ["a", "b"]);
    let (fitness, fit) = watch::channel(false);
    a.run_while(fit);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(store.lock(RESOURCE).is_none(), "nobody ran for it");
    fitness.send_replace(true);
    let first = a.until_leader().await;
    b.run();
    until_waiting(&store, 1).await;
    let since = a.now();
    fitness.send_replace(false);
    let second = b.until_leader().await;
    assert!(second.token > first.token);
    assert!(b.now().since(since) < Duration::from_secs(1));
    assert_eq!(a.leads_until().await, None);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(store.lock(RESOURCE).unwrap().waiters.is_empty());
    // A place in the queue goes as well.
    fitness.send_replace(true);
    until_waiting(&store, 1).await;
    fitness.send_replace(false);
    until_waiting(&store, 0).await;
    assert_eq!(b.view().await.token, second.token);
}

#[tokio::test(start_paused = true)]
async fn candidate_runs_again_after_a_loss() {
    let store = MemoryStore::default();
    let [a] = pods(&store, ["a"]);
    a.run();
    let first = a.until_leader().await;
    store.delete_lock(RESOURCE);
    eventually("the loss is heard of", || {
        a.agent.metrics().encode().contains("leasehold_leases 0")
    })
    .await;
    assert_eq!(a.leads_until().await, None, "at once");
    let second = a.until_leader().await;
    assert!(second.token > first.token);
    store.revoke_session(&store.session_of(RESOURCE).unwrap());
    eventually("another session leads", || {
        store
            .lock(RESOURCE)
            .is_some_and(|lock| lock.token > second.token && lock.grant.is_some())
    })
    .await;
    assert!(a.until_leader().await.token > second.token);
}

/// Each time the lead is taken away as soon as it is had.
#[tokio::test(start_paused = true)]
async fn candidate_that_keeps_losing_pauses_between_runs() {
    let store = MemoryStore::default();
    let [a] = pods(&store, ["a"]);
    a.run();
    let began = a.now();
    for _ in 0..20 {
        let lease = a.until_leader().await.lead.unwrap().lease;
        a.agent.release(&lease).await.unwrap();
    }
    // Twenty pauses with full jitter, most of them of up to five seconds.
    assert!(a.now().since(began) > Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn unavailable_store_is_retried_until_it_answers() {
    let store = MemoryStore::default();
    let [a] = pods(&store, ["a"]);
    store.fail_all(StoreError::Unavailable("connection refused".into()));
    a.run();
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(a.ask().await.is_err(), "nothing is known");
    let calls = store.calls();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(store.calls() - calls < 120, "without hurry");
    store.heal();
    let healed = a.now();
    a.until_leader().await;
    assert!(a.now().since(healed) < Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn stopping_leader_hands_over_after_its_promise() {
    let (_, a, b, _) = leader_and_candidate().await;
    let told = a.leads_until().await.unwrap();
    let stopping = tokio::spawn({
        let agent = a.agent.clone();
        async move { agent.shut_down(OnTerm::Wait).await }
    });
    eventually("it is stopping", || a.agent.is_draining()).await;
    while let Some(until) = a.leads_until().await {
        assert_eq!(until, told, "it grows no more");
        assert_eq!(b.leads_until().await, None);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(a.now() >= told);
    b.until_leader().await;
    assert!(b.now().since(told) < Duration::from_secs(1));
    stopping.await.unwrap();
    assert!(b.leads_until().await.is_some());
    assert_eq!(a.leads_until().await, None);
}

#[tokio::test(start_paused = true)]
async fn stopping_candidate_leaves_the_queue() {
    let (store, a, b, _) = leader_and_candidate().await;
    b.agent.shut_down(OnTerm::Wait).await;
    until_waiting(&store, 0).await;
    assert!(a.leads_until().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn app_of_the_same_pod_is_queued_behind_the_campaign() {
    let store = MemoryStore::default();
    let [a] = pods(&store, ["a"]);
    a.run();
    let campaign = a.until_leader().await;
    let mut hold = a.candidacy().await;
    hold.next().await.unwrap();
    // To run twice for one election is to run once.
    a.run();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(a.view().await.token, campaign.token);
    drop(hold);
    assert!(a.leads_until().await.is_some());
}

#[tokio::test(start_paused = true)]
async fn preferred_candidate_leads_next_and_preempts_no_leader() {
    let store = MemoryStore::default();
    let [a, b, c, d] = pods(&store, ["a", "b", "c", "d"]);
    a.run();
    let first = a.until_leader().await;
    b.run();
    until_waiting(&store, 1).await;
    for (count, preferred) in [(2, &c), (3, &d)] {
        preferred.run_as(true);
        until_waiting(&store, count).await;
    }
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(
        a.view().await.token,
        first.token,
        "it leads for as long as it likes"
    );
    let mut lease = first.lead.unwrap().lease;
    // The preferred ones in turn. Each queues again, before b.
    for (now, next) in [(&a, &c), (&c, &d), (&d, &c)] {
        now.agent.release(&lease).await.unwrap();
        lease = next.until_leader().await.lead.unwrap().lease;
        until_waiting(&store, 3).await;
        assert_eq!(b.leads_until().await, None);
    }
}

/// Its line has one place, of the kind that its first caller asked for. When that one goes, the next
/// one's place is of its own kind.
#[tokio::test(start_paused = true)]
async fn queue_entry_has_the_preference_of_its_first_caller() {
    for first in [false, true] {
        let store = MemoryStore::default();
        let [a, b, c] = pods(&store, ["a", "b", "c"]);
        a.run();
        a.until_leader().await;
        b.run();
        until_waiting(&store, 1).await;
        let place_of_c = || {
            let lock = store.lock(RESOURCE).unwrap();
            let entries = lock.waiters.entries();
            let place = entries.iter().position(|w| &*w.claimant.pod.name == "c");
            place.map(|place| (place, entries[place].preferred))
        };
        let expected = |preferred: bool| Some((usize::from(!preferred), preferred));
        let mut earlier = c.candidacy_as(first).await;
        earlier.next().await.unwrap();
        eventually("c waits", || place_of_c() == expected(first)).await;
        let mut later = c.candidacy_as(!first).await;
        later.next().await.unwrap();
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(place_of_c(), expected(first), "who came first counts");
        drop(earlier);
        eventually("its place is another", || place_of_c() == expected(!first)).await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(place_of_c(), expected(!first));
        assert!(a.leads_until().await.is_some());
    }
}

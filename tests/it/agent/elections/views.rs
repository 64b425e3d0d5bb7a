//! What readers of an election receive, how old it is, and what it costs the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::agent::{ElectionError, OnTerm};
use leasehold::protocol::time::Moment;
use leasehold::store::StoreError;

use super::super::{Pod, eventually};
use super::{RESOURCE, SHARE, name};
use crate::memory_store::{Call, MemoryStore};

fn two_pods() -> (MemoryStore, Pod, Pod) {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let b = Pod::in_paused_time("b", &store);
    (store, a, b)
}

fn away() -> StoreError {
    StoreError::Unavailable("connection refused".into())
}

#[tokio::test(start_paused = true)]
async fn election_without_candidates_is_unknown_and_cached() {
    let (store, a, _) = two_pods();
    for _ in 0..10 {
        let asked = a.ask().await;
        assert_eq!(asked, Err(ElectionError::Unknown(name("e"))));
        tokio::time::sleep(Duration::from_millis(90)).await;
    }
    assert_eq!(store.calls(), 1);
    assert_eq!(store.writes(), 0);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(a.ask().await.is_err());
    assert_eq!(store.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn followers_read_the_leader_once_a_second() {
    let (store, a, b) = two_pods();
    let _lead = a.leading_candidacy().await;
    let token = a.view().await.token;
    let calls = store.calls();
    for _ in 0..20 {
        let view = b.view().await;
        assert_eq!((&view.lead, view.token), (&None, token));
        let holder = view.holder.unwrap();
        assert_eq!((&*holder.pod, holder.owner.as_str()), ("a", "app"));
        assert!(view.age.unwrap() < Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(store.calls(), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn queued_candidates_queries_cause_no_extra_reads() {
    let (store, a, b) = two_pods();
    let _lead = a.leading_candidacy().await;
    b.run();
    eventually("b waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let reads = Arc::new(AtomicUsize::new(0));
    let count = reads.clone();
    store.on_call(move |call| {
        count.fetch_add(usize::from(call == Call::GetLock), Ordering::SeqCst);
        None
    });
    for _ in 0..600 {
        assert_eq!(b.view().await.lead, None);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A waiter reads the lock every third of the TTL, up to a tenth of that earlier.
    let reads = reads.load(Ordering::SeqCst);
    assert!((10..=14).contains(&reads), "{reads} reads in a minute");
}

#[tokio::test(start_paused = true)]
async fn lead_outlives_its_connection_by_the_readers_validity() {
    let (store, a, b) = two_pods();
    let lead = a.leading_candidacy().await;
    let asked = a.now();
    let told = a.leads_until().await.unwrap();
    let for_long = told.since(asked);
    assert!(for_long >= Duration::from_secs(1) && for_long <= Duration::from_millis(1_500));
    b.run();
    eventually("b waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let told = a.leads_until().await.unwrap().max(told);
    drop(lead);
    assert_eq!(a.leads_until().await, None, "nobody is told any more");
    loop {
        let leads = b.leads_until().await.is_some();
        assert_eq!(leads, a.now() >= told, "at {:?}, told {told:?}", a.now());
        if leads {
            break;
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
        // The hand-over itself takes no time, but some turns.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }
}

/// No timer runs before the first question does.
#[tokio::test]
async fn machine_that_slept_past_the_deadline_wakes_without_lead() {
    let store = MemoryStore::default();
    for by_connection in [true, false] {
        let a = Pod::new("a", &store, |_| {});
        let held = if by_connection {
            Some(a.leading_candidacy().await)
        } else {
            a.run();
            None
        };
        eventually("it leads", || a.lead_now().is_some()).await;
        a.clock.advance(SHARE);
        assert_eq!(a.lead_now(), None, "asked at once");
        drop(held);
        store.edit_lock(RESOURCE, |lock| lock.grant = None);
    }
}

#[tokio::test(start_paused = true)]
async fn lead_without_readers_ends_with_its_connection() {
    let (store, a, b) = two_pods();
    let lead = a.leading_candidacy().await;
    b.run();
    eventually("b waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let before = a.now();
    drop(lead);
    eventually("b leads", || {
        store
            .session_of(RESOURCE)
            .is_some_and(|s| s.as_str().starts_with("b-"))
    })
    .await;
    assert!(a.now().since(before) < Duration::from_millis(50));
}

#[tokio::test(start_paused = true)]
async fn apps_ended_stop_releases_a_closing_lead_at_once() {
    let (_, a, _) = two_pods();
    let lead = a.leading_candidacy().await;
    assert!(a.leads_until().await.is_some());
    drop(lead);
    assert!(!a.is_free(RESOURCE));
    let before = a.now();
    a.agent.shut_down(OnTerm::AppsEnded).await;
    assert!(a.is_free(RESOURCE));
    assert_eq!(a.now(), before);
}

#[tokio::test(start_paused = true)]
async fn outage_keeps_the_leaders_deadline_and_followers_views() {
    let (store, a, b) = two_pods();
    let _lead = a.leading_candidacy().await;
    assert!(b.view().await.holder.is_some());
    let began = b.now();
    store.fail_all(away());
    let mut last = Moment::default();
    loop {
        let Some(until) = a.leads_until().await else {
            break;
        };
        assert!(until > a.now() || until == last);
        last = until;
        let view = b.view().await;
        assert_eq!(view.holder.as_ref().map(|h| &*h.pod), Some("a"));
        let age = view.age.unwrap();
        assert!(
            age <= b.now().since(began) + Duration::from_secs(1),
            "{age:?}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(a.now() >= last, "what was told was kept");
    assert!(last <= began.after(SHARE), "and not beyond the session");
    assert!(b.view().await.age.unwrap() >= Duration::from_secs(9));
    // An agent without data returns an error.
    let c = Pod::in_paused_time("c", &store);
    for _ in 0..3 {
        assert!(matches!(c.ask().await, Err(ElectionError::Query(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn outage_is_probed_at_most_once_a_second() {
    let (store, a, b) = two_pods();
    let _lead = a.leading_candidacy().await;
    store.fail_all(away());
    let calls = store.calls();
    for _ in 0..20 {
        assert!(b.ask().await.is_err());
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    assert_eq!(store.calls(), calls + 1);
}

#[tokio::test(start_paused = true)]
async fn stream_reports_every_change_and_counts_from_its_request() {
    let (store, a, b) = two_pods();
    let other = b.leading_candidacy().await;
    a.run();
    eventually("a waits", || {
        store.lock(RESOURCE).is_some_and(|l| l.waiters.len() == 1)
    })
    .await;
    let arrived = a.now();
    let mut events = a.election_events().await;
    let mut beats = Vec::new();
    for n in 0..4 {
        let event = events.next().await.unwrap();
        assert_eq!((event.is_change, event.view.lead), (n == 0, None));
        beats.push(a.now());
    }
    assert!(beats.is_sorted_by(|a, b| b.since(*a) >= Duration::from_secs(4)));
    let dropped = a.now();
    drop(other);
    let mut until = Moment::default();
    for n in 0..5 {
        let event = events.next().await.unwrap();
        let lead = event.view.lead.expect("it leads");
        assert_eq!(event.is_change, n == 0);
        if n == 0 {
            assert!(a.now().since(dropped) < Duration::from_millis(50));
        }
        let next = arrived.after(lead.valid_for);
        assert!(next >= until && next > a.now());
        until = next;
    }
    store.delete_lock(RESOURCE);
    let event = events.next().await.unwrap();
    assert!(event.is_change && event.view.lead.is_none(), "{event:?}");
    assert!(a.now() < until, "it is told before its time is over");
    let event = events.next().await.unwrap();
    assert!(
        event.is_change && event.view.lead.is_some(),
        "it leads again"
    );
}

#[tokio::test(start_paused = true)]
async fn stream_of_a_held_lead_reports_before_each_deadline() {
    let (_, a, _) = two_pods();
    let lead = a.leading_candidacy().await;
    let arrived = a.now();
    let mut events = a.election_events().await;
    let mut until = Moment::default();
    for n in 0..20 {
        let event = events.next().await.unwrap();
        assert!(n == 0 || a.now() < until, "told again before its end");
        until = arrived.after(event.view.lead.unwrap().valid_for);
    }
    drop(lead);
    let event = events.next().await.unwrap();
    assert!(event.is_change && event.view.lead.is_none());
    assert!(a.now() < until && !a.is_free(RESOURCE));
    eventually("the lock is free", || a.is_free(RESOURCE)).await;
    assert!(a.now() >= until);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_a_follower_ends_as_soon_as_its_agent_stops() {
    let (_, a, b) = two_pods();
    let _lead = a.leading_candidacy().await;
    let mut events = b.election_events().await;
    assert!(events.next().await.unwrap().is_change);
    let following = tokio::spawn(async move { events.next().await });
    // It sleeps until the next sign of life is due.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let before = b.now();
    b.agent.shut_down(OnTerm::Wait).await;
    assert_eq!(following.await.unwrap(), None);
    assert_eq!(b.now(), before);
}

/// The API server takes half a second for each answer.
#[tokio::test(start_paused = true)]
async fn known_leader_is_returned_without_waiting_for_a_slow_store() {
    let (store, a, b) = two_pods();
    let lead = a.leading_candidacy().await;
    let first = b.view().await.token;
    store.slow_down(Duration::from_millis(500));
    drop(lead);
    eventually("it is free", || a.is_free(RESOURCE)).await;
    let next = a.leading_candidacy().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let asked = b.now();
    let view = b.view().await;
    assert_eq!(view.token, first, "what is known from before");
    assert!(view.age.unwrap() >= Duration::from_secs(2));
    assert!(b.now().since(asked) <= Duration::from_millis(100));
    // The read completes, and its result is used.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let view = b.view().await;
    assert!(view.token > first && view.age.unwrap() < Duration::from_secs(1));
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn election_streams_count_against_the_stream_limit() {
    let store = MemoryStore::default();
    let a = Pod::new("a", &store, |config| config.max_streams = 2);
    let _lead = a.leading_candidacy().await;
    let _events = a.election_events().await;
    let refused = a.agent.election_events(&name("e"), a.now()).await.err();
    assert!(matches!(refused, Some(ElectionError::TooManyStreams(_))));
}

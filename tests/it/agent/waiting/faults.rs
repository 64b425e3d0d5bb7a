//! Waiting while something goes wrong: the watch, the store, the queue, the session, other pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::agent::{AcquireError, AcquireRequest, Released};
use leasehold::protocol::ids::Resource;
use leasehold::protocol::queue::Queue;
use leasehold::store::StoreError;

use super::{granted, holder, queue, queued_waiter, release, request, spawn, two_pods};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, Half, MemoryStore};

type Vanish = fn(&MemoryStore);

#[tokio::test(start_paused = true)]
async fn grant_is_found_within_a_third_of_the_ttl_without_a_watch() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let _stalled = store.stall_watches();
    tokio::time::sleep(Duration::from_secs(20)).await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    release(&a, &lease).await;
    let since = b.now();
    granted(waiting).await;
    let took = b.now().since(since);
    assert!(
        took <= Duration::from_millis(5_600),
        "{took:?}: a third, and a tenth of that"
    );
}

/// The second would end a watch that was opened after the missed event.
#[tokio::test(start_paused = true)]
async fn late_watch_is_reopened_once_by_two_waiters() {
    let (store, a, b) = two_pods();
    let leases = [a.lease("r").await, a.lease("s").await];
    let other = AcquireRequest {
        resource: Resource::parse("s").unwrap(),
        ..request("b", 240)
    };
    let waiting = [queued_waiter(&b, "b", 240).await, spawn(&b.agent, other)];
    let is_queued = || store.lock("s").is_some_and(|lock| !lock.waiters.is_empty());
    eventually("it stands in the other queue", is_queued).await;
    let _stalled = store.stall_watches();
    let lists = store.hold(Call::ListHeldLocks, Half::Request);
    for lease in &leases {
        release(&a, lease).await;
    }
    for waiting in waiting {
        granted(waiting).await;
    }
    let is_listed = || lists.arrived() == 1;
    eventually("the first waiter lists", is_listed).await;
    lists.open();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lists.arrived(), 1);
}

#[tokio::test(start_paused = true)]
async fn vanished_queue_entry_is_joined_again() {
    let wipe = |store: &MemoryStore| store.edit_lock("r", |lock| lock.waiters = Queue::default());
    let delete = |store: &MemoryStore| {
        store.delete_lock("r");
        store.make_lock("r");
    };
    let ways: [(&str, Vanish); 2] = [("wiped", wipe), ("made anew", delete)];
    for (how, vanish) in ways {
        let (store, a, b) = two_pods();
        let lease = a.lease("r").await;
        let waiting = queued_waiter(&b, "b", 240).await;
        vanish(&store);
        if how == "wiped" {
            tokio::time::sleep(Duration::from_secs(6)).await;
            assert_eq!(queue(&b), ["b"], "{how}");
            release(&a, &lease).await;
        }
        assert!(granted(waiting).await.token > lease.token, "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn expired_waiters_are_skipped_together() {
    let store = MemoryStore::default();
    let pods: Vec<Pod> = (0..5)
        .map(|n| Pod::in_paused_time(&format!("p{n}"), &store))
        .collect();
    let first = pods[0].lease("r").await;
    let mut waiting = Vec::new();
    for (n, pod) in pods.iter().enumerate().skip(1) {
        waiting.push(queued_waiter(pod, &format!("o{n}"), 240).await);
    }
    // No two sessions are read in the same moment.
    store.slow_down(Duration::from_millis(5));
    // The holder and three waiters are cut off together, as by the loss of their node.
    for pod in &pods[..4] {
        pod.store.cut_off();
    }
    let since = pods[4].now();
    let lease = granted(waiting.pop().unwrap()).await;
    let took = pods[4].now().since(since);
    assert!(lease.token > first.token);
    assert!(
        took > Duration::from_millis(14_250),
        "{took:?}: not before the holder's deadline"
    );
    assert!(
        took < Duration::from_secs(34),
        "{took:?}: not one TTL for each of the dead"
    );
    assert!(queue(&pods[4]).is_empty());
    // Handed to the first expired waiter, taken over by the live one; the others never had it.
    assert_eq!(store.lock("r").unwrap().transitions, 3);
}

#[tokio::test(start_paused = true)]
async fn waiting_outlives_an_outage_that_the_session_outlives() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    store.fail_all(StoreError::Unavailable("away".into()));
    tokio::time::sleep(Duration::from_secs(6)).await;
    store.heal();
    release(&a, &lease).await;
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn waiter_fails_as_unavailable_in_a_long_outage() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    store.fail_all(StoreError::Unavailable("away".into()));
    let answer = waiting.await.unwrap();
    assert!(
        matches!(answer, Err(AcquireError::Store(StoreError::Unavailable(_)))),
        "{answer:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn waiter_with_a_lost_session_queues_again_under_a_new_one() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let before = store.lock("r").unwrap().waiters;
    store.revoke_session(&before.entries()[0].claimant.session);
    eventually("it stands in the queue again", || {
        let now = store.lock("r").unwrap().waiters;
        now.len() == 1 && now != before
    })
    .await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    release(&a, &lease).await;
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn refused_right_is_returned_at_once() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    store.fail(
        Call::JoinQueue,
        StoreError::Denied("no right to join".into()),
    );
    let since = b.now();
    let answer = spawn(&b.agent, request("b", 240)).await.unwrap();
    assert!(
        matches!(answer, Err(AcquireError::Store(StoreError::Denied(_)))),
        "{answer:?}"
    );
    assert!(b.now().since(since) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn briefly_missing_rights_keep_the_queue_entry() {
    let errors = [
        StoreError::Denied("the role is not found".into()),
        StoreError::Unauthenticated("the pod is not found".into()),
    ];
    for error in errors {
        let (store, a, b) = two_pods();
        let lease = a.lease("r").await;
        let waiting = queued_waiter(&b, "b", 240).await;
        store.fail_all(error.clone());
        tokio::time::sleep(Duration::from_secs(6)).await;
        store.heal();
        assert_eq!(queue(&b), ["b"], "{error}");
        a.agent.renew(&lease.lease, None, a.now()).unwrap();
        release(&a, &lease).await;
        granted(waiting).await;
    }
}

#[tokio::test(start_paused = true)]
async fn permanently_removed_right_ends_the_wait() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    // The session lives on, so that nothing else ends the wait.
    store.fail(Call::GetLock, StoreError::Denied("no right to read".into()));
    let since = b.now();
    let answer = waiting.await.unwrap();
    assert!(
        matches!(answer, Err(AcquireError::Store(StoreError::Denied(_)))),
        "{answer:?}"
    );
    assert!(b.now().since(since) < Duration::from_mins(1));
}

#[tokio::test(start_paused = true)]
async fn holder_observes_a_removed_grant_by_the_watch() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let lease = a.lease("r").await;
    tokio::task::yield_now().await;
    let since = a.now();
    store.delete_lock("r");
    eventually("it is lost", || {
        a.agent.lease(&lease.lease, a.now()).is_err()
    })
    .await;
    assert!(a.now().since(since) < Duration::from_secs(1));
}

/// A crashing API server breaks thousands of watches at once; none of them causes a list.
#[tokio::test(start_paused = true)]
async fn broken_watch_continues_at_its_last_revision() {
    let (store, a, b) = two_pods();
    let taken_away = a.lease("taken away").await;
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let calls = store.record_calls();
    let is_away = Arc::new(AtomicBool::new(true));
    let (recorded, away) = (calls.clone(), is_away.clone());
    store.on_call(move |call| {
        recorded.lock().unwrap().push(call);
        let fails = call == Call::WatchLocks && away.load(Ordering::SeqCst);
        fails.then(|| StoreError::Unavailable("away".into()))
    });
    drop(store.stall_watches());
    let tries = || {
        let calls = calls.lock().unwrap();
        calls.iter().filter(|c| **c == Call::WatchLocks).count()
    };
    eventually("they are tried again", || tries() >= 4).await;
    store.delete_lock("taken away");
    release(&a, &lease).await;
    is_away.store(false, Ordering::SeqCst);
    granted(waiting).await;
    eventually("it is lost", || {
        a.agent.lease(&taken_away.lease, a.now()).is_err()
    })
    .await;
    let calls = calls.lock().unwrap();
    assert!(!calls.contains(&Call::ListHeldLocks), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn event_that_breaks_each_watch_is_listed() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let lease = a.lease("r").await;
    tokio::task::yield_now().await;
    store.break_watches();
    let since = a.now();
    store.delete_lock("r");
    eventually("it is lost", || {
        a.agent.lease(&lease.lease, a.now()).is_err()
    })
    .await;
    assert!(a.now().since(since) < Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn expired_watch_is_followed_by_a_list() {
    let (store, a, b) = two_pods();
    let taken_away = a.lease("taken away").await;
    let lease = a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let refused = Arc::new(AtomicUsize::new(0));
    let refusing = refused.clone();
    store.on_call(move |call| {
        (call == Call::WatchLocks).then(|| {
            refusing.fetch_add(1, Ordering::SeqCst);
            StoreError::WatchExpired("too long ago".into())
        })
    });
    drop(store.stall_watches());
    eventually("the watches are opened again, and refused", || {
        refused.load(Ordering::SeqCst) >= 2
    })
    .await;
    store.delete_lock("taken away");
    release(&a, &lease).await;
    let since = b.now();
    granted(waiting).await;
    eventually("it is lost", || {
        a.agent.lease(&taken_away.lease, a.now()).is_err()
    })
    .await;
    // A read by the waiter itself would come after a third of the TTL.
    assert!(b.now().since(since) < Duration::from_millis(4_500));
}

#[tokio::test(start_paused = true)]
async fn grant_of_a_leaving_caller_serves_the_next_local_waiter() {
    let (store, a, b) = two_pods();
    let c = Pod::in_paused_time("c", &a.store);
    let lease = a.lease("r").await;
    let gone = queued_waiter(&b, "gone", 240).await;
    let next = spawn(&b.agent, request("next", 240));
    let _behind = queued_waiter(&c, "behind", 240).await;
    let _stalled = store.stall_watches();
    let gate = store.hold(Call::GetLock, Half::Answer);
    let releasing = a.agent.clone();
    let released = tokio::spawn(async move { releasing.release(&lease.lease).await });
    eventually("a line reads", || gate.arrived() > 0).await;
    gone.abort();
    assert!(gone.await.is_err());
    gate.open();
    released.await.unwrap().unwrap();
    granted(next).await;
    assert_eq!(holder(&b).as_deref(), Some("next"));
    assert_eq!(queue(&b), ["behind"]);
}

#[tokio::test(start_paused = true)]
async fn unreadable_holder_session_does_not_end_a_wait() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    store.fail(Call::GetSession, StoreError::Unreadable("edited".into()));
    let waiting = queued_waiter(&b, "b", 240).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    a.agent.renew(&lease.lease, None, a.now()).unwrap();
    release(&a, &lease).await;
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn permanently_refused_release_does_not_keep_its_session() {
    let store = MemoryStore::default();
    let a = Pod::in_paused_time("a", &store);
    let lease = a.lease("r").await;
    store.fail(Call::UpdateLock, StoreError::Denied("no right".into()));
    assert_eq!(a.agent.release(&lease.lease).await, Ok(Released::Pending));
    tokio::time::sleep(Duration::from_mins(21)).await;
    let session = store.session_of("r").and_then(|id| store.session(&id));
    assert!(session.is_some_and(|session| session.revoked.is_some()));
}

#[tokio::test(start_paused = true)]
async fn grant_that_ended_before_its_lease_is_not_returned() {
    let (store, a, b) = two_pods();
    let lease = b.lease("other").await;
    let gate = store.hold(Call::UpdateLock, Half::Answer);
    let agent = b.agent.clone();
    let trying = spawn(&agent, request("b", 0));
    eventually("the grant is written", || gate.arrived() > 0).await;
    store.delete_lock("r");
    store.make_lock("r");
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.open();
    let answer = trying.await.unwrap();
    assert_eq!(answer, Err(AcquireError::GrantEnded));
    assert!(b.agent.lease(&lease.lease, b.now()).is_ok());
    a.lease("r").await;
}

#[tokio::test(start_paused = true)]
async fn grant_that_ended_during_its_owner_update_is_not_returned() {
    let (store, a, b) = two_pods();
    let lease = a.lease("r").await;
    let gone = queued_waiter(&b, "gone", 240).await;
    let next = spawn(&b.agent, request("next", 240));
    tokio::task::yield_now().await;
    gone.abort();
    assert!(gone.await.is_err());
    let (meddled, mut updates) = (store.clone(), 0);
    store.on_call(move |call| {
        updates += u8::from(call == Call::UpdateLock);
        // The first is the release, the second writes the name of the next owner.
        if (call, updates) == (Call::UpdateLock, 2) {
            meddled.delete_lock("r");
            meddled.make_lock("r");
        }
        None
    });
    release(&a, &lease).await;
    let lease = granted(next).await;
    let lock = store.lock("r").unwrap();
    assert_eq!(
        lock.token, lease.token,
        "it is the grant that the store knows"
    );
    assert_eq!(holder(&b).as_deref(), Some("next"));
}

#[tokio::test(start_paused = true)]
async fn try_is_delayed_a_few_seconds_at_most_by_unanswered_reads() {
    let store = MemoryStore::default();
    let pods: Vec<Pod> = (0..20)
        .map(|n| Pod::in_paused_time(&format!("p{n}"), &store))
        .collect();
    pods[0].lease("r").await;
    let mut waiting = Vec::new();
    for (n, pod) in pods.iter().enumerate().skip(1).take(18) {
        waiting.push(queued_waiter(pod, &format!("o{n}"), 240).await);
    }
    for pod in &pods[..19] {
        pod.store.cut_off();
    }
    let last = &pods[19];
    for _ in 0..3 {
        spawn(&last.agent, request("last", 0))
            .await
            .unwrap()
            .unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let _gate = store.hold(Call::GetSession, Half::Request);
    let since = last.now();
    let _answer = spawn(&last.agent, request("last", 0)).await.unwrap();
    let took = last.now().since(since);
    assert!(took < Duration::from_secs(12), "{took:?}");
}

/// The policies allow a pod two entries, and others remove these only when the holder's grant ends.
#[tokio::test(start_paused = true)]
async fn entries_of_former_sessions_leave_before_a_third_is_added() {
    let (store, a, b) = two_pods();
    a.lease("r").await;
    let waiting = queued_waiter(&b, "b", 240).await;
    let entry = store.lock("r").unwrap().waiters.entries()[0].clone();
    waiting.abort();
    eventually("the queue is empty", || queue(&b).is_empty()).await;
    let former = ["b-1", "b-2"].map(|session| {
        let mut former = entry.clone();
        former.grant = session.into();
        former.claimant.session = session.into();
        former
    });
    store.edit_lock("r", |lock| {
        lock.waiters = Queue::from_entries(former.into());
    });
    let calls = store.record_calls();
    let waiting = spawn(&b.agent, request("b", 240));
    let own = entry.claimant.session.clone();
    eventually("only the own entry is there", || {
        let lock = store.lock("r").unwrap();
        let sessions = lock.waiters.entries().iter();
        let sessions: Vec<_> = sessions.map(|entry| &entry.claimant.session).collect();
        sessions == [&own]
    })
    .await;
    let calls = calls.lock().unwrap();
    let joins = calls.iter().filter(|call| **call == Call::JoinQueue);
    assert_eq!(joins.count(), 1, "{calls:?}");
    waiting.abort();
}

/// Agents without a pod have the same empty uid, and their entries are not each other's to remove.
#[tokio::test(start_paused = true)]
async fn entries_of_other_agents_without_a_pod_stay() {
    let store = MemoryStore::default();
    let [a, b, c, d] = ["a", "b", "c", "d"]
        .map(|name| Pod::new(name, &store, |config| config.pod.uid = "".into()));
    a.lease("r").await;
    let _waiting = [
        queued_waiter(&b, "b", 240).await,
        queued_waiter(&c, "c", 240).await,
    ];
    // A person deleted them, which proves nothing about their agents.
    for entry in store.lock("r").unwrap().waiters.entries() {
        store.delete_session(&entry.claimant.session);
    }
    let calls = store.record_calls();
    let _last = queued_waiter(&d, "d", 240).await;
    assert_eq!(queue(&d), ["b", "c", "d"]);
    assert!(!calls.lock().unwrap().contains(&Call::GetSession));
}

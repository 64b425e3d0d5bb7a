//! Joins after a lost race or of a full queue, and joins without an answer. Those can land on any version, also after
//! their callers have left, and during or after their turn.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::agent::{Acquired, LeaseView};
use leasehold::clock::Clock as _;
use leasehold::store::StoreError;
use tokio::task::JoinHandle;

use super::{Waiting, granted, holder, queue, queued_waiter, release, request, spawn, two_pods};
use crate::agent::{Pod, eventually};
use crate::memory_store::{Call, LateJoin, MemoryStore};
use crate::paused_clock::PausedClock;

/// Longer than any write is on its way.
const LATEST: Duration = Duration::from_mins(3);

/// The longest pause between two reads for a write under way, and a moment.
const POLL_INTERVAL: Duration = Duration::from_secs(11);

/// `a` holds the lock, and `c` waits for it.
struct Ahead {
    store: MemoryStore,
    a: Pod,
    b: Pod,
    c: Pod,
    held: LeaseView,
    waiting: Waiting,
}

impl Ahead {
    async fn new() -> Self {
        let (store, a, b) = two_pods();
        let c = Pod::in_paused_time("c", &store);
        let held = a.lease("r").await;
        let waiting = queued_waiter(&c, "c", 240).await;
        Self {
            store,
            a,
            b,
            c,
            held,
            waiting,
        }
    }

    /// `b` waits behind `c`, by a second join; the first one is still on its way.
    async fn joined_again(&self) -> (LateJoin, Waiting) {
        let late = self.store.delay_join();
        let waiting = spawn(&self.b.agent, request("b", 240));
        eventually("it joined again", || queue(&self.b) == ["c", "b"]).await;
        assert!(late.is_sent());
        (late, waiting)
    }

    /// `a` and `c` have had the lock.
    async fn serve(self) -> (MemoryStore, [Pod; 3]) {
        release(&self.a, &self.held).await;
        let lease = granted(self.waiting).await;
        release(&self.c, &lease).await;
        (self.store, [self.a, self.b, self.c])
    }
}

fn transitions(store: &MemoryStore) -> u64 {
    store.lock("r").unwrap().transitions
}

#[tokio::test(start_paused = true)]
async fn loser_of_a_race_joins_the_queue_without_another_read() {
    let (store, a, b) = two_pods();
    // Both have a session.
    a.lease("a").await;
    b.lease("b").await;
    store.make_lock("r");
    store.slow_down(Duration::from_millis(50));
    let calls = store.record_calls();
    let both = [&a, &b].map(|pod| spawn(&pod.agent, request("app", 240)));
    eventually("one waits", || !queue(&a).is_empty()).await;
    let (read, write) = (Call::GetLock, Call::UpdateLock);
    assert_eq!(
        *calls.lock().unwrap(),
        [read, read, write, write, Call::JoinQueue]
    );
    both.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn waiter_that_met_a_full_queue_pauses_and_reads_again() {
    let (store, a, b) = two_pods();
    let held = a.lease("r").await;
    let calls = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&calls);
    let clock = PausedClock::start();
    store.on_call(move |call| {
        let mut calls = recorded.lock().unwrap();
        let is_first = calls.iter().all(|(call, _)| *call != Call::JoinQueue);
        calls.push((call, clock.now()));
        (call == Call::JoinQueue && is_first).then_some(StoreError::QueueFull)
    });
    let waiting = queued_waiter(&b, "b", 240).await;
    let mut calls = calls.lock().unwrap().clone();
    calls.retain(|(call, _)| *call != Call::WatchLocks);
    let refused = calls.iter().position(|(call, _)| *call == Call::JoinQueue);
    let [(_, full), (read, again), (join, _)] = calls[refused.unwrap()..] else {
        panic!("{calls:?}");
    };
    assert_eq!((read, join), (Call::GetLock, Call::JoinQueue));
    // A tenth of the bound is the least. A conflict's first pause is shorter than this at most.
    let pause = again.since(full);
    assert!(pause >= Duration::from_millis(300), "{pause:?}");
    release(&a, &held).await;
    granted(waiting).await;
}

#[tokio::test(start_paused = true)]
async fn ambiguous_join_leaves_no_entry_after_its_caller_left() {
    for has_landed in [true, false] {
        let ahead = Ahead::new().await;
        let (store, b) = (&ahead.store, &ahead.b);
        let (late, waiting) = if has_landed {
            store.lose_answer(Call::JoinQueue);
            let waiting = spawn(&b.agent, request("b", 240));
            eventually("it landed", || queue(b) == ["c", "b"]).await;
            (None, waiting)
        } else {
            let late = store.delay_join();
            let waiting = spawn(&b.agent, request("b", 240));
            eventually("it is sent", || late.is_sent()).await;
            (Some(late), waiting)
        };
        waiting.abort();
        assert!(waiting.await.is_err());
        eventually("it left the queue", || queue(b) == ["c"]).await;
        tokio::time::sleep(LATEST).await;
        assert_eq!(queue(b), ["c"], "landed: {has_landed}");
        drop(late);
        let (store, [_, b, _]) = ahead.serve().await;
        tokio::time::sleep(LATEST).await;
        assert!(b.is_free("r"), "landed: {has_landed}");
        assert_eq!(transitions(&store), 2, "landed: {has_landed}");
    }
}

#[tokio::test(start_paused = true)]
async fn late_join_of_an_abandoned_claim_is_removed() {
    let ahead = Ahead::new().await;
    let b = &ahead.b;
    let late = ahead.store.delay_join();
    let waiting = spawn(&b.agent, request("b", 240));
    eventually("it is sent", || late.is_sent()).await;
    waiting.abort();
    assert!(waiting.await.is_err());
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(queue(b), ["c"]);
    assert_eq!(late.land(), Ok(()));
    assert_eq!(queue(b), ["c", "b"]);
    tokio::time::sleep(POLL_INTERVAL).await;
    assert_eq!(queue(b), ["c"]);
    let (store, [_, b, _]) = ahead.serve().await;
    tokio::time::sleep(LATEST).await;
    assert!(b.is_free("r"));
    assert_eq!(transitions(&store), 2);
}

/// The entry that the second join made is left, and then the first one lands.
#[tokio::test(start_paused = true)]
async fn late_join_is_removed_after_the_second_entry_left() {
    let ahead = Ahead::new().await;
    let (late, waiting) = ahead.joined_again().await;
    let b = &ahead.b;
    waiting.abort();
    assert!(waiting.await.is_err());
    eventually("it left the queue", || queue(b) == ["c"]).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(late.land(), Ok(()));
    assert_eq!(queue(b), ["c", "b"]);
    tokio::time::sleep(POLL_INTERVAL).await;
    assert_eq!(queue(b), ["c"]);
    let (store, [_, b, _]) = ahead.serve().await;
    tokio::time::sleep(LATEST).await;
    assert!(b.is_free("r"));
    assert_eq!(transitions(&store), 2);
}

#[tokio::test(start_paused = true)]
async fn late_join_of_a_held_grant_changes_nothing() {
    let ahead = Ahead::new().await;
    let (late, waiting) = ahead.joined_again().await;
    let (store, [a, b, c]) = ahead.serve().await;
    let lease = granted(waiting).await;
    let next = queued_waiter(&c, "c", 240).await;
    let before = store.lock("r");
    assert_eq!(late.land(), Err(StoreError::Conflict));
    assert_eq!(store.lock("r"), before);
    assert!(b.agent.lease(&lease.lease, b.now()).is_ok());
    release(&b, &lease).await;
    release(&c, &granted(next).await).await;
    tokio::time::sleep(LATEST).await;
    assert!(a.is_free("r"));
    assert_eq!(transitions(&store), 4);
}

#[tokio::test(start_paused = true)]
async fn late_join_of_a_released_grant_releases_the_lock_again() {
    let ahead = Ahead::new().await;
    let (late, waiting) = ahead.joined_again().await;
    let (store, [a, b, c]) = ahead.serve().await;
    let served = granted(waiting).await;
    release(&b, &served).await;
    let held = a.lease("r").await;
    let next = queued_waiter(&c, "c", 240).await;
    assert_eq!(late.land(), Ok(()));
    assert_eq!(queue(&b), ["c", "b"]);
    release(&a, &held).await;
    release(&c, &granted(next).await).await;
    let since = b.now();
    eventually("the lock is free", || b.is_free("r")).await;
    assert!(b.now().since(since) < Duration::from_secs(1));
    assert!(queue(&b).is_empty());
    assert_eq!(transitions(&store), 6);
    assert!(b.agent.lease(&served.lease, b.now()).is_err());
    assert!(b.lease("r").await.token > held.token);
}

#[tokio::test(start_paused = true)]
async fn caller_after_a_late_join_gets_its_own_entry() {
    let ahead = Ahead::new().await;
    let (late, waiting) = ahead.joined_again().await;
    let (store, [a, b, c]) = ahead.serve().await;
    release(&b, &granted(waiting).await).await;
    let held = a.lease("r").await;
    let next = queued_waiter(&c, "c", 240).await;
    assert_eq!(late.land(), Ok(()));
    assert_eq!(queue(&b), ["c", "b"]);
    let newcomer = spawn(&b.agent, request("newcomer", 240));
    eventually("it has a place of its own", || {
        queue(&b) == ["c", "newcomer"]
    })
    .await;
    // A try in between removes no other queue entry.
    let tried = spawn(&b.agent, request("b", 0)).await.unwrap();
    assert!(matches!(tried, Ok(Acquired::Held { .. })), "{tried:?}");
    release(&a, &held).await;
    release(&c, &granted(next).await).await;
    let lease = granted(newcomer).await;
    assert_eq!(holder(&b).as_deref(), Some("newcomer"));
    release(&b, &lease).await;
    tokio::time::sleep(LATEST).await;
    assert!(b.is_free("r"));
    assert_eq!(transitions(&store), 6);
}

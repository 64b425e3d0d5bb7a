//! Feeds in case of errors: an unreadable object, a failing store, or a slow reader.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use tokio::time::timeout;

use super::super::tables::{LOCKS, WriteTxn};
use super::*;

fn store() -> EmbeddedStore {
    EmbeddedStore::in_memory(Revision(1_000)).unwrap()
}

fn resource(name: &str) -> Resource {
    Resource::parse(name).unwrap()
}

/// Returns the events of a feed until its list is complete.
async fn told_anew(feed: &mut Feed<Object<Lock>>) -> Vec<FeedEvent<Object<Lock>>> {
    let mut told = Vec::new();
    while !matches!(told.last(), Some(FeedEvent::ListDone)) {
        told.push(feed.next().await.unwrap());
    }
    assert!(matches!(told[0], FeedEvent::ListStarted), "{told:?}");
    told
}

#[tokio::test(start_paused = true)]
async fn reader_that_fell_behind_receives_everything_again() {
    let store = store();
    let mut locks = FleetStore::locks(&store);
    assert_eq!(told_anew(&mut locks).await.len(), 2);
    let made = subscribers::BACKLOG_MAX + 10;
    for number in 0..made {
        let resource = resource(&format!("l-{number}"));
        LockStore::create(&store, &resource).await.unwrap();
    }
    let mut before = 0;
    while let FeedEvent::Applied(_) = locks.next().await.unwrap() {
        before += 1;
    }
    // The backlog comes first, and is incomplete: the next event was the start of another list.
    assert!(
        subscribers::BACKLOG_MAX <= before && before < made,
        "{before}"
    );
    let mut there = 0;
    while let FeedEvent::Applied(_) = locks.next().await.unwrap() {
        there += 1;
    }
    assert_eq!(there, made);
}

#[tokio::test(start_paused = true)]
async fn unreadable_lock_is_reported_and_can_be_deleted() {
    let store = store();
    LockStore::create(&store, &resource("good")).await.unwrap();
    let write = WriteTxn::begin(&store.0.database).unwrap();
    write.put(LOCKS, "bad", Some(b"{}")).unwrap();
    write.commit().unwrap();
    let mut locks = FleetStore::locks(&store);
    let told = told_anew(&mut locks).await;
    let FeedEvent::Unreadable {
        object_ref, why, ..
    } = &told[1]
    else {
        panic!("{told:?}");
    };
    assert_eq!(&*object_ref.name, "bad");
    assert!(why.contains("missing field"), "{why}");
    assert!(matches!(&told[2], FeedEvent::Applied(lock) if &*lock.object_ref.name == "good"));
    store.delete_lock(&resource("bad")).await.unwrap();
    let gone = locks.next().await.unwrap();
    assert!(
        matches!(&gone, FeedEvent::Deleted(object_ref) if &*object_ref.name == "bad"),
        "{gone:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn feed_that_cannot_begin_reports_it_and_retries() {
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);
    let begin = |inner: &Inner| {
        if HAS_FAILED.swap(true, Ordering::Relaxed) {
            return inner.lock_feed();
        }
        Err(StoreError::Unavailable("the disk".to_owned()))
    };
    let mut locks = store().feed(begin);
    let first = locks.next().await.unwrap();
    assert!(matches!(
        first,
        FeedEvent::Interrupted(StoreError::Unavailable(_))
    ));
    let at_once = timeout(PAUSE / 2, locks.next()).await;
    assert!(at_once.is_err(), "it did not pause");
    assert_eq!(told_anew(&mut locks).await.len(), 2);
}

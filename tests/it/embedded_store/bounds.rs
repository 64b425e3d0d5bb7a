//! The store's history is bounded, and a request beyond it is refused.

use futures::{FutureExt as _, StreamExt as _};
use leasehold::protocol::token::Revision;
use leasehold::store::{LockEvent, LockWatch, StoreError};

use super::{Embedded, FIRST};
use crate::contract::resource;

/// The number of changes in the history, and the backlog of a watch.
const CHANGES: u64 = 4_096;
const BACKLOG: usize = 1_024;

/// Changes a lock this many times, alternately acquiring and releasing it.
async fn change(store: &Embedded, times: u64) {
    let mut lock = store.a.read(&resource("r")).await;
    for n in 0..times {
        let grant = format!("g-{n}");
        lock = match lock.value.grant.clone() {
            None => store.a.take(&lock, &grant).await,
            Some(held) => store.a.release(&lock, held.id.as_str()).await,
        };
    }
}

/// Returns the events that are ready, and whether the watch has ended after them.
fn told(watch: &mut LockWatch) -> (Vec<LockEvent>, bool) {
    let mut events = Vec::new();
    loop {
        match watch.next().now_or_never() {
            Some(Some(event)) => events.push(event.unwrap()),
            Some(None) => return (events, true),
            None => return (events, false),
        }
    }
}

#[tokio::test]
async fn watch_and_list_reach_back_as_far_as_the_kept_history() {
    let store = Embedded::in_memory();
    store.a.locks.create(&resource("r")).await.unwrap();
    store.a.locks.create(&resource("s")).await.unwrap();
    let page = store.a.locks.list(1, None).await.unwrap();
    change(&store, CHANGES).await;
    // The history contains exactly the changes after the list.
    let mut watch = store.a.watch(page.revision).await;
    let (events, _) = told(&mut watch);
    assert_eq!(events.len() as u64, CHANGES);
    let next = page.next.as_deref();
    let rest = store.a.locks.list(1, next).await.unwrap();
    assert_eq!((rest.items.len(), rest.revision), (1, page.revision));

    change(&store, 1).await;
    let session = &store.a.session().id;
    let refused = store.a.locks.watch(session, page.revision).await;
    assert!(matches!(refused, Err(StoreError::WatchExpired(_))));
    let refused = store.a.locks.list(1, next).await;
    assert!(matches!(refused, Err(StoreError::ContinueTokenExpired(_))));
    let after = Revision(page.revision.0 + 1);
    assert!(store.a.locks.watch(session, after).await.is_ok());
}

#[tokio::test]
async fn unread_watch_ends_after_delivering_its_backlog() {
    let store = Embedded::in_memory();
    store.a.locks.create(&resource("r")).await.unwrap();
    let mut watch = store.a.watch(FIRST).await;
    change(&store, BACKLOG as u64 + 10).await;
    let (events, is_over) = told(&mut watch);
    assert!(is_over && (BACKLOG..BACKLOG + 2).contains(&events.len()));
}

#[tokio::test]
async fn watch_without_events_delivers_bookmarks() {
    let store = Embedded::in_memory();
    store.a.locks.create(&resource("r")).await.unwrap();
    let session = "somebody-else-0".into();
    let watch = store.a.locks.watch(&session, FIRST).await;
    change(&store, 1_000).await;
    let (events, is_over) = told(&mut watch.unwrap());
    let mut last = FIRST;
    for event in &events {
        let LockEvent::Bookmark(at) = event else {
            panic!("{event:?}");
        };
        assert!(*at > last);
        last = *at;
    }
    assert!(!is_over && (2..10).contains(&events.len()), "{events:?}");
}

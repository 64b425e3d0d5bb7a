//! The watch of one session's locks delivers every event, in order, once, and no event of other
//! locks.

use futures::StreamExt as _;
use leasehold::protocol::token::Revision;
use leasehold::store::StoreError;

use super::{Adapter, PATIENCE, SILENCE, next_event, next_gone, next_held, resource};

pub(crate) async fn watch_delivers_changes_of_the_sessions_locks(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let start = a.mint().await.seen.highest();
    let (mut told_a, mut told_b) = (a.watch(start).await, b.watch(start).await);
    let held = a.make_and_take(&r, "g-a").await;
    let told = next_held(&mut told_a).await;
    assert_eq!((&told.value, told.version), (&held.value, held.version));

    // The object changed, and its holder still holds it.
    let queued = b.take(&held, "g-b").await;
    let told = next_held(&mut told_a).await;
    assert_eq!((&told.value, told.version), (&queued.value, queued.version));

    let handed = a.release(&told, "g-a").await;
    assert_eq!(next_gone(&mut told_a).await, (r.clone(), handed.version));
    let told = next_held(&mut told_b).await;
    assert_eq!((&told.value, told.version), (&handed.value, handed.version));

    let free = b.release(&told, "g-b").await;
    assert_eq!(next_gone(&mut told_b).await, (r, free.version));
}

pub(crate) async fn watch_delivers_a_deletion(adapter: &impl Adapter) {
    let (a, r) = (adapter.a(), resource("r"));
    let mut told = a.watch(a.mint().await.seen.highest()).await;
    let held = a.make_and_take(&r, "g-a").await;
    assert_eq!(next_held(&mut told).await.version, held.version);
    adapter.delete_held_lock(&r).await;
    let (gone, at) = next_gone(&mut told).await;
    assert!(gone == r && at > held.version);
}

pub(crate) async fn watch_delivers_writes_after_the_list(adapter: &impl Adapter) {
    let a = adapter.a();
    let before = a.make_and_take(&resource("before"), "g-0").await;
    let page = a.locks.list_held_by(&a.session_id()).await;
    let page = page.expect("a listing");
    assert_eq!(page.items.len(), 1);
    let one = a.make_and_take(&resource("one"), "g-1").await;
    let two = a.make_and_take(&resource("two"), "g-2").await;
    let freed = a.release(&before, "g-0").await;
    let mut told = a.watch(page.revision).await;
    assert_eq!(next_held(&mut told).await.version, one.version);
    assert_eq!(next_held(&mut told).await.version, two.version);
    let gone = (resource("before"), freed.version);
    assert_eq!(next_gone(&mut told).await, gone);
    let freed = a.release(&one, "g-1").await;
    let gone = (resource("one"), freed.version);
    assert_eq!(next_gone(&mut told).await, gone);
}

pub(crate) async fn watch_delivers_no_locks_of_other_sessions(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let mut told = a.watch(a.mint().await.seen.highest()).await;
    let others = b.make_and_take(&resource("others"), "g-1").await;
    a.sessions.create(&a.session()).await.expect("a session");
    let free = b.release(&others, "g-1").await;
    b.take(&free, "g-2").await;
    a.locks.create(&resource("free")).await.expect("a new lock");
    let mine = a.make_and_take(&resource("mine"), "g-3").await;
    // An event of another session would arrive first.
    assert_eq!(next_held(&mut told).await.version, mine.version);
}

pub(crate) async fn watch_from_a_compacted_revision_is_refused(adapter: &impl Adapter) {
    let a = adapter.a();
    a.make_and_take(&resource("r"), "g-a").await;
    let refused = match a.locks.watch(&a.session_id(), Revision(1)).await {
        Err(error) => error,
        Ok(mut told) => {
            let first = tokio::time::timeout(PATIENCE, told.next()).await;
            let first = first.expect("an answer in time").expect("an answer");
            first.expect_err("no event")
        }
    };
    assert!(
        matches!(refused, StoreError::WatchExpired(_)),
        "{refused:?}"
    );
}

/// An agent detects a restored store by reading its revision, never by the watch.
pub(crate) async fn watch_from_a_future_revision_is_open_and_silent(adapter: &impl Adapter) {
    let listed = adapter.a().locks.list(1, None).await.expect("a listing");
    let to_come = Revision(listed.revision.0 + 1_000_000);
    let mut watch = adapter.a().watch(to_come).await;
    adapter.a().make_and_take(&resource("r"), "g").await;
    let told = tokio::time::timeout(SILENCE, next_event(&mut watch)).await;
    assert!(told.is_err(), "{told:?}");
}

//! A lock that is being deleted while a finalizer keeps it: it vanishes with the finalizer, and a grant on it would
//! end without a record.

use super::waiting::{granted, request, spawn};
use super::*;

#[tokio::test(start_paused = true)]
async fn lock_being_deleted_is_granted_once_recreated() {
    let store = MemoryStore::default();
    let (a, b) = (
        Pod::in_paused_time("a", &store),
        Pod::in_paused_time("b", &store),
    );
    store.make_lock("r");
    store.begin_to_delete_lock("r");
    let tried = a.acquire("r").await;
    let words = tried.map_err(|error| error.to_string());
    assert!(
        matches!(&words, Err(words) if words.contains("was deleted")),
        "{words:?}"
    );
    let waiting = spawn(&b.agent, request("b", 240));
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!waiting.is_finished());
    assert!(a.is_free("r"), "a grant on it would end without a record");
    store.finish_to_delete_lock();
    granted(waiting).await;
    assert!(!a.is_free("r"));
}

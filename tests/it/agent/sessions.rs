//! When a session is renewed.

use std::time::Duration;

use leasehold::protocol::ids::SessionId;

use super::Pod;
use crate::memory_store::MemoryStore;

/// Takes a lock, releases it, and gives the session that it was for.
async fn use_once(pod: &Pod) -> SessionId {
    let lease = pod.lease("r").await;
    let session = pod.store.session_of("r").unwrap();
    pod.agent.release(&lease.lease).await.unwrap();
    session
}

/// The default TTL is 15 s: a session is renewed after 5 s, and after 12 s when nothing hangs on it;
/// with jitter after 4.5 and 10.8 s.
#[tokio::test(start_paused = true)]
async fn idle_session_in_use_again_is_renewed_after_an_earlier_loss() {
    let store = MemoryStore::default();
    let pod = Pod::in_paused_time("a", &store);
    let first = use_once(&pod).await;
    // Its renewal has seen that it is idle, and sleeps on.
    tokio::time::sleep(Duration::from_millis(5_200)).await;
    store.go_forward(1_000_000_000);
    pod.agent.locks("", 10, None).await.unwrap();
    let second = use_once(&pod).await;
    assert_ne!(first, second);
    tokio::time::sleep(Duration::from_millis(5_200)).await;
    let lease = pod.lease("r").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.session(&second).unwrap().renewals, 1);
    assert_eq!(store.session_of("r"), Some(second));
    assert!(pod.agent.renew(&lease.lease, None, pod.now()).is_ok());
}

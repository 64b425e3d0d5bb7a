//! The thread on which all leases of the process are kept, so that they need nothing from the app's
//! threads or its runtime.

use std::sync::OnceLock;
use std::thread;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Returns the thread's runtime.
///
/// # Panics
/// If the system has no thread or no event queue for it.
fn handle() -> &'static Handle {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("the system must have an event queue for the leases");
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("leasehold".into())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .expect("the system must have a thread for the leases");
        handle
    })
}

/// Runs a task on the thread, in the background.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    handle().spawn(task);
}

/// Runs a task on the thread, and returns its value. It continues if the caller leaves.
pub(crate) async fn run<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = oneshot::channel();
    spawn(async move {
        let _left = sender.send(task.await);
    });
    receiver
        .await
        .expect("a task on the thread must end with a value")
}

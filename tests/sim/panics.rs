//! Panics in the tasks of a world. The runtime catches them, so without this they would not be
//! noticed.

use std::cell::Cell;
use std::panic::{set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Starts to count the panics of this thread.
pub(crate) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let tell = take_hook();
        set_hook(Box::new(move |panic| {
            COUNT.set(COUNT.get() + 1);
            tell(panic);
        }));
    });
    COUNT.set(0);
}

/// Returns the flaw, if a task panicked since then.
pub(crate) fn flaw() -> Option<String> {
    let count = COUNT.get();
    (count > 0).then(|| format!("{count} tasks panicked"))
}

#[test]
fn panicking_task_is_detected() {
    watch();
    assert_eq!(flaw(), None);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let task = runtime.spawn(async { panic!("on purpose") });
    drop(runtime.block_on(task));
    assert!(flaw().is_some());
}

//! `wait`: each condition, met, met later and timed out.

use serde_json::json;

use super::Cluster;
use super::stub::{Change, Setup};

#[test]
fn condition_is_checked_once_without_time() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("wait-free", "wait catalog/reindex --for=free --timeout=0"),
        (
            "wait-free-absent",
            "wait no-such-lock --for free --timeout 0",
        ),
        ("wait-free-timeout", "wait orders --for=free --timeout=0"),
        ("wait-held", "wait orders --for=held --timeout=0"),
        (
            "wait-held-timeout",
            "wait catalog/reindex --for=held --timeout=0",
        ),
        (
            "wait-holder",
            "wait orders --for=holder=worker-1 --timeout=0",
        ),
        (
            "wait-holder-pod",
            "wait orders --for=holder=worker-a --timeout=0",
        ),
        (
            "wait-holder-timeout",
            "wait orders --for=holder=worker-b --timeout=0",
        ),
        (
            "wait-short-timeout",
            "wait orders --for=free --timeout=50ms",
        ),
        ("wait-bad-condition", "wait orders --for=gone"),
        ("wait-no-condition", "wait orders"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn condition_that_is_met_later_ends_the_wait() {
    let free = json!({"status": {"holder": null, "lease": null, "waiters": null}});
    let setup = Setup {
        on_watch: vec![Change {
            lock: "orders",
            patch: Some(free),
        }],
        ..Setup::default()
    };
    Cluster::with(setup).golden("wait-met-later", "wait orders --for=free");
    let setup = Setup {
        on_watch: vec![Change {
            lock: "orders",
            patch: None,
        }],
        ..Setup::default()
    };
    Cluster::with(setup).golden("wait-deleted-later", "wait orders --for=free");
    let setup = Setup {
        forbidden: vec!["watch distributedlocks"],
        ..Setup::default()
    };
    Cluster::with(setup).golden("wait-cannot-watch", "wait orders --for=free --timeout 2s");
}

//! The commands about one lock that only read: `why`, `describe` and `history`.

use super::Cluster;
use super::stub::Setup;

#[test]
fn why_explains_chains_and_possible_deadlocks() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("why-deadlock", "why account-1"),
        ("why-deadlock-json", "why account-1 -o json"),
        ("why-deadlock-from-outside", "why account-1 --pod worker-c"),
        ("why-chain", "why step-1"),
        ("why-chain-end", "why step-5 --pod stage-4"),
        ("why-queue", "why orders"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn why_says_where_a_pod_is_in_the_queue() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("why-pod-first", "why orders --pod worker-b"),
        ("why-pod-third", "why orders --pod worker-d"),
        ("why-pod-seventh", "why busy --pod client-7"),
        ("why-pod-holds", "why orders --pod worker-a"),
        ("why-pod-not-queued", "why orders --pod stage-1"),
        ("why-pod-yaml", "why orders --pod worker-c -o yaml"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn why_says_what_the_holder_does() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("why-free", "why catalog/reindex"),
        ("why-free-pod", "why never-used --pod worker-a"),
        ("why-free-json", "why catalog/reindex -o json"),
        ("why-kept", "why reports/daily"),
        ("why-unreadable", "why broken"),
        ("why-unreadable-json", "why broken -o json"),
        ("why-being-deleted", "why old-import"),
        ("why-crashing", "why invoices"),
        ("why-revoked", "why backup"),
        ("why-missing-session", "why cache"),
        ("why-recreated-pod", "why mail"),
        ("why-outside", "why laptop"),
        ("why-hostile", "why hostile"),
        ("why-hostile-pod", "why hostile --pod worker-e"),
    ] {
        cluster.golden(name, line);
    }
    let cluster = Cluster::with(Setup {
        without: Some("locksessions"),
        ..Setup::default()
    });
    cluster.golden("why-no-sessions", "why orders");
}

#[test]
fn describe_has_everything_about_a_lock() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("describe", "describe orders"),
        ("describe-free", "describe catalog/reindex"),
        (
            "describe-by-name",
            "describe catalog-reindex-7e7d654f5c83fc573bee",
        ),
        ("describe-never-used", "describe never-used"),
        ("describe-everything", "describe invoices"),
        ("describe-kept", "describe reports/daily"),
        ("describe-being-deleted", "describe old-import"),
        ("describe-unreadable", "describe broken"),
        ("describe-revoked", "describe backup"),
        ("describe-missing-session", "describe cache"),
        ("describe-outside", "describe laptop"),
        ("describe-hostile", "describe hostile"),
        ("describe-election", "describe election:billing"),
        ("describe-unknown", "describe no-such-lock"),
    ] {
        cluster.golden(name, line);
    }
}

#[test]
fn history_is_in_order() {
    let cluster = Cluster::sound();
    for (name, line) in [
        ("history", "history invoices"),
        ("history-no-headers", "history invoices --no-headers"),
        ("history-json", "history invoices -o json"),
        ("history-none", "history orders"),
        ("history-hostile", "history hostile"),
        ("history-unreadable", "history broken"),
    ] {
        cluster.golden(name, line);
    }
}

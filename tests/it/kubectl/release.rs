//! `release`: refused, tried, asked, forced and without an end.

use serde_json::{Value, json};

use super::Cluster;
use super::stub::{Change, Setup};

#[test]
fn release_that_is_not_confirmed_writes_nothing() {
    let cluster = Cluster::sound();
    for (name, line) in [
        (
            "release-free",
            "release catalog/reindex --reason test --yes",
        ),
        ("release-no-yes", "release orders --reason test"),
        (
            "release-no-yes-force",
            "release orders --reason test --force",
        ),
        (
            "release-dry-client",
            "release orders --reason test --dry-run=client",
        ),
        (
            "release-dry-client-json",
            "release orders --reason test --force --dry-run=client -o json",
        ),
        ("release-unreadable", "release broken --reason test --yes"),
        ("release-no-reason", "release orders --yes"),
        ("release-blank-reason", "release orders --yes --reason ' '"),
        (
            "release-unknown",
            "release no-such-lock --reason test --yes",
        ),
        ("release-kept", "release reports/daily --reason test"),
    ] {
        cluster.golden(name, line);
    }
    assert_eq!(cluster.stub.writes(), []);
}

#[test]
fn release_is_checked_by_the_api_server() {
    let cluster = Cluster::sound();
    cluster.golden(
        "release-dry-server",
        "release orders --reason test --dry-run=server",
    );
    let request =
        json!({"leaseId": "grant-worker-a", "mode": "Ask", "reason": "test", "actor": "jane"});
    let path = "/apis/leasehold.dev/v1alpha1/namespaces/shop/distributedlocks/orders?dryRun=All";
    let expected = json!({"spec": {"releaseRequest": request}});
    assert_eq!(cluster.stub.writes(), [(path.to_owned(), expected)]);
    let cluster = Cluster::with(Setup {
        forbidden: vec!["patch distributedlocks"],
        ..Setup::default()
    });
    cluster.golden("release-forbidden", "release orders --reason test --yes");
}

/// Returns the state of `orders` after its grant has ended.
fn ended(kind: &str, actor: &str, next: Option<&str>) -> Value {
    let incident = json!({
        "at": "2026-03-02T12:00:01Z", "kind": kind, "leaseId": "grant-worker-a", "token": 42, "ownerId": "worker-1",
        "pod": "worker-a", "actor": actor, "reason": "test",
    });
    let holder = next.map(|pod| json!({"ownerId": "worker-2", "pod": pod, "podUid": "uid-worker-b", "session": "worker-b-s"}));
    let lease = next.map(|_| json!({"id": "wait-worker-b", "acquiredAt": "2026-03-02T12:00:01Z"}));
    json!({"status": {"holder": holder, "lease": lease, "token": 43, "waiters": [], "incidents": [incident]}})
}

fn change(patch: Value) -> Vec<Change> {
    vec![Change {
        lock: "orders",
        patch: Some(patch),
    }]
}

#[test]
fn release_is_followed_to_its_end() {
    let asked = Setup {
        on_watch: change(ended("ReleasedOnRequest", "jane", Some("worker-b"))),
        ..Setup::default()
    };
    Cluster::with(asked).golden("release-asked", "release orders --reason test --yes");
    let forced = Setup {
        on_write: change(ended("ForceReleased", "jane", None)),
        ..Setup::default()
    };
    let cluster = Cluster::with(forced.clone());
    cluster.golden(
        "release-forced",
        "release orders --reason test --yes --force",
    );
    assert_eq!(
        cluster.stub.writes()[0].1["spec"]["releaseRequest"]["mode"],
        "Force"
    );
    Cluster::with(forced).golden(
        "release-forced-json",
        "release orders --reason test -y --force -o json",
    );
    let no_record = Setup {
        on_watch: change(json!({"status": {"holder": null, "lease": null, "waiters": null}})),
        ..Setup::default()
    };
    Cluster::with(no_record).golden("release-no-record", "release orders --reason test --yes");
    let deleted = Setup {
        on_write: vec![Change {
            lock: "orders",
            patch: None,
        }],
        ..Setup::default()
    };
    Cluster::with(deleted).golden("release-deleted", "release orders --reason test --yes");
}

#[test]
fn release_without_an_end_says_how_to_withdraw_it() {
    for (name, line) in [
        (
            "release-not-followed",
            "release orders --reason test --yes --timeout 0",
        ),
        (
            "release-timeout",
            "release orders --reason test --yes --timeout 100ms",
        ),
        (
            "release-force-timeout",
            "release orders --reason test --yes --force --timeout 100ms",
        ),
    ] {
        Cluster::sound().golden(name, line);
    }
}

//! The operator's port on the embedded store: the events of feeds, compare-and-swap writes, and the
//! effect of a restored backup on both. `e2e/fleet` has the same tests on a real API server.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::{PodRef, RenewalFailures, Revocation, RevokeReason, Session};
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::Token;
use leasehold::store::embedded::{EmbeddedStore, NAMESPACE};
use leasehold::store::fleet::{
    ContainerReport, Feed, FeedEvent, FleetStore, Object, ObjectRef, PodReport,
};
use leasehold::store::{LockStore, SessionStore, StoreError};
use tokio::time::timeout;

use super::FIRST;

fn store() -> EmbeddedStore {
    EmbeddedStore::in_memory(FIRST).unwrap()
}

fn resource(name: &str) -> Resource {
    Resource::parse(name).unwrap()
}

fn place(name: &str) -> ObjectRef {
    ObjectRef {
        namespace: NAMESPACE.into(),
        name: name.into(),
    }
}

fn session(name: &str) -> Session {
    Session {
        id: name.into(),
        pod: PodRef {
            name: "p".into(),
            uid: "u".into(),
            node: None,
        },
        ttl: SessionTtl::clamped(15),
        agent_version: "0".into(),
        renewals: 0,
        renewed_at: None,
        failures: RenewalFailures::default(),
        revoked: None,
    }
}

async fn make_lock(store: &EmbeddedStore, name: &str) {
    LockStore::create(store, &resource(name)).await.unwrap();
}

async fn lock(fleet: &dyn FleetStore, name: &str) -> Object<Lock> {
    fleet.lock(&place(name)).await.unwrap().unwrap()
}

/// The object of a feed's event.
trait About {
    fn name(&self) -> &str;
}

impl<T> About for Object<T> {
    fn name(&self) -> &str {
        &self.object_ref.name
    }
}

impl About for PodReport {
    fn name(&self) -> &str {
        &self.object_ref.name
    }
}

fn line<T: About>(told: &FeedEvent<T>) -> String {
    match told {
        FeedEvent::ListStarted => "anew".to_owned(),
        FeedEvent::Applied(object) => format!("there {}", object.name()),
        FeedEvent::Unreadable { object_ref, .. } => format!("unreadable {}", object_ref.name),
        FeedEvent::Deleted(place) => format!("gone {}", place.name),
        FeedEvent::ListDone => "complete".to_owned(),
        FeedEvent::Interrupted(error) => format!("interrupted: {error}"),
    }
}

/// Returns all events of a feed that are ready.
async fn lines<T: About>(feed: &mut Feed<T>) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Some(told)) = timeout(Duration::from_millis(1), feed.next()).await {
        lines.push(line(&told));
    }
    lines
}

#[tokio::test(start_paused = true)]
async fn feed_lists_locks_and_delivers_their_changes() {
    let store = store();
    make_lock(&store, "before").await;
    let mut locks = FleetStore::locks(&store);
    assert_eq!(
        lines(&mut locks).await,
        ["anew", "there before", "complete"]
    );
    make_lock(&store, "after").await;
    let made = locks.next().await.unwrap();
    let FeedEvent::Applied(made) = made else {
        panic!("{made:?}");
    };
    assert_eq!(
        (&made.object_ref, made.is_deleted),
        (&place("after"), false)
    );
    let read = lock(&store, "after").await;
    assert_eq!(
        (&read.uid, read.stored.version),
        (&made.uid, made.stored.version)
    );
    let next = Lock {
        token: Token::from_raw(5_000),
        ..made.stored.value.clone()
    };
    let written = store.update_lock(&made, &next).await.unwrap();
    assert_eq!((&written.uid, &written.stored.value), (&made.uid, &next));
    store.delete_lock(&resource("after")).await.unwrap();
    assert_eq!(lines(&mut locks).await, ["there after", "gone after"]);
}

#[tokio::test(start_paused = true)]
async fn feed_lists_sessions_and_delivers_their_changes() {
    let store = store();
    SessionStore::create(&store, &session("before"))
        .await
        .unwrap();
    let mut sessions = FleetStore::sessions(&store);
    let expected = ["anew", "there before", "complete"];
    assert_eq!(lines(&mut sessions).await, expected);
    let seen = store.session(&place("before")).await.unwrap().unwrap();
    let renewed = seen
        .stored
        .value
        .renewed(WallTime(1), RenewalFailures::default());
    store
        .update_session(&seen, &renewed.unwrap())
        .await
        .unwrap();
    let told = sessions.next().await.unwrap();
    assert!(matches!(&told, FeedEvent::Applied(session) if session.stored.value.renewals == 1));
    EmbeddedStore::delete_session(&store, &"before".into())
        .await
        .unwrap();
    assert_eq!(lines(&mut sessions).await, ["gone before"]);
}

#[tokio::test(start_paused = true)]
async fn of_a_renewal_and_a_revocation_on_one_version_one_wins() {
    let store = store();
    let id = session("s");
    SessionStore::create(&store, &id).await.unwrap();
    let seen = store.session(&place("s")).await.unwrap().unwrap();
    let revocation = Revocation {
        at: WallTime(1),
        by: "operator".into(),
        reason: RevokeReason::Expired,
    };
    let revoked = seen.stored.value.revoked(revocation).unwrap();
    let renewed = seen
        .stored
        .value
        .renewed(WallTime(1), RenewalFailures::default());
    SessionStore::update(&store, &seen.stored, &renewed.unwrap())
        .await
        .unwrap();
    let late = store.update_session(&seen, &revoked).await;
    assert_eq!(late.err(), Some(StoreError::Conflict));
    assert_eq!(
        FleetStore::delete_session(&store, &seen).await,
        Err(StoreError::Conflict)
    );
}

#[tokio::test(start_paused = true)]
async fn only_the_version_seen_is_deleted_and_a_recreated_one_differs() {
    let store = store();
    make_lock(&store, "l").await;
    let before = lock(&store, "l").await;
    let next = Lock {
        transitions: 1,
        ..before.stored.value.clone()
    };
    let seen = store.update_lock(&before, &next).await.unwrap();
    let delete = async |current: &Object<Lock>| {
        FleetStore::delete_lock(&store, &current.object_version()).await
    };
    assert_eq!(delete(&before).await, Err(StoreError::Conflict));
    let another = Object {
        uid: "another".into(),
        ..seen.clone()
    };
    assert_eq!(delete(&another).await, Err(StoreError::Conflict));
    assert_eq!(delete(&seen).await, Ok(()));
    assert!(matches!(delete(&seen).await, Err(StoreError::NotFound(_))));
    make_lock(&store, "l").await;
    let anew = lock(&store, "l").await;
    assert_ne!(anew.uid, seen.uid);
    assert_eq!(delete(&seen).await, Err(StoreError::Conflict));
    assert!(store.revision().await.unwrap() >= anew.stored.version);
}

#[tokio::test(start_paused = true)]
async fn other_namespaces_and_impossible_names_are_empty() {
    let store = store();
    make_lock(&store, "l").await;
    let id = session("s");
    SessionStore::create(&store, &id).await.unwrap();
    let lock = lock(&store, "l").await;
    let session = store.session(&place("s")).await.unwrap().unwrap();
    let elsewhere = |name: &str| ObjectRef {
        namespace: "another".into(),
        name: name.into(),
    };
    assert!(store.lock(&elsewhere("l")).await.unwrap().is_none());
    assert!(store.session(&elsewhere("s")).await.unwrap().is_none());
    assert!(store.lock(&place("no\nresource")).await.unwrap().is_none());
    let before = store.revision().await.unwrap();
    let moved = Object {
        object_ref: elsewhere("l"),
        ..lock
    };
    let moved_session = Object {
        object_ref: elsewhere("s"),
        ..session
    };
    let next = Lock {
        transitions: 1,
        ..moved.stored.value.clone()
    };
    for refused in [
        store.update_lock(&moved, &next).await.err(),
        store.update_session(&moved_session, &id).await.err(),
        FleetStore::delete_lock(&store, &moved.object_version())
            .await
            .err(),
        FleetStore::delete_session(&store, &moved_session)
            .await
            .err(),
    ] {
        assert!(
            matches!(refused, Some(StoreError::NotFound(_))),
            "{refused:?}"
        );
    }
    assert_eq!(store.revision().await.unwrap(), before);
}

fn pod(name: &str, is_terminal: bool) -> PodReport {
    PodReport {
        object_ref: place(name),
        uid: "u".into(),
        is_terminal,
        is_deleted: false,
        is_presumed: false,
        declared: 1,
        containers: vec![ContainerReport::Terminated],
    }
}

#[tokio::test(start_paused = true)]
async fn feed_delivers_only_ended_pods() {
    let store = store();
    store.report_pod(pod("runs", false));
    let mut pods = store.ended_pods();
    assert_eq!(lines(&mut pods).await, ["anew", "complete"]);
    store.report_pod(pod("ends", true));
    assert_eq!(
        store.pod(&place("ends")).await.unwrap(),
        Some(pod("ends", true))
    );
    // A later report says that the pod runs.
    store.report_pod(pod("ends", false));
    store.report_pod(pod("runs", true));
    store.forget_pod(&place("runs"));
    store.forget_pod(&place("ends"));
    let expected = ["there ends", "gone ends", "there runs", "gone runs"];
    assert_eq!(lines(&mut pods).await, expected);
    assert_eq!(store.pod(&place("ends")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn restored_backup_resets_the_store_and_feeds_relist() {
    let store = store();
    make_lock(&store, "kept").await;
    let kept = lock(&store, "kept").await;
    let backup = store.backup().await.unwrap();
    make_lock(&store, "lost").await;
    let lost = lock(&store, "lost").await;
    let mut locks = FleetStore::locks(&store);
    assert_eq!(lines(&mut locks).await.len(), 4);
    for (bump, revision) in [(1_000_000, FIRST.0 + 1 + 1_000_000), (0, FIRST.0 + 1)] {
        store.restore(&backup, bump).await.unwrap();
        let expected = ["anew", "there kept", "complete"];
        assert_eq!(lines(&mut locks).await, expected);
        assert_eq!(store.revision().await.unwrap().0, revision);
        let there = lock(&store, "kept").await;
        let (uid, version) = (&kept.uid, kept.stored.version);
        assert_eq!((&there.uid, there.stored.version), (uid, version));
    }
    // Without the bump a revision is used twice, but an object's uid is not.
    make_lock(&store, "lost").await;
    let again = lock(&store, "lost").await;
    assert_eq!(again.stored.version, lost.stored.version);
    assert_ne!(again.uid, lost.uid);
    // So a client that saw the lost object cannot write to the other one, by either port.
    let next = Lock {
        token: Token::from_raw(5_000),
        ..lost.stored.value.clone()
    };
    let late = store.update_lock(&lost, &next).await.err();
    assert_eq!(late, Some(StoreError::Conflict));
    let late = LockStore::update(&store, &lost.stored, &next).await.err();
    assert_eq!(late, Some(StoreError::Conflict));
    assert!(store.update_lock(&again, &next).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn release_request_survives_status_writes_and_a_wipe() {
    let store = store();
    make_lock(&store, "l").await;
    let seen = lock(&store, "l").await;
    let request = ReleaseRequest {
        lease: "g".into(),
        mode: ReleaseMode::Force,
        reason: "stuck".into(),
        actor: "jane".into(),
    };
    store
        .request_release(&resource("l"), Some(request.clone()))
        .await
        .unwrap();
    let asked = lock(&store, "l").await;
    let settings = asked.stored.value.settings.clone();
    assert_eq!(settings.release_request, Some(Arc::new(request)));
    // A status write does not change the request.
    let next = Lock {
        token: Token::from_raw(5_000),
        settings: seen.stored.value.settings.clone(),
        ..asked.stored.value.clone()
    };
    let written = store.update_lock(&asked, &next).await.unwrap();
    assert_eq!(written.stored.value.settings, settings);
    store.wipe_lock_status(&resource("l")).await.unwrap();
    let wiped = lock(&store, "l").await;
    assert_eq!(wiped.stored.value.token, Token::NONE);
    assert_eq!(wiped.stored.value.settings, settings);
    assert_eq!(wiped.uid, seen.uid);
    // A write without changes consumes no revision.
    let at = wiped.stored.version;
    let again = store.wipe_lock_status(&resource("l")).await.unwrap();
    assert_eq!((again.version, store.revision().await.unwrap()), (at, at));
    store.request_release(&resource("l"), None).await.unwrap();
    assert_eq!(
        lock(&store, "l").await.stored.value.settings,
        seen.stored.value.settings
    );
}

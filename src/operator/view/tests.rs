//! Tests what the view keeps of its observations, in any order of arrival.

use super::*;
use crate::operator::tests::{self, at, now};
use crate::protocol::ids::Resource;

fn object_ref(name: &str) -> ObjectRef {
    tests::object_ref("n", name)
}

fn applied<T>(namespace: &str, name: &str, version: u64, value: T) -> FeedEvent<Object<T>> {
    FeedEvent::Applied(Box::new(tests::object(namespace, name, version, value)))
}

fn lock(name: &str, version: u64) -> FeedEvent<Object<Lock>> {
    applied(
        "n",
        name,
        version,
        Lock::unheld(Resource::parse(name).unwrap()),
    )
}

fn version(view: &View, name: &str) -> Option<u64> {
    view.lock(&object_ref(name))
        .map(|observation| observation.version.0)
}

#[test]
fn newer_version_counts_in_any_order_of_arrival() {
    let mut view = View::default();
    view.observe_lock(lock("a", 7), now(1));
    view.take_changed();
    view.observe_lock(lock("a", 5), now(2));
    view.observe_lock(lock("a", 7), now(3));
    assert_eq!(version(&view, "a"), Some(7));
    assert_eq!(view.take_changed(), [], "nothing is new");
}

#[test]
fn relist_replaces_everything_seen_before() {
    let mut view = View::default();
    for event in [
        FeedEvent::ListStarted,
        lock("a", 5),
        lock("b", 9),
        FeedEvent::ListDone,
    ] {
        view.observe_lock(event, now(1));
    }
    // A restored store is older than what was observed.
    for event in [FeedEvent::ListStarted, lock("b", 4)] {
        view.observe_lock(event, now(2));
    }
    assert_eq!(version(&view, "a"), Some(5), "not before the list ends");
    view.observe_lock(FeedEvent::ListDone, now(2));
    assert_eq!((version(&view, "a"), version(&view, "b")), (None, Some(4)));
}

#[test]
fn idle_time_counts_from_the_first_observation() {
    let mut view = View::default();
    view.observe_lock(lock("a", 5), now(1));
    view.observe_lock(lock("a", 6), now(8));
    assert_eq!(view.lock(&object_ref("a")).unwrap().since, at(1));
    view.observe_lock(FeedEvent::Deleted(object_ref("a")), now(9));
    view.observe_lock(lock("a", 7), now(10));
    assert_eq!(view.lock(&object_ref("a")).unwrap().since, at(10));
}

#[test]
fn revision_below_the_highest_seen_is_detected() {
    let mut view = View::default();
    assert!(view.observe_revision(Revision(10), view.seen()));
    view.observe_lock(lock("a", 20), now(1));
    assert!(!view.observe_revision(Revision(15), view.seen()));
    assert!(view.observe_revision(Revision(20), view.seen()));
}

#[test]
fn view_is_complete_after_every_feed_was_listed_once() {
    let needed = || {
        FeedKind::ALL
            .into_iter()
            .filter(|kind| kind.is_needed_throughout())
    };
    let all = |view: &View| view.is_all_listed(needed());
    let mut view = View::default();
    view.observe_lock(FeedEvent::ListDone, now(1));
    view.observe_session(FeedEvent::ListDone, at(1));
    assert!(!all(&view));
    view.observe_pod(FeedEvent::ListDone);
    assert!(all(&view));
    view.observe_lock(FeedEvent::ListStarted, now(2));
    assert!(all(&view), "what is known suffices during a relist");
}

#[test]
fn unreadable_lock_is_kept_until_readable_or_deleted() {
    let mut view = View::default();
    let unreadable = |name| FeedEvent::Unreadable {
        object_ref: object_ref(name),
        uid: "u".into(),
        why: "why".into(),
        free: None,
    };
    view.observe_lock(unreadable("a"), now(1));
    view.observe_lock(unreadable("b"), now(1));
    assert_eq!(view.unreadable_locks().len(), 2);
    view.observe_lock(lock("a", 2), now(2));
    view.observe_lock(FeedEvent::Deleted(object_ref("b")), now(2));
    assert!(view.unreadable_locks().is_empty());
}

#[test]
fn list_is_compared_with_what_was_seen_before_its_request() {
    let mut view = View::default();
    assert!(view.observe_revision(Revision(5), view.seen()));
    let before = view.seen();
    // Written after the store had answered, and observed before that answer arrived.
    view.observe_lock(lock("a", 7), now(1));
    assert!(view.observe_revision(Revision(6), before));
    assert_eq!(view.seen(), Some(Seen::from_list(Revision(7))));
    assert!(!view.observe_revision(Revision(6), view.seen()));
}

#[test]
fn only_running_pods_without_their_sidecar_are_kept() {
    let asks = UninjectedPod::default();
    let over = UninjectedPod {
        has_ended: true,
        ..asks
    };
    let mirror = UninjectedPod {
        is_mirror: true,
        ..asks
    };
    let served = UninjectedPod {
        has_sidecar: true,
        ..asks
    };
    let mut view = View::default();
    for pod in [over, mirror, served] {
        view.observe_uninjected_pod(applied("n", "p", 1, pod));
        assert_eq!(view.take_changed(), [], "{pod:?}");
    }
    view.observe_uninjected_pod(applied("n", "p", 2, asks));
    assert_eq!(view.take_changed().len(), 1);
    assert_eq!(view.labelled().all_without_sidecar().count(), 1);
    view.observe_uninjected_pod(applied("n", "p", 3, over));
    assert_eq!(view.labelled().all_without_sidecar().count(), 0);
}

#[test]
fn pods_are_checked_after_their_namespace_is_labelled() {
    let mut view = View::default();
    for namespace in ["n", "m"] {
        view.observe_uninjected_pod(applied(namespace, "p", 1, UninjectedPod::default()));
    }
    view.take_changed();
    view.observe_namespace(applied("", "n", 1, ()));
    let mut pods = view.take_changed();
    pods.retain(|key| matches!(key, Key::UninjectedPod(_)));
    assert_eq!(pods, [Key::UninjectedPod(object_ref("p"))]);
}

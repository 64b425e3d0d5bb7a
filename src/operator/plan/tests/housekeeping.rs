//! Tests long-held locks, and the deletion of objects that are no longer needed.

use super::*;
use crate::protocol::completed::{Completed, Completion, CompletionKey};
use crate::store::fleet::UnreadableFreeLock;

#[test]
fn long_held_lock_is_marked_once_and_elections_only_by_spec() {
    let world = World::new()
        .session(session_of("a"), 0)
        .lock(held_by("a", &[]), 0);
    waits_until(&world.about_lock(1), 3_600);
    let (next, why) = writes(world.about_lock(3_600));
    assert_eq!(
        (next.long_held, why),
        (Some(at(3_600).wall), WriteReason::LongHeld)
    );
    assert_eq!(holder(&next), Some("a"), "the holder keeps it");
    let marked = world.lock(next, 3_600);
    assert!(marked.about_lock(9_999).action.is_none());

    let election = Lock {
        resource: Resource::parse("election:e").unwrap(),
        ..held_by("a", &[])
    };
    let asked_for = Lock {
        settings: Settings {
            long_held: Some(Duration::from_secs(5)),
            ..Settings::default()
        },
        ..election.clone()
    };
    let world = World::new().session(session_of("a"), 0).lock(election, 0);
    assert!(world.about_lock(9_999).action.is_none());
    let world = world.lock(asked_for, 0);
    assert_eq!(writes(world.about_lock(5)).1, WriteReason::LongHeld);
}

#[test]
fn new_operator_counts_the_holding_time_from_acquired_at() {
    // Held since second 0, observed since second 3,000. A clock that is ahead gains nothing.
    let world = World::new()
        .session(session_of("a"), 3_000)
        .lock(held_by("a", &[]), 3_000);
    waits_until(&world.about_lock(3_000), 3_600);
    let mut ahead = held_by("a", &[]);
    ahead.grant.as_mut().unwrap().acquired_at = at(90_000).wall;
    let world = World::new()
        .session(session_of("a"), 3_000)
        .lock(ahead, 3_000);
    waits_until(&world.about_lock(3_000), 6_600);
}

#[test]
fn long_held_condition_is_removed_from_a_free_lock() {
    let lock = Lock {
        long_held: Some(WallTime(1)),
        ..free_lock()
    };
    assert_eq!(
        writes(World::new().lock(lock, 0).about_lock(0)).0.long_held,
        None
    );
}

#[test]
fn idle_lock_is_deleted_in_time_unless_tokens_could_repeat() {
    let with_token = |token| Lock {
        token: Token::from_raw(token),
        ..free_lock()
    };
    let world = World::new().lock(with_token(99_000), 10);
    waits_until(&world.about_lock(10), 86_410);
    let step = world.about_lock(86_410);
    assert!(matches!(step.action, Some(Action::DeleteLock(_))));

    let high = World::new().lock(with_token(101_000), 10);
    let step = high.about_lock(86_410);
    assert!(
        step.action.is_none(),
        "its tokens reach to where the store is"
    );
    assert!(step.requeue_at.is_some());

    let soon = Lock {
        settings: Settings {
            retain: Some(Duration::from_secs(60)),
            ..Settings::default()
        },
        ..with_token(99_000)
    };
    let world = World::new().lock(soon, 10);
    waits_until(&world.about_lock(10), 70);
}

#[test]
fn lock_that_remembers_completed_work_is_kept_for_a_week() {
    let completion = Completion {
        key: CompletionKey::parse("k").unwrap(),
        at: WallTime(0),
        token: Token::from_raw(7_000),
        owner: "o".into(),
    };
    let remembers = Lock {
        completed: Completed::default().with(completion),
        ..free_lock()
    };
    let world = World::new().lock(remembers.clone(), 10);
    waits_until(&world.about_lock(10), 10 + 7 * 86_400);
    // Users decide for their lock.
    let soon = Lock {
        settings: Settings {
            retain: Some(Duration::from_secs(60)),
            ..Settings::default()
        },
        ..remembers
    };
    waits_until(&World::new().lock(soon, 10).about_lock(10), 70);
}

/// A lock that is free when the operator starts, `idle` seconds after a field of it was last set.
fn found_free(idle: i64) -> World {
    let mut world = World {
        view: View::default(),
        version: 100,
    };
    world.view.observe_revision(Revision(100), None);
    let lock = Object {
        set_at: Some(WallTime(at(0).wall.0 - idle * 1_000_000)),
        ..placed("r", free_lock(), 7)
    };
    let there = FeedEvent::Applied(Box::new(lock));
    [FeedEvent::ListStarted, there, FeedEvent::ListDone]
        .into_iter()
        .fold(world, |world, told| world.told(told, 0))
}

#[test]
fn restart_does_not_reset_how_long_a_lock_has_been_idle() {
    waits_until(&found_free(36_000).about_lock(0), 50_400);
    let long = found_free(900_000);
    waits_until(&long.about_lock(0), 600);
    let step = long.about_lock(600);
    assert!(matches!(step.action, Some(Action::DeleteLock(_))));
    // Set by a clock that is ahead of the operator's.
    waits_until(&found_free(-5_000).about_lock(0), 86_400);
}

#[test]
fn lock_seen_to_be_freed_is_idle_from_then_on() {
    let mut freed = placed("r", free_lock(), 200);
    freed.set_at = Some(WallTime(at(0).wall.0 - 900_000_000_000));
    let world = World::new()
        .session(session_of("a"), 0)
        .lock(held_by("a", &[]), 0)
        .told(FeedEvent::Applied(Box::new(freed)), 50);
    waits_until(&world.about_lock(50), 86_450);
}

fn unreadable(free: Option<UnreadableFreeLock>) -> FeedEvent<Object<Lock>> {
    FeedEvent::Unreadable {
        object_ref: object_ref("r"),
        uid: "uid-of-r".into(),
        why: "spec.resource: x".into(),
        free: free.map(Box::new),
    }
}

#[test]
fn unreadable_lock_is_deleted_when_it_is_certainly_free() {
    let free = UnreadableFreeLock {
        version: Revision(100),
        token: Token::from_raw(99_000),
        retain: Some(Duration::from_secs(60)),
        is_deleted: false,
        set_at: None,
    };
    let world = World::new().told(unreadable(Some(free.clone())), 10);
    waits_until(&world.about_lock(10), 70);
    // The same event arrives again, unchanged.
    let world = world.told(unreadable(Some(free.clone())), 50);
    let Some(Action::DeleteLock(deleted)) = world.about_lock(70).action else {
        panic!("it is not deleted");
    };
    assert_eq!(
        (deleted.version, &*deleted.uid),
        (Revision(100), "uid-of-r")
    );

    let kept = World::new().told(unreadable(None), 10);
    assert!(kept.about_lock(900_000).action.is_none());
    let high = UnreadableFreeLock {
        token: Token::from_raw(101_000),
        ..free
    };
    let high = World::new().told(unreadable(Some(high)), 10);
    assert!(
        high.about_lock(900_000).action.is_none(),
        "tokens would repeat"
    );
}

#[test]
fn ended_session_outlives_the_last_lock_that_named_it() {
    let world = World::new()
        .session(revoked("a", RevokeReason::Ended), 0)
        .lock(held_by("a", &[]), 0)
        .lock(free_lock(), 5_000);
    waits_until(&world.about_session("a", 5_000), 5_600);
}

#[test]
fn ended_session_is_deleted_after_no_lock_named_it_for_a_while() {
    let world = World::new().session(revoked("a", RevokeReason::Ended), 0);
    waits_until(&world.about_session("a", 0), 600);
    let step = world.about_session("a", 600);
    assert!(matches!(step.action, Some(Action::DeleteSession(_))));
    for lock in [held_by("a", &[]), held_by("b", &["a"])] {
        let named = World::new()
            .session(revoked("a", RevokeReason::Ended), 0)
            .lock(lock, 0);
        assert!(named.about_session("a", 9_999).action.is_none());
    }
}

#[test]
fn object_with_a_finalizer_is_deleted_once_and_still_reclaimed() {
    let world = World::new().lock_that_is(free_lock(), 0, true);
    assert!(world.about_lock(999_999).action.is_none());
    let world = World::new()
        .session(revoked("a", RevokeReason::PodEnded), 0)
        .lock_that_is(held_by("a", &[]), 0, true);
    assert_eq!(holder(&writes(world.about_lock(1)).0), None);

    let mut world = World::new().session(revoked("a", RevokeReason::Ended), 0);
    let delete = world.about_session("a", 600).action;
    assert!(matches!(delete, Some(Action::DeleteSession(_))));
    world.version += 1;
    let kept = Object {
        is_deleted: true,
        ..placed("a", revoked("a", RevokeReason::Ended), world.version)
    };
    let told = FeedEvent::Applied(Box::new(kept));
    world.view.observe_session(told, at(600).moment);
    assert!(world.about_session("a", 999_999).action.is_none());
}

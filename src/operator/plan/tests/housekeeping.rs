//! What is held for long, and what nobody needs any more.

use super::*;

#[test]
fn a_long_held_lock_is_marked_once_and_an_election_only_where_its_spec_says() {
    let world = World::new()
        .session(session_of("a"), 0)
        .lock(held_by("a", &[]), 0);
    waits_until(&world.about_lock(1), 3_600);
    let (next, why) = writes(world.about_lock(3_600));
    assert_eq!((next.long_held, why), (Some(at(3_600).wall), Why::LongHeld));
    assert_eq!(holder(&next), Some("a"), "nothing is taken from it");
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
    assert_eq!(writes(world.about_lock(5)).1, Why::LongHeld);
}

#[test]
fn a_new_operator_counts_how_long_a_lock_is_held_from_what_its_agent_wrote() {
    // Held since second 0, seen since second 3,000; an agent whose clock is ahead gains nothing.
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
fn a_mark_that_an_older_agent_left_on_a_free_lock_is_taken_away() {
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
fn an_idle_lock_is_deleted_when_its_time_is_up_and_no_token_can_be_repeated() {
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
    assert!(step.again.is_some());

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
fn an_ended_session_is_kept_for_a_while_after_the_last_lock_that_named_it() {
    let world = World::new()
        .session(revoked("a", RevokeReason::Ended), 0)
        .lock(held_by("a", &[]), 0)
        .lock(free_lock(), 5_000);
    waits_until(&world.about_session("a", 5_000), 5_600);
}

#[test]
fn an_ended_session_is_deleted_when_nothing_has_named_it_for_a_while() {
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
fn what_a_finalizer_keeps_is_deleted_once_and_what_it_holds_is_still_taken_from_the_dead() {
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
    let kept = Placed {
        is_deleted: true,
        ..placed("a", revoked("a", RevokeReason::Ended), world.version)
    };
    let told = Told::There(Box::new(kept));
    world.view.note_session(told, at(600).moment);
    assert!(world.about_session("a", 999_999).action.is_none());
}

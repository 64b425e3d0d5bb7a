//! Tests that a session belongs to the pod in its spec. A holder or waiter that names another pod's
//! session has no session.

use super::*;

/// Makes pod `m` the holder, in the session of `v`.
fn m_as_v(lock: &mut Lock) {
    lock.grant.as_mut().unwrap().holder.pod = claimant("m").pod;
}

/// Returns a lock that `m` holds in `v`'s session, with these waiters.
fn held_by_m_as_v(waiting: &[&str]) -> Lock {
    let mut lock = held_by("v", waiting);
    m_as_v(&mut lock);
    lock
}

#[test]
fn waiter_in_another_pods_session_is_skipped() {
    let mut lock = held_by("a", &["v", "b"]);
    let mut waiters = lock.waiters.entries().to_vec();
    waiters[0].claimant.pod = claimant("m").pod;
    lock.waiters = Queue::from_entries(waiters);
    let world = World::new()
        .session(session_of("v"), 0)
        .session(session_of("b"), 0)
        .session(session_of("a"), 0)
        .lock(lock, 0)
        .session(session_of("v"), 20)
        .session(session_of("b"), 20)
        .session(revoked("a", RevokeReason::Expired), 21);
    assert_eq!(holder(&writes(world.about_lock(21)).0), Some("b"));
}

#[test]
fn lock_held_in_another_pods_session_is_taken_after_its_ttl() {
    let world = World::new()
        .session(session_of("v"), 0)
        .lock(held_by_m_as_v(&["b"]), 0)
        .session(session_of("b"), 15)
        .session(session_of("v"), 15);
    waits_until(&world.about_lock(15), 21);
    let (next, _) = writes(world.about_lock(21));
    assert_eq!(holder(&next), Some("b"));
    let [incident] = &next.incidents[..] else {
        panic!("{:?}", next.incidents);
    };
    let words = "session v belongs to another pod than m";
    assert_eq!(&*incident.reason, words);
}

#[test]
fn namesake_of_a_missing_session_keeps_no_lock() {
    let mut namesake = session_of("v");
    namesake.pod = claimant("m").pod;
    let world = World::new()
        .session(session_of("v"), 0)
        .lock(held_by("v", &[]), 0)
        .no_session("v", 10)
        .session(namesake.clone(), 12)
        .session(namesake, 30);
    waits_until(&world.about_lock(30), 31);
    assert_eq!(holder(&writes(world.about_lock(31)).0), None);
}

#[test]
fn namesake_seen_first_ends_no_grant_before_the_ttl() {
    let mut namesake = session_of("v");
    namesake.pod = claimant("m").pod;
    let world = World::new()
        .lock(held_by("v", &[]), 0)
        .session(namesake, 10);
    waits_until(&world.about_lock(10), 31);
}

#[test]
fn claim_in_another_pods_session_does_not_keep_its_object() {
    let world = World::new()
        .session(revoked("v", RevokeReason::Ended), 0)
        .lock(held_by_m_as_v(&[]), 0);
    let step = world.about_session("v", 600);
    assert!(matches!(step.action, Some(Action::DeleteSession(_))));
}

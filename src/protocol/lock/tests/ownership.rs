//! Which session and pod a grant belongs to, and which locks are never granted.

use super::*;

/// Every pod can read the id, and a store without policies accepts it from every pod.
#[test]
fn grant_of_another_session_or_pod_is_foreign_with_any_id() {
    let own = claim(1, "g1");
    let mut other_pod = own.clone();
    other_pod.claimant.pod.uid = "m".into();
    for holder in [other_pod, claim(2, "g1")] {
        let lock = granted(free().acquire(Revision(10), &mint(), &holder));
        let again = lock.acquire(Revision(11), &mint(), &own);
        assert_eq!(again, Decision::Refused(Refusal::Held));
        assert!(!lock.is_held_by(&key(1)) && lock.names_grant(&"g1".into()));
        assert_eq!(
            lock.release(Revision(11), &mint(), &key(1), WallTime(1)),
            None
        );
        assert_eq!(lock.rebase(Revision(11), &mint(), &key(1)), Ok(None));
        let named = Claim {
            claimant: Claimant {
                owner: OwnerId::from("o9"),
                ..own.claimant.clone()
            },
            ..own.clone()
        };
        assert_eq!(lock.in_the_name_of(&named), None);
    }
    let waiting = queued(&held(3, "g3"), 2, "g2");
    let mut foreign = claim(2, "g2");
    foreign.claimant.pod.uid = "m".into();
    assert_eq!(waiting.leave_queue(&foreign.key()), None);
}

/// The object disappears with its finalizer, and a grant on it would end without a record.
#[test]
fn no_grant_on_an_object_being_deleted() {
    let deleted = |lock: Lock| Lock {
        settings: Settings {
            is_being_deleted: true,
            ..Settings::default()
        },
        ..lock
    };
    let (at, mint) = (Revision(11), mint());
    let claimed = deleted(free()).acquire_or_queue(at, &mint, &claim(1, "g1"));
    assert_eq!(claimed, Decision::Refused(Refusal::BeingDeleted));
    let line = deleted(queued(&held(1, "g1"), 2, "g2"));
    let released = line.release(at, &mint, &key(1), WallTime(1)).unwrap();
    assert!(released.grant.is_none() && released.waiters.is_empty());
    let taker = claim(3, "g3");
    let lock = deleted(held(1, "g1"));
    let after = lock.take_over(at, &mint, |_| true, &ending(), Some(&taker));
    assert_eq!(after.unwrap().grant, None);
}

#[test]
fn only_its_own_grant_id_releases_a_lock() {
    let lock = queued(&held(1, "g1"), 2, "g2");
    for stranger in ["g2", "g3", ""] {
        let stranger = claim(1, stranger).key();
        let released = lock.release(Revision(11), &mint(), &stranger, WallTime(1));
        assert_eq!(released, None, "{stranger:?}");
    }
}

//! What claims write, and what they do about unknown outcomes, expired holders and errors.

use super::acquiring::{held_by, held_by_another, waiting};
use super::leases::{SECOND, request};
use super::releases::{found, lock, resource};
use super::*;
use crate::agent::api::Acquired;
use crate::protocol::object::LockAtRevision;
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::token::Token;

impl Rig {
    /// Returns the session of the lock's other holder.
    pub(super) fn others(&self, version: u64) -> Stored<Session> {
        let mut session = self.core.live().unwrap().stored().value.clone();
        session.id = SessionId::from("another's");
        session.pod.uid = "another".into();
        session.renewed_at = Some(WallTime(0));
        stored(session, version)
    }

    /// Queues a caller, and observes the holder's silence until it may be revoked. Returns the entry and
    /// the revocation.
    pub(super) fn queued_until_revocation(&mut self) -> (CallId, Waiter, OpId, Session) {
        let (call, waiter) = self.queued(waiting(600));
        loop {
            self.sleep_until_due();
            while self.calls() > 0 {
                match self.call() {
                    (op, StoreCall::GetSession(_)) => {
                        let session = self.others(9);
                        self.answer(op, Answer::Session(Some(Box::new(session))));
                    }
                    (op, StoreCall::GetLock(_)) => {
                        self.answer(op, found(held_by_another(vec![waiter.clone()], 21)));
                    }
                    (op, StoreCall::UpdateSession(current, next)) if next.revoked.is_some() => {
                        assert_eq!(current.version, Revision(9));
                        return (call, waiter, op, *next);
                    }
                    (op, StoreCall::UpdateSession(_, next)) => {
                        self.answer(op, written(*next, 12));
                    }
                    (_, call) => panic!("{call:?}"),
                }
            }
        }
    }
}

#[test]
fn expired_holder_is_revoked_before_the_lock_is_written() {
    let mut rig = Rig::with_session();
    let since = rig.now;
    let (call, waiter, op, session) = rig.queued_until_revocation();
    assert!(rig.now.since(since) >= SECOND * 15, "a full TTL of silence");
    assert_eq!(rig.calls(), 0);
    rig.answer(op, written(session, 30));
    let (op, version, next) = rig.lock_write();
    assert_eq!(version, Revision(21));
    assert_eq!(
        next.grant.as_ref().map(|grant| &grant.id),
        Some(&waiter.grant)
    );
    let taken = Stored {
        value: next,
        ..held_by(&waiter, 31)
    };
    rig.answer(op, found(taken));
    assert!(rig.is_granted(call));
}

#[test]
fn conflict_on_the_revocation_takes_nothing_over() {
    let mut rig = Rig::with_session();
    let (call, _, op, _) = rig.queued_until_revocation();
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    rig.sleep_until_due();
    rig.lock_read();
    assert!(rig.acquired(call).is_none());
}

#[test]
fn refused_revocation_stops_judging_for_a_minute() {
    let mut rig = Rig::with_session();
    let (call, _, op, _) = rig.queued_until_revocation();
    let denied = StoreError::DeniedByPolicy("strict".into());
    rig.answer(op, Answer::Failed(denied));
    let until = rig.now.after(SECOND * 50);
    while rig.now < until {
        rig.sleep_until_due();
        while rig.calls() > 0 {
            match rig.call() {
                (op, StoreCall::GetLock(_)) => {
                    rig.answer(op, unavailable());
                }
                (op, StoreCall::UpdateSession(_, next)) if next.revoked.is_none() => {
                    rig.answer(op, written(*next, 40));
                }
                (_, call) => panic!("{call:?}"),
            }
        }
    }
    assert!(rig.acquired(call).is_none());
}

#[test]
fn unclear_grant_is_read_and_not_written_again() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(waiting(60));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let (op, _, next) = rig.lock_write();
    rig.answer(op, unclear());
    rig.sleep_until_due();
    let op = rig.lock_read();
    let landed = Stored {
        value: next,
        ..lock(None, 21)
    };
    rig.answer(op, found(landed));
    assert!(rig.is_granted(call));
    assert_eq!(rig.calls(), 0);
}

#[test]
fn session_that_is_lost_in_the_queue_makes_another_claim() {
    let mut rig = Rig::with_session();
    let (call, waiter) = rig.queued(waiting(600));
    rig.effects.clear();
    rig.now = rig.valid_until();
    rig.timer();
    assert!(rig.acquired(call).is_none());
    let mut is_looked_for = false;
    while rig.acquired(call).is_none() {
        if rig.calls() == 0 {
            rig.sleep_until_due();
            continue;
        }
        match rig.call() {
            (op, StoreCall::GetLock(_)) => {
                is_looked_for = true;
                rig.answer(op, found(held_by_another(Vec::new(), 30)));
            }
            (op, StoreCall::GetLockWithRevision(_)) => {
                let free = Box::new(LockAtRevision {
                    lock: Some(lock(None, 40)),
                    revision: Revision(41),
                });
                rig.answer(op, Answer::LockWithRevision(free));
            }
            (op, StoreCall::CreateSession(session)) => rig.answer(op, written(*session, 42)),
            (op, StoreCall::UpdateLock(_, next)) => {
                let grant = next.grant.as_ref().map(|grant| grant.id.clone());
                assert_ne!(grant, Some(waiter.grant.clone()));
                let taken = Stored {
                    value: *next,
                    ..lock(None, 43)
                };
                rig.answer(op, found(taken));
            }
            // The session that was lost is revoked.
            (op, _) => rig.answer(op, unavailable()),
        }
    }
    assert!(rig.is_granted(call) && is_looked_for);
}

#[test]
fn token_from_before_a_restore_is_raised_before_the_lease() {
    // The pod that handed it over had not seen yet that a backup was restored.
    let mut rig = Rig::with_session_at(300_000_000);
    let (call, waiter) = rig.queued(waiting(60));
    rig.effects.clear();
    rig.hand_over(&waiter, 300_000_030);
    assert!(rig.acquired(call).is_none());
    let raised = rig.write_lands(300_000_031);
    assert!(raised.token > Token::from_raw(300_000_000_000));
    let Some(Ok(Acquired::Granted { lease, .. })) = rig.acquired(call) else {
        panic!("{:?}", rig.acquired(call));
    };
    assert_eq!(lease.token, raised.token);
}

#[test]
fn own_grant_without_a_lease_is_released_when_seen_twice() {
    let mut rig = Rig::with_session();
    rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(rig.own(resource(), "orphan", 20)));
    assert_eq!(rig.calls(), 0, "a release of it may be done by now");
    rig.sleep_until_due();
    let op = rig.lock_read();
    rig.answer(op, found(rig.own(resource(), "orphan", 20)));
    let release = rig.lock_read();
    rig.answer(release, found(rig.own(resource(), "orphan", 20)));
    let (_, _, next) = rig.lock_write();
    assert_eq!(next.grant.map(|grant| grant.id), None);
}

#[test]
fn hand_over_that_is_reported_during_the_join_is_served() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(waiting(60));
    let op = rig.lock_read();
    rig.answer(op, found(held_by_another(Vec::new(), 20)));
    let (op, _, waiter) = rig.join();
    rig.hand_over(&waiter, 30);
    assert!(rig.acquired(call).is_none(), "the join is not answered yet");
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    assert!(rig.is_granted(call));
}

#[test]
fn queue_that_changes_while_it_is_judged_costs_no_place() {
    let mut rig = Rig::with_session();
    let (call, waiter) = rig.queued(waiting(60));
    rig.effects.clear();
    rig.sleep_until_due();
    while rig.calls() > 0 {
        match rig.call() {
            (op, StoreCall::GetLock(_)) => {
                let mut entries = vec![waiter.clone()];
                entries.push(Waiter {
                    grant: "later".into(),
                    claimant: super::releases::claimant("later's"),
                    ..waiter.clone()
                });
                let mut seen = held_by_another(Vec::new(), 25);
                seen.value.waiters = Queue::from_entries(entries);
                rig.answer(op, found(seen));
            }
            (op, _) => rig.answer(op, unavailable()),
        }
    }
    assert!(rig.acquired(call).is_none());
    rig.hand_over(&waiter, 30);
    assert!(rig.is_granted(call));
}

#[test]
fn refusal_by_policy_ends_only_the_first_caller() {
    let mut rig = Rig::with_session();
    let first = rig.acquire(request(resource()));
    let second = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let (op, ..) = rig.lock_write();
    let denied = StoreError::DeniedByPolicy("no owner".into());
    rig.answer(op, Answer::Failed(denied.clone()));
    assert_eq!(rig.acquired(first), Some(Err(denied.into())));
    assert!(rig.acquired(second).is_none());
}

#[test]
fn created_lock_is_read_after_an_unclear_grant() {
    let mut rig = Rig::with_session();
    rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, Answer::Lock(None));
    let (op, _) = rig.call();
    rig.answer(op, found(lock(None, 20)));
    let (op, ..) = rig.lock_write();
    rig.answer(op, unclear());
    rig.sleep_until_due();
    rig.lock_read();
}

#[test]
fn lost_race_of_a_try_leaves_nothing_to_look_for() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let (op, ..) = rig.lock_write();
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    rig.sleep_until_due();
    let op = rig.lock_read();
    rig.answer(op, found(held_by_another(Vec::new(), 21)));
    let judged = rig.read();
    rig.answer(judged, Answer::Session(None));
    assert!(rig.is_held(call));
    assert_eq!((rig.calls(), rig.core.releases.len()), (0, 0));
}

#[test]
fn try_does_not_call_an_own_grant_held_that_is_being_released() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(request(resource()));
    let until = rig.now.after(SECOND * 5);
    while rig.acquired(call).is_none() && rig.now <= until {
        while rig.calls() > 0 {
            match rig.call() {
                (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 12)),
                (op, StoreCall::GetLock(_)) => {
                    rig.answer(op, found(rig.own(resource(), "orphan", 20)));
                }
                (op, _) => rig.answer(op, Answer::Failed(StoreError::Denied("no".into()))),
            }
        }
        rig.sleep_until_due();
    }
    let Some(Err(AcquireError::Store(error))) = rig.acquired(call) else {
        panic!("{:?}", rig.acquired(call));
    };
    assert!(error.to_string().contains("kept changing"), "{error}");
}

#[test]
fn reported_grant_that_a_newer_read_lacks_is_not_served() {
    let mut rig = Rig::with_session();
    let (call, waiter) = rig.queued(waiting(600));
    rig.effects.clear();
    let op = loop {
        rig.sleep_until_due();
        match rig.call() {
            (op, StoreCall::GetLock(_)) => break op,
            (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 12)),
            (op, _) => rig.answer(op, Answer::Session(None)),
        }
    };
    rig.hand_over(&waiter, 30);
    rig.answer(op, found(held_by_another(Vec::new(), 31)));
    assert!(rig.acquired(call).is_none());
    assert_eq!(rig.core.own.len(), 0);
}

#[test]
fn outage_refuses_only_those_who_have_waited_for_long() {
    let mut rig = Rig::with_session();
    let first = rig.acquire(waiting(60));
    let since = rig.now;
    let mut late = None;
    while rig.acquired(first).is_none() {
        assert!(rig.now.since(since) < SECOND * 8);
        if rig.calls() == 0 {
            rig.sleep_until_due();
        } else {
            let (op, _) = rig.call();
            rig.answer(op, unavailable());
        }
        if late.is_none() && rig.now.since(since) > SECOND * 4 {
            late = Some(rig.acquire(waiting(60)));
        }
    }
    assert!(rig.now.since(since) >= SECOND * 5);
    assert!(rig.acquired(late.unwrap()).is_none());
}

#[test]
fn grant_of_a_session_that_is_lost_meanwhile_begins_no_other() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let (op, _, next) = rig.lock_write();
    // The revision leaps: the store was restored.
    let landed = Stored {
        value: next,
        ..lock(None, 300_000_000)
    };
    rig.answer(op, found(landed));
    assert_eq!(rig.acquired(call), Some(Err(AcquireError::SessionLost)));
    let begins = |effect: &Effect| {
        matches!(
            effect,
            Effect::Call {
                call: StoreCall::CreateSession(_) | StoreCall::ListOne,
                ..
            }
        )
    };
    assert!(!rig.effects.iter().any(begins));
}

#[test]
fn entry_that_a_read_lacks_is_not_joined_by_the_same_id() {
    let mut rig = Rig::with_session();
    let (call, waiter) = rig.queued(waiting(600));
    let next = loop {
        if rig.calls() == 0 {
            rig.sleep_until_due();
        }
        match rig.call() {
            // It was handed the lock and lost it again, and no watch has reported that.
            (op, StoreCall::GetLock(_)) => {
                rig.answer(op, found(held_by_another(Vec::new(), 40)));
            }
            (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 12)),
            (_, StoreCall::JoinLock(_, next)) => break next,
            (op, _) => rig.answer(op, Answer::Session(None)),
        }
    };
    assert_ne!(next.grant, waiter.grant);
    assert!(rig.acquired(call).is_none());
}

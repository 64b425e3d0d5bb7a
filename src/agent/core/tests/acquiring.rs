//! How callers get locks.

use super::leases::{SECOND, request};
use super::releases::{claimant, found, lock, resource};
use super::*;
use crate::agent::api::{AcquireRequest, Acquired, Life};
use crate::protocol::object::{LockAtRevision, LockEvent};
use crate::protocol::queue::{Queue, Waiter};

pub(super) fn waiting(seconds: u32) -> AcquireRequest {
    AcquireRequest {
        wait: SECOND * seconds,
        ..request(resource())
    }
}

/// Returns the lock as another session holds it, with a queue.
pub(super) fn held_by_another(waiters: Vec<Waiter>, version: u64) -> Stored<Lock> {
    let mut stored = lock(Some("another"), version);
    if let Some(grant) = &mut stored.value.grant {
        grant.holder = claimant("another's");
        grant.holder.pod.uid = "another".into();
    }
    stored.value.waiters = Queue::from_entries(waiters);
    stored
}

/// Returns the lock as a waiter holds it that it was handed over to.
pub(super) fn held_by(waiter: &Waiter, version: u64) -> Stored<Lock> {
    let mut stored = lock(Some(waiter.grant.as_str()), version);
    if let Some(grant) = &mut stored.value.grant {
        grant.holder = waiter.claimant.clone();
    }
    stored
}

impl Rig {
    pub(super) fn acquire(&mut self, request: AcquireRequest) -> CallId {
        self.last_call += 1;
        let call = CallId(self.last_call);
        let arrived = self.now;
        self.feed(Input::Acquire(call, Box::new(request), arrived));
        call
    }

    pub(super) fn acquired(&self, call: CallId) -> Option<Result<Acquired, AcquireError>> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Reply(to, Reply::Acquired(outcome)) if *to == call => Some((**outcome).clone()),
            _ => None,
        })
    }

    pub(super) fn is_granted(&self, call: CallId) -> bool {
        matches!(self.acquired(call), Some(Ok(Acquired::Granted { .. })))
    }

    pub(super) fn is_held(&self, call: CallId) -> bool {
        matches!(self.acquired(call), Some(Ok(Acquired::Held(_))))
    }

    /// Takes a write of the lock, and answers it with what was written.
    pub(super) fn write_lands(&mut self, version: u64) -> Lock {
        let (op, _, next) = self.lock_write();
        let stored = Stored {
            value: next.clone(),
            version: Revision(version),
            original: Original::new(()),
        };
        self.answer(op, found(stored));
        next
    }

    /// Takes a join: its entry.
    pub(super) fn join(&mut self) -> (OpId, Revision, Waiter) {
        match self.call() {
            (op, StoreCall::JoinLock(current, waiter)) => (op, current.version, *waiter),
            (_, call) => panic!("{call:?}"),
        }
    }

    /// The watch reports that the lock was handed over to a waiter.
    pub(super) fn hand_over(&mut self, waiter: &Waiter, version: u64) {
        let event = LockEvent::Held(Box::new(held_by(waiter, version)));
        let id = self.core.watching.id().unwrap();
        self.feed(Input::Watch(id, WatchInput::Event(event)));
    }

    /// Queues a caller for a lock that another session holds; returns its entry.
    pub(super) fn queued(&mut self, call: AcquireRequest) -> (CallId, Waiter) {
        let call = self.acquire(call);
        let op = self.lock_read();
        self.answer(op, found(held_by_another(Vec::new(), 20)));
        let (op, _, waiter) = self.join();
        self.answer(op, found(held_by_another(vec![waiter.clone()], 21)));
        (call, waiter)
    }
}

#[test]
fn new_lock_without_a_session_costs_four_calls() {
    let mut rig = Rig::new();
    let call = rig.acquire(request(resource()));
    let (op, look) = rig.call();
    assert!(matches!(look, StoreCall::GetLockWithRevision(_)));
    rig.answer(
        op,
        Answer::LockWithRevision(Box::new(LockAtRevision {
            lock: None,
            revision: Revision(10),
        })),
    );
    let (op, create) = rig.call();
    assert!(matches!(create, StoreCall::CreateLock(_)));
    rig.answer(op, found(lock(None, 11)));
    let (op, session) = rig.created();
    rig.answer(op, written(session, 12));
    rig.write_lands(13);
    assert!(rig.is_granted(call));
}

#[test]
fn refused_try_costs_one_read_and_no_session() {
    let mut rig = Rig::new();
    let call = rig.acquire(request(resource()));
    let (op, _) = rig.call();
    rig.answer(
        op,
        Answer::LockWithRevision(Box::new(LockAtRevision {
            lock: Some(held_by_another(Vec::new(), 9)),
            revision: Revision(10),
        })),
    );
    // Peer mode: its holder's session says what keeps it.
    let read = rig.read();
    rig.answer(read, Answer::Session(None));
    assert!(rig.is_held(call));
    assert_eq!(rig.calls(), 0);
    assert_eq!(rig.core.acquiring.len(), 0);
}

#[test]
fn hand_over_that_the_watch_reports_costs_no_call() {
    let mut rig = Rig::with_session();
    let (call, waiter) = rig.queued(waiting(60));
    assert!(rig.acquired(call).is_none());
    rig.effects.clear();
    rig.hand_over(&waiter, 30);
    assert!(rig.is_granted(call));
    assert_eq!(rig.calls(), 0);
}

#[test]
fn lost_race_for_a_free_lock_leads_to_a_join_without_a_read() {
    let mut rig = Rig::with_session();
    rig.acquire(waiting(60));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let (op, ..) = rig.lock_write();
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    let (_, version, _) = rig.join();
    assert_eq!(version, Revision(20));
}

#[test]
fn caller_whose_time_is_up_is_told_who_holds_the_lock() {
    let mut rig = Rig::with_session();
    let (call, _) = rig.queued(waiting(2));
    rig.sleep(SECOND * 2);
    assert!(rig.is_held(call));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 40)));
    assert_eq!(rig.core.acquiring.len(), 0, "its entry is looked for");
}

#[test]
fn callers_of_one_lock_are_served_in_order_from_one_grant() {
    let mut rig = Rig::with_session();
    let first = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    rig.write_lands(21);
    assert!(rig.is_granted(first));
    let second = rig.acquire(waiting(60));
    let third = rig.acquire(request(resource()));
    assert!(rig.is_held(third), "this pod holds it itself");
    assert_eq!(rig.calls(), 0);
    let Some(Ok(Acquired::Granted { lease, .. })) = rig.acquired(first) else {
        panic!("it is granted");
    };
    let end = crate::agent::core::leases::EndedBy::App;
    rig.with(|core, cx| core.leases(cx).end(&lease.lease, end, CallId(99)));
    assert!(rig.is_granted(second));
    assert_eq!(rig.calls(), 0, "the grant serves the next caller");
}

#[test]
fn hang_up_during_the_write_leaves_no_grant() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    rig.feed(Input::HangUp(call));
    let next = rig.write_lands(21);
    let op = rig.lock_read();
    let mut held = lock(None, 21);
    held.value = next;
    rig.answer(op, found(held));
    let released = rig.write_lands(22);
    assert_eq!(released.grant, None);
}

#[test]
fn repeated_request_joins_the_first_and_gets_its_lease() {
    let mut rig = Rig::with_session();
    let mut with_id = waiting(60);
    with_id.request_id = Some("r1".into());
    let (first, waiter) = rig.queued(with_id.clone());
    let again = rig.acquire(with_id.clone());
    assert_eq!(rig.core.acquiring.len(), 1);
    with_id.keep = SECOND;
    let another = rig.acquire(with_id);
    assert_eq!(
        rig.acquired(another),
        Some(Err(AcquireError::RequestIdReused))
    );
    rig.hand_over(&waiter, 30);
    assert!(rig.is_granted(first) && rig.is_granted(again));
}

#[test]
fn try_that_arrives_during_a_read_gets_the_next_read() {
    let mut rig = Rig::with_session();
    let first = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.now = rig.now.after(SECOND / 10);
    let second = rig.acquire(request(resource()));
    rig.answer(op, found(held_by_another(Vec::new(), 20)));
    let judged = rig.read();
    rig.answer(judged, Answer::Session(None));
    assert!(rig.is_held(first) && !rig.is_held(second));
    let op = rig.lock_read();
    rig.answer(op, found(held_by_another(Vec::new(), 20)));
    let judged = rig.read();
    rig.answer(judged, Answer::Session(None));
    assert!(rig.is_held(second));
    assert_eq!(rig.core.acquiring.len(), 0);
}

#[test]
fn read_of_a_caller_that_hung_up_serves_the_next() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(waiting(60));
    let op = rig.lock_read();
    rig.feed(Input::HangUp(call));
    assert_eq!(rig.core.acquiring.len(), 1, "its call is in flight");
    let next = rig.acquire(waiting(60));
    assert_eq!(rig.calls(), 0);
    rig.answer(op, found(lock(None, 20)));
    rig.write_lands(21);
    assert!(rig.is_granted(next));

    let call = rig.acquire(waiting(60));
    rig.feed(Input::HangUp(call));
    assert_eq!(rig.core.acquiring.len(), 0);
}

#[test]
fn waiter_on_its_own_pods_lock_does_not_count_itself() {
    let mut rig = Rig::with_session();
    rig.begin(&request(resource()));
    let waiting = rig.acquire(waiting(2));
    let tried = rig.acquire(request(resource()));
    rig.live_on(SECOND * 3);
    let length = |call| match rig.acquired(call) {
        Some(Ok(Acquired::Held(held))) => held.queue_length,
        answer => panic!("{answer:?}"),
    };
    assert_eq!((length(waiting), length(tried)), (0, 1));
}

#[test]
fn try_on_a_kept_lock_queues_for_a_quarter_second() {
    let mut rig = Rig::with_session();
    let mut with_id = request(resource());
    with_id.request_id = Some("r1".into());
    let first = rig.acquire(with_id.clone());
    let op = rig.lock_read();
    let mut kept = held_by_another(Vec::new(), 20);
    kept.value.grant.as_mut().unwrap().kept = true;
    rig.answer(op, found(kept.clone()));
    let judged = rig.read();
    rig.answer(judged, Answer::Session(None));
    let (op, _, waiter) = rig.join();
    kept.value.waiters = Queue::from_entries(vec![waiter]);
    rig.answer(op, found(kept));
    rig.sleep(SECOND / 5);
    let again = rig.acquire(with_id);
    assert!(!rig.is_held(first) && !rig.is_held(again));
    rig.sleep(SECOND / 20);
    for call in [first, again] {
        let Some(Ok(Acquired::Held(held))) = rig.acquired(call) else {
            panic!("{:?}", rig.acquired(call));
        };
        assert!(held.hint.unwrap().contains("so it is in use"));
    }
}

#[test]
fn draining_agent_refuses_callers_and_sends_nothing() {
    let mut rig = Rig::with_session();
    let (queued, _) = rig.queued(waiting(60));
    rig.feed(Input::Drain);
    let late = rig.acquire(waiting(60));
    for call in [queued, late] {
        assert_eq!(rig.acquired(call), Some(Err(AcquireError::ShuttingDown)));
    }
    rig.lock_read();
    assert_eq!(rig.calls(), 0, "its entry is looked for, and nothing else");
}

#[test]
fn lease_counts_from_the_call_that_it_answers() {
    let mut rig = Rig::with_session();
    let mut with_id = waiting(60);
    with_id.request_id = Some("r1".into());
    let arrived = rig.now;
    let (first, waiter) = rig.queued(with_id.clone());
    rig.sleep(SECOND);
    let again = rig.acquire(with_id.clone());
    rig.feed(Input::HangUp(again));
    rig.hand_over(&waiter, 30);
    let view = |rig: &Rig, call| match rig.acquired(call) {
        Some(Ok(Acquired::Granted { lease, .. })) => lease,
        answer => panic!("{answer:?}"),
    };
    let late = rig.acquire(with_id);
    let until = rig.now.after(view(&rig, late).valid_for);
    assert_eq!(arrived.after(view(&rig, first).valid_for), until);
}

#[test]
fn try_is_not_refused_while_its_write_is_in_flight() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.now = rig.now.after(SECOND * 3);
    rig.answer(op, found(lock(None, 20)));
    let (op, _, next) = rig.lock_write();
    rig.sleep(SECOND * 3);
    assert!(rig.acquired(call).is_none());
    let landed = Stored {
        value: next,
        ..lock(None, 21)
    };
    rig.answer(op, found(landed));
    assert!(rig.is_granted(call));
}

#[test]
fn grant_goes_to_the_try_that_it_was_written_for() {
    let mut rig = Rig::with_session();
    let tried = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(lock(None, 20)));
    let waits = rig.acquire(AcquireRequest {
        owner: "another".into(),
        ..waiting(60)
    });
    rig.write_lands(21);
    assert!(rig.is_granted(tried));
    assert!(rig.acquired(waits).is_none());
    assert_eq!(rig.calls(), 0);
}

#[test]
fn try_beside_a_waiter_is_answered_by_one_read() {
    let mut rig = Rig::with_session();
    rig.queued(waiting(60));
    rig.effects.clear();
    rig.now = rig.now.after(SECOND / 10);
    let tried = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(held_by_another(Vec::new(), 22)));
    assert!(rig.is_held(tried));
}

#[test]
fn try_that_hung_up_does_not_queue_for_a_kept_lock() {
    let mut rig = Rig::with_session();
    let mut with_id = request(resource());
    with_id.request_id = Some("r1".into());
    let call = rig.acquire(with_id);
    let op = rig.lock_read();
    rig.feed(Input::HangUp(call));
    let mut kept = held_by_another(Vec::new(), 20);
    kept.value.grant.as_mut().unwrap().kept = true;
    rig.answer(op, found(kept));
    let judged = rig.read();
    rig.answer(judged, Answer::Session(None));
    assert_eq!((rig.calls(), rig.core.acquiring.len()), (0, 0));
}

#[test]
fn repeated_request_keeps_its_lease_while_the_agent_drains() {
    let mut rig = Rig::with_session();
    let with_id = AcquireRequest {
        request_id: Some("r1".into()),
        life: Life::Ttl(SECOND * 60),
        ..request(resource())
    };
    let lease = rig.begin(&with_id).lease;
    rig.feed(Input::Undelivered(lease.clone()));
    rig.feed(Input::Drain);
    let repeated = rig.acquire(with_id);
    assert!(rig.is_granted(repeated));
    rig.live_on(SECOND * 11);
    assert!(
        rig.core.own.lease(&lease).is_some(),
        "its app believes in it"
    );
}

#[test]
fn repetition_that_waits_goes_on_where_a_try_ends() {
    let mut rig = Rig::with_session();
    let mut with_id = request(resource());
    with_id.request_id = Some("r1".into());
    let tried = rig.acquire(with_id.clone());
    let op = rig.lock_read();
    with_id.wait = SECOND * 60;
    let waits = rig.acquire(with_id);
    rig.answer(op, found(held_by_another(Vec::new(), 20)));
    let (op, _, waiter) = rig.join();
    rig.answer(op, found(held_by_another(vec![waiter.clone()], 21)));
    rig.live_on(SECOND * 6);
    assert!(rig.is_held(tried) && rig.acquired(waits).is_none());
    rig.hand_over(&waiter, 30);
    while rig.acquired(waits).is_none() {
        // What is in flight for the claim is answered first.
        let (op, _) = rig.call();
        rig.answer(op, unavailable());
    }
    assert!(rig.is_granted(waits));
}

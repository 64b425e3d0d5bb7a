//! What a refusal contains: the queue, and the silence of the holder.

use super::acquiring::{held_by_another, waiting};
use super::leases::{SECOND, request};
use super::releases::{claimant, found, resource};
use super::*;
use crate::agent::api::{Acquired, HeldView};
use crate::protocol::queue::Waiter;

/// What proves a session with a TTL of 15 s expired.
const PROOF: Duration = Duration::from_millis(15_750);

impl Rig {
    #[track_caller]
    fn held(&self, call: CallId) -> HeldView {
        match self.acquired(call) {
            Some(Ok(Acquired::Held(held))) => *held,
            answer => panic!("{answer:?}"),
        }
    }

    /// Returns what an answer to a waiter would contain at this moment.
    #[track_caller]
    fn outlook(&self) -> HeldView {
        match self.core.acquiring.held(&resource()) {
            Some(Acquired::Held(held)) => (**held).clone(),
            known => panic!("{known:?}"),
        }
    }

    /// A caller tries to get a lock that another session holds, whose session is at a version.
    fn tries(&mut self, queue: Vec<Waiter>, version: u64) -> HeldView {
        let call = self.acquire(request(resource()));
        let op = self.lock_read();
        self.answer(op, found(held_by_another(queue, 20)));
        let op = self.read();
        let session = self.others(version);
        self.answer(op, Answer::Session(Some(Box::new(session))));
        self.held(call)
    }
}

/// Returns the entry of a session of another pod.
fn entry(number: u64) -> Waiter {
    let mut claimant = claimant(&format!("s{number}"));
    claimant.owner = format!("o{number}").as_str().into();
    claimant.pod.name = format!("p{number}").into();
    claimant.pod.uid = format!("u{number}").into();
    Waiter {
        grant: format!("g{number}").into(),
        claimant,
        queued_at: WallTime(number.cast_signed()),
        preferred: false,
    }
}

fn pods_ahead(held: &HeldView) -> Vec<&str> {
    held.ahead.iter().map(|one| one.pod.as_str()).collect()
}

#[test]
fn waiter_gets_its_position_and_the_first_five_ahead() {
    let mut rig = Rig::with_session();
    let call = rig.acquire(waiting(2));
    let op = rig.lock_read();
    let ahead: Vec<_> = (1..=6).map(entry).collect();
    rig.answer(op, found(held_by_another(ahead.clone(), 20)));
    let (op, _, own) = rig.join();
    let entries = ahead.into_iter().chain([own, entry(7)]).collect();
    rig.answer(op, found(held_by_another(entries, 21)));
    for held in [rig.outlook(), {
        rig.sleep(SECOND * 2);
        rig.held(call)
    }] {
        assert_eq!((held.position, held.queue_length), (Some(7), 7));
        assert_eq!(pods_ahead(&held), ["p1", "p2", "p3", "p4", "p5"]);
        assert_eq!(held.ahead[0].owner.as_str(), "o1");
        assert_eq!(held.ahead[0].queued_at, WallTime(1));
    }
}

#[test]
fn caller_without_an_entry_gets_the_first_of_the_queue() {
    let mut rig = Rig::with_session();
    let held = rig.tries((1..=6).map(entry).collect(), 9);
    assert_eq!((held.position, held.queue_length), (None, 6));
    assert_eq!(pods_ahead(&held), ["p1", "p2", "p3", "p4", "p5"]);
}

#[test]
fn silence_counts_from_the_first_sight_of_a_renewal() {
    let mut rig = Rig::with_session();
    let first_sight = rig.now;
    for (seconds, version, since) in [
        (0, 9, first_sight),
        (4, 9, first_sight),
        (1, 10, first_sight.after(SECOND * 5)),
    ] {
        rig.now = rig.now.after(SECOND * seconds);
        let silence = rig.tries(Vec::new(), version).silence.unwrap();
        assert_eq!((silence.since, silence.until), (since, since.after(PROOF)));
    }
}

/// A waiter reads the session again before that, to judge those ahead of it as well.
#[test]
fn waiter_gets_the_time_of_the_proof() {
    let mut rig = Rig::with_session();
    let (_, own) = rig.queued(waiting(600));
    let (mut since, mut reads) = (None, 0);
    while reads < 4 {
        rig.sleep_until_due();
        while rig.calls() > 0 {
            match rig.call() {
                (op, StoreCall::GetSession(_)) => {
                    let read_at = *since.get_or_insert(rig.now);
                    let session = rig.others(9);
                    rig.answer(op, Answer::Session(Some(Box::new(session))));
                    let silence = rig.outlook().silence.unwrap();
                    assert_eq!(silence.since, read_at);
                    assert_eq!(silence.until, read_at.after(PROOF));
                    reads += 1;
                }
                (op, StoreCall::GetLock(_)) => {
                    rig.answer(op, found(held_by_another(vec![own.clone()], 21)));
                    let silence = rig.outlook().silence;
                    assert_eq!(
                        silence.map(|silence| silence.since),
                        since,
                        "kept meanwhile"
                    );
                }
                (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 12)),
                (_, call) => panic!("{call:?}"),
            }
        }
    }
}

#[test]
fn silence_under_an_earlier_grant_is_left_out() {
    let mut rig = Rig::with_session();
    let (_, own) = rig.queued(waiting(600));
    let mut is_known = false;
    loop {
        rig.sleep_until_due();
        while rig.calls() > 0 {
            match rig.call() {
                (op, StoreCall::GetSession(_)) => {
                    let session = rig.others(9);
                    rig.answer(op, Answer::Session(Some(Box::new(session))));
                    is_known = rig.outlook().silence.is_some();
                }
                (op, StoreCall::GetLock(_)) if is_known => {
                    let mut moved = held_by_another(vec![own.clone()], 22);
                    // The same session has taken the lock again, so it was renewed.
                    moved.value.grant.as_mut().unwrap().id = "again".into();
                    rig.answer(op, found(moved));
                    assert_eq!(rig.outlook().silence, None);
                    return;
                }
                (op, StoreCall::GetLock(_)) => {
                    rig.answer(op, found(held_by_another(vec![own.clone()], 21)));
                }
                (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 12)),
                (_, call) => panic!("{call:?}"),
            }
        }
    }
}

#[test]
fn strict_mode_has_no_silence_and_a_hint() {
    let mut rig = Rig::with_session();
    rig.core.acquiring.config.takes_over = false;
    let call = rig.acquire(request(resource()));
    let op = rig.lock_read();
    rig.answer(op, found(held_by_another(vec![entry(1)], 20)));
    let held = rig.held(call);
    assert_eq!(held.silence, None);
    assert!(held.hint.unwrap().contains("only the operator"));
    assert_eq!(rig.calls(), 0, "no session is read");
}

#[test]
fn refused_take_over_has_no_silence() {
    let mut rig = Rig::with_session();
    let (.., op, _) = rig.queued_until_revocation();
    assert!(rig.outlook().silence.is_some());
    let denied = StoreError::DeniedByPolicy("strict".into());
    rig.answer(op, Answer::Failed(denied));
    let held = rig.outlook();
    assert_eq!(held.silence, None);
    assert!(held.hint.unwrap().contains("only the operator"));
}

#[test]
fn lock_of_this_pod_names_no_session() {
    let mut rig = Rig::with_session();
    rig.begin(&request(resource()));
    let call = rig.acquire(request(resource()));
    let held = rig.held(call);
    assert_eq!((held.position, held.silence), (None, None));
    assert_eq!(pods_ahead(&held), Vec::<&str>::new());
}

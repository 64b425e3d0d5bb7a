//! How the session of an earlier process is resumed, and when it is not.

use std::collections::BTreeMap;

use super::leases::{SECOND, request};
use super::releases::{claimant, found, lock, resource};
use super::*;
use crate::agent::api::{LeaseError, Life};
use crate::agent::core::answers;
use crate::agent::core::discard::DiscardReason;
use crate::agent::core::history::End;
use crate::agent::core::leases::EndedBy;
use crate::agent::core::report::ResumptionReport;
use crate::agent::core::saved::{SavedLease, SavedSession, SavedState};
use crate::protocol::ids::LeaseId;
use crate::protocol::session::RenewalFailures;
use crate::protocol::token::Token;

/// What the earlier process' session has left.
const LEFT: Duration = Duration::from_secs(8);

fn lease_id() -> LeaseId {
    "g.0".into()
}

/// Returns a session with a lease of the lock.
fn saved(rig: &Rig, resource: Resource) -> SavedState {
    let mut saved = SavedState::default();
    saved.add_session(SavedSession {
        id: "s".into(),
        version: Revision(7),
        valid_until: rig.now.after(LEFT),
    });
    saved.add_lease(SavedLease {
        id: lease_id(),
        grant: "g".into(),
        token: Token::from_raw(7_000),
        resource,
        owner: "app".into(),
        life: Life::Ttl(SECOND * 6),
        requested: None,
        keep: Duration::ZERO,
        metadata: BTreeMap::new(),
        acquired_at: WallTime(0),
        request_id: None,
    });
    saved
}

fn session() -> Session {
    let holder = claimant("s");
    Session {
        id: holder.session,
        pod: holder.pod,
        ttl: holder.session_ttl,
        agent_version: "1".into(),
        renewals: 0,
        renewed_at: None,
        failures: RenewalFailures::default(),
        revoked: None,
    }
}

fn held(resource: Resource) -> Stored<Lock> {
    let mut stored = lock(Some("g"), 9);
    stored.value.resource = resource;
    stored
}

impl Rig {
    fn resuming(resource: Resource) -> Self {
        let mut rig = Self::new();
        let saved = saved(&rig, resource);
        rig.with(|core, cx| core.recall(cx, saved));
        rig
    }

    /// Answers the read and the renewal, and takes the list.
    fn renewed(&mut self) -> OpId {
        let op = self.read();
        self.answer(op, written(session(), 7));
        let (op, current, next) = self.renewal();
        assert_eq!((current.version, next.renewals), (Revision(7), 1));
        self.now = self.now.after(SECOND);
        self.answer(op, written(next, 8));
        match self.call() {
            (op, StoreCall::ListHeld(_)) => op,
            (_, call) => panic!("{call:?}"),
        }
    }

    fn listed(&mut self, op: OpId, locks: Vec<Stored<Lock>>) {
        let page = Page {
            items: locks,
            revision: Revision(10),
            next: None,
            unreadable: Vec::new(),
        };
        self.answer(op, Answer::Page(Box::new(page)));
    }

    fn discarded(&self) -> Option<DiscardReason> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Report(Report::Resumption(ResumptionReport::Discarded(reason, _, 1))) => {
                Some(reason.clone())
            }
            _ => None,
        })
    }

    fn lease_now(&mut self) -> Result<(), LeaseError> {
        let now = self.now;
        let read = self.with(|core, cx| answers::read(&mut core.leases(cx), &lease_id(), now));
        read.map(|_| ())
    }
}

#[test]
fn lease_continues_after_one_renewal_and_a_list() {
    let mut rig = Rig::resuming(resource());
    assert_eq!(rig.lease_now(), Err(LeaseError::Resuming));
    let sent = rig.now;
    let op = rig.renewed();
    assert!(matches!(rig.persisted()[..], [Record::Session(s)] if s.version == Revision(8)));
    assert_eq!(rig.lease_now(), Err(LeaseError::Resuming));
    rig.listed(op, vec![held(resource())]);
    assert_eq!(rig.lease_now(), Ok(()));
    assert_eq!(rig.valid_until(), sent.after(VALID));
    assert!(matches!(rig.watch(), Some(WatchCommand::Open(_, _, after)) if after == Revision(10)));
    assert_eq!(rig.persisted().last(), Some(&&Record::Compaction));
}

#[test]
fn session_that_is_not_as_on_file_is_discarded() {
    let revoked = revoked(&session(), RevokeReason::Expired);
    let cases = [
        (written(session(), 8), DiscardReason::Moved),
        (written(revoked, 7), DiscardReason::Revoked),
        (Answer::Session(None), DiscardReason::Revoked),
    ];
    for (answer, reason) in cases {
        let mut rig = Rig::resuming(resource());
        let op = rig.read();
        rig.answer(op, answer);
        assert_eq!(rig.discarded(), Some(reason.clone()));
        assert_eq!(rig.lease_now(), Err(LeaseError::Lost(reason.loss())));
        assert_eq!(
            (rig.calls(), rig.persisted()),
            (0, vec![&Record::Replacement])
        );
    }
}

/// One that was applied cannot be told from another's, so the next one fails.
#[test]
fn unanswered_renewal_is_repeated_on_the_same_version() {
    let mut rig = Rig::resuming(resource());
    let op = rig.read();
    rig.answer(op, written(session(), 7));
    let (op, ..) = rig.renewal();
    rig.answer(op, unclear());
    rig.sleep_until_due();
    let (op, current, _) = rig.renewal();
    assert_eq!(current.version, Revision(7));
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    assert_eq!(rig.discarded(), Some(DiscardReason::Moved));
}

/// Which attempt was applied is not known.
#[test]
fn resumed_session_is_valid_from_the_first_attempt() {
    let mut rig = Rig::resuming(resource());
    let op = rig.read();
    rig.answer(op, written(session(), 7));
    let first_sent = rig.now;
    let (op, ..) = rig.renewal();
    rig.answer(op, unavailable());
    rig.sleep_until_due();
    let (op, _, next) = rig.renewal();
    assert!(rig.now > first_sent);
    rig.answer(op, written(next, 8));
    let (op, _) = rig.call();
    rig.listed(op, Vec::new());
    assert_eq!(rig.valid_until(), first_sent.after(VALID));
}

#[test]
fn nothing_is_resumed_after_the_deadline() {
    for is_answered in [false, true] {
        let mut rig = Rig::resuming(resource());
        let op = rig.renewed();
        if is_answered {
            rig.now = rig.now.after(LEFT);
            rig.listed(op, vec![held(resource())]);
        } else {
            rig.answer(op, unavailable());
            rig.now = rig.now.after(LEFT);
            rig.timer();
        }
        let reason = rig.discarded();
        assert!(
            matches!(reason, Some(DiscardReason::NoAnswer(_))),
            "{reason:?}"
        );
        assert_eq!(rig.lease_now(), Err(LeaseError::Lost(Loss::SessionExpired)));
    }
    let mut rig = Rig::new();
    let saved = saved(&rig, resource());
    rig.now = rig.now.after(LEFT);
    rig.with(|core, cx| core.recall(cx, saved));
    assert_eq!(rig.discarded(), Some(DiscardReason::DeadlinePassed));
    assert_eq!(rig.calls(), 0);
}

/// The store may lack the grants that the file names.
#[test]
fn session_from_before_a_restore_is_discarded() {
    let mut rig = Rig::resuming(resource());
    let op = rig.renewed();
    let before = rig.core.seen_at_send();
    rig.with(|core, cx| core.observe_list(cx, before, Revision(50)).unwrap());
    let leapt = Revision(50 + 200_000_000);
    rig.with(|core, cx| core.observe_revision(cx, leapt));
    assert_eq!(rig.discarded(), Some(DiscardReason::StoreRestored));
    rig.listed(op, vec![held(resource())]);
    assert!(rig.core.live().is_none());
    // The renewal itself shows it.
    let mut rig = Rig::resuming(resource());
    let op = rig.read();
    rig.answer(op, written(session(), 7));
    let (op, _, next) = rig.renewal();
    rig.answer(op, written(next, leapt.0));
    assert_eq!(rig.discarded(), Some(DiscardReason::StoreRestored));
}

#[test]
fn session_of_a_store_that_went_back_is_discarded() {
    for is_own_list in [true, false] {
        let mut rig = Rig::new();
        let before = rig.core.seen_at_send();
        rig.with(|core, cx| core.observe_list(cx, before, Revision(50)).unwrap());
        let before = rig.core.seen_at_send();
        let saved = saved(&rig, resource());
        rig.with(|core, cx| core.recall(cx, saved));
        let op = rig.renewed();
        if is_own_list {
            rig.listed(op, vec![held(resource())]);
        } else {
            let went_back = rig.with(|core, cx| core.observe_list(cx, before, Revision(10)));
            assert!(went_back.is_err());
        }
        assert_eq!(rig.discarded(), Some(DiscardReason::StoreRestored));
    }
}

#[test]
fn request_waits_until_it_is_known_what_continues() {
    let mut rig = Rig::resuming(resource());
    let held_here = rig.acquire(request(resource()));
    let hung_up = rig.acquire(request(Resource::parse("s").unwrap()));
    rig.feed(Input::HangUp(hung_up));
    assert!(rig.is_answered(hung_up));
    let op = rig.renewed();
    rig.listed(op, vec![held(resource())]);
    assert!(rig.is_held(held_here));
    assert_eq!(rig.calls(), 0, "the other's client is gone");
}

#[test]
fn request_is_refused_after_five_seconds_of_resuming() {
    let mut rig = Rig::resuming(resource());
    let call = rig.acquire(request(resource()));
    rig.sleep(SECOND * 4);
    assert!(rig.acquired(call).is_none());
    rig.sleep(SECOND);
    assert!(matches!(
        rig.acquired(call),
        Some(Err(AcquireError::Resuming))
    ));
}

#[test]
fn stopping_agent_refuses_requests_that_wait_for_the_resumption() {
    let mut rig = Rig::resuming(resource());
    let before = rig.acquire(request(resource()));
    rig.feed(Input::Drain);
    let after = rig.acquire(request(resource()));
    for call in [before, after] {
        let refused = rig.acquired(call);
        assert!(
            matches!(refused, Some(Err(AcquireError::ShuttingDown))),
            "{refused:?}"
        );
    }
}

/// Nothing is left to be released.
#[test]
fn releases_of_a_session_that_is_over_are_done() {
    let mut rig = Rig::new();
    let mut saved = saved(&rig, resource());
    let ended = saved.leases[&lease_id()].ended(End::Releasing, true);
    saved.end(ended);
    saved.end_session();
    rig.with(|core, cx| core.recall(cx, saved));
    assert_eq!(rig.core.history.end(&lease_id()), Some(End::Released));
    assert_eq!(
        (rig.calls(), rig.persisted()),
        (0, vec![&Record::Replacement])
    );
}

/// Its app's word counts as soon as it is known that the grant is still there; a lead's readers may believe
/// in it until the old deadline.
#[test]
fn lease_that_ends_while_resuming_is_released() {
    let election = Resource::parse("election:e").unwrap();
    for (resource, has_readers) in [(resource(), false), (election, true)] {
        let mut rig = Rig::resuming(resource.clone());
        let told_until = rig.now.after(LEFT);
        assert!(rig.end_by(&lease_id(), EndedBy::App));
        assert!(rig.is_answered(CallId(99)));
        assert_eq!(rig.core.history.end(&lease_id()), Some(End::Releasing));
        let [Record::Ended(ended)] = rig.persisted()[..] else {
            panic!("{:?}", rig.persisted());
        };
        assert_eq!(ended.may_release, !has_readers);
        let op = rig.renewed();
        rig.listed(op, vec![held(resource.clone())]);
        let (op, next) = loop {
            while rig.calls() == 0 {
                rig.sleep_until_due();
            }
            match rig.call() {
                (op, StoreCall::UpdateLock(_, next)) => break (op, next),
                (op, StoreCall::GetLock(_)) => rig.answer(op, found(held(resource.clone()))),
                (op, StoreCall::UpdateSession(_, next)) => rig.answer(op, written(*next, 9)),
                (_, call) => panic!("{call:?}"),
            }
        };
        assert!(next.grant.is_none());
        assert_eq!(rig.now >= told_until, has_readers);
        rig.answer(op, found(lock(None, 11)));
        assert_eq!(rig.core.history.end(&lease_id()), Some(End::Released));
    }
}

/// The next process continues what this one could not.
#[test]
fn stopping_agent_makes_no_further_call_and_keeps_the_file() {
    let mut rig = Rig::resuming(resource());
    let op = rig.read();
    rig.answer(op, written(session(), 7));
    let (op, _, next) = rig.renewal();
    rig.feed(Input::StopRenewing(CallId(1)));
    assert!(!rig.is_answered(CallId(1)), "the renewal is in flight");
    rig.answer(op, written(next, 8));
    assert!(rig.is_answered(CallId(1)));
    assert!(matches!(rig.persisted()[..], [Record::Session(s)] if s.version == Revision(8)));
    assert!(rig.calls() == 0 && rig.core.is_resuming());
    rig.feed(Input::EndSession(CallId(2)));
    assert!(rig.is_answered(CallId(2)) && rig.core.is_resuming());
    assert_eq!(rig.persisted().len(), 1);
}

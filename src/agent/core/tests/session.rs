//! How the session begins, is renewed and ends.

use super::releases::release_of;
use super::*;
use crate::agent::core::release::ReleaseOf;

impl Rig {
    fn renew_now(&mut self, session: &SessionId) {
        self.with(|core, cx| {
            let leases = core.leases(cx);
            let mut env = leases.env;
            leases.session.renew_now(session, &mut env);
        });
    }
}

#[test]
fn session_begins_by_a_list_and_is_on_file_at_once() {
    let mut rig = Rig::new();
    let call = rig.need(None);
    let (list, what) = rig.call();
    assert!(matches!(what, StoreCall::ListOne));
    rig.answer(list, page(10));
    let (create, session) = rig.created();
    rig.answer(create, written(session.clone(), 11));
    let order = rig.effects.iter().filter_map(|effect| match effect {
        Effect::Persist(Record::Session(_)) => Some("persist"),
        Effect::Watch(WatchCommand::Open(_, _, Revision(10))) => Some("watch"),
        _ => None,
    });
    let order: Vec<&str> = order.collect();
    assert_eq!(order, ["persist", "watch"]);
    assert_eq!(rig.reply(&call), Ok(session.id));
}

#[test]
fn unclear_creation_is_read_before_it_is_repeated() {
    let mut rig = Rig::new();
    let call = rig.need(Some(Revision(10)));
    let (create, first) = rig.created();
    rig.answer(create, unclear());
    let read = rig.read();
    rig.answer(read, Answer::Session(None));
    rig.sleep_until_due();
    let (create, second) = rig.created();
    assert_eq!(second.id, first.id, "the same name is tried again");
    let deadline = rig.now.after(VALID);
    rig.answer(create, written(second, 12));
    assert_eq!(rig.reply(&call), Ok(first.id));
    assert!(
        rig.valid_until() < deadline,
        "it counts from the first attempt"
    );
}

#[test]
fn session_revoked_as_it_began_serves_nobody() {
    for (reason, is_paused) in [
        (RevokeReason::PodEnded, true),
        (RevokeReason::Expired, false),
    ] {
        let mut rig = Rig::new();
        let call = rig.need(Some(Revision(10)));
        let (create, session) = rig.created();
        rig.answer(create, Answer::Failed(StoreError::Conflict));
        let read = rig.read();
        rig.answer(read, written(revoked(&session, reason), 12));
        assert!(rig.core.live().is_none());
        if is_paused {
            let answer = rig.reply(&call);
            assert!(matches!(answer, Err(AcquireError::ReportedEnded { .. })));
        } else {
            let (_, what) = rig.call();
            assert!(matches!(what, StoreCall::ListOne), "another one begins");
        }
    }
}

#[test]
fn session_created_after_its_own_deadline_serves_nobody() {
    let mut rig = Rig::new();
    let call = rig.need(Some(Revision(10)));
    let (create, session) = rig.created();
    rig.now = rig.now.after(VALID);
    rig.answer(create, written(session, 11));
    assert_eq!(rig.reply(&call), Err(AcquireError::SessionLost));
}

#[test]
fn ending_a_session_that_is_being_created_revokes_it() {
    let mut rig = Rig::new();
    let call = rig.need(Some(Revision(10)));
    let (create, session) = rig.created();
    rig.feed(Input::EndSession(CallId(99)));
    assert_eq!(rig.reply(&call), Err(AcquireError::ShuttingDown));
    assert_eq!(rig.calls(), 0);
    rig.answer(create, written(session.clone(), 11));
    let read = rig.read();
    rig.answer(read, written(session, 11));
    let (_, _, next) = rig.renewal();
    assert!(next.revoked.is_some());
}

#[test]
fn draining_agent_begins_no_session() {
    let mut rig = Rig::new();
    rig.feed(Input::Drain);
    let call = rig.need(None);
    assert_eq!(rig.reply(&call), Err(AcquireError::ShuttingDown));
    assert_eq!(rig.calls(), 0);
}

#[test]
fn renewal_counts_from_its_first_attempt() {
    let mut rig = Rig::with_session();
    rig.sleep_until_due();
    let (op, ..) = rig.renewal();
    let first_sent = rig.now;
    rig.answer(op, unavailable());
    rig.sleep_until_due();
    assert!(rig.now > first_sent);
    let (op, _, next) = rig.renewal();
    rig.sleep(Duration::from_millis(300));
    rig.answer(op, written(next, 12));
    assert_eq!(rig.valid_until(), first_sent.after(VALID));
}

/// What a read finds, of the version that the renewal was decided on and what it was to write.
type Found = fn(Session, Session) -> Answer;

const REVOKED: Option<Loss> = Some(Loss::SessionRevoked);
const RESTORED: Option<Loss> = Some(Loss::StoreRestored);

/// What a read finds, why the session is then lost, and whether it is renewed.
const FOUND: &[(&str, Found, Option<Loss>, bool)] = &[
    ("it landed", |_, next| written(next, 12), None, true),
    ("it did not", |before, _| written(before, 11), None, false),
    (
        "a label changed",
        |before, _| written(before, 12),
        None,
        false,
    ),
    ("it is gone", |_, _| Answer::Session(None), REVOKED, false),
    (
        "it was revoked",
        |before, _| written(revoked(&before, RevokeReason::Expired), 12),
        REVOKED,
        false,
    ),
    (
        "it came out of a backup",
        |before, _| {
            written(
                Session {
                    renewals: 0,
                    ..before
                },
                9,
            )
        },
        RESTORED,
        false,
    ),
    (
        "the revision leapt",
        |before, _| written(before, 2_000_000_000),
        RESTORED,
        false,
    ),
];

#[test]
fn read_after_an_unclear_renewal_decides() {
    for (what, found, lost, is_renewed) in FOUND {
        let mut rig = Rig::with_session();
        // Once with success, so that the count can fall.
        rig.sleep_until_due();
        let (op, _, next) = rig.renewal();
        rig.answer(op, written(next, 11));
        rig.sleep_until_due();
        let (op, current, next) = rig.renewal();
        rig.answer(op, unclear());
        let before = rig.valid_until();
        let read = rig.read();
        rig.answer(read, found(current.value, next));
        assert_eq!(rig.lost(), *lost, "{what}");
        if lost.is_none() {
            assert_eq!(rig.valid_until() > before, *is_renewed, "{what}");
        }
    }
}

#[test]
fn renewal_answered_after_the_deadline_changes_nothing() {
    let mut rig = Rig::with_session();
    rig.sleep_until_due();
    let (op, _, next) = rig.renewal();
    rig.now = rig.valid_until();
    rig.answer(op, written(next, 12));
    assert_eq!(rig.lost(), Some(Loss::SessionExpired));
    assert!(rig.core.live().is_none());
    assert_eq!(rig.watch(), Some(WatchCommand::Close));
    rig.read();
}

#[test]
fn renewal_whose_revision_leapt_ends_the_session() {
    let mut rig = Rig::with_session();
    rig.sleep_until_due();
    let (op, _, next) = rig.renewal();
    rig.answer(op, written(next, 2_000_000_000));
    assert_eq!(rig.lost(), RESTORED);
    rig.read();
}

#[test]
fn caller_of_a_lost_session_gets_the_next() {
    let mut rig = Rig::with_session();
    rig.become_idle();
    rig.sleep(Duration::from_secs(10));
    let call = rig.need(None);
    let (op, current, _) = rig.renewal();
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    let read = rig.read();
    let ended = revoked(&current.value, RevokeReason::Expired);
    rig.answer(read, written(ended, 12));
    let (list, _) = rig.call();
    rig.answer(list, page(20));
    // The lost one is being ended meanwhile.
    rig.read();
    let (create, session) = rig.created();
    rig.answer(create, written(session.clone(), 21));
    assert_ne!(session.id, current.value.id);
    assert_eq!(rig.reply(&call), Ok(session.id));
}

#[test]
fn doubted_session_is_renewed_after_the_attempt_in_flight() {
    let mut rig = Rig::with_session();
    let id = rig.core.live().unwrap().id().clone();
    rig.renew_now(&id);
    let (op, _, next) = rig.renewal();
    rig.renew_now(&id);
    assert_eq!(rig.calls(), 0);
    rig.answer(op, written(next, 12));
    let (_, current, _) = rig.renewal();
    assert_eq!(current.version, Revision(12));
}

#[test]
fn callers_share_one_call_and_the_renewal_before_it() {
    let mut rig = Rig::with_session();
    rig.become_idle();
    rig.sleep(Duration::from_secs(10));
    let calls: Vec<Resource> = (0..3).map(|_| rig.need(None)).collect();
    assert_eq!(rig.calls(), 1, "{:?}", rig.effects);
    let (op, _, next) = rig.renewal();
    let id = next.id.clone();
    rig.answer(op, written(next, 12));
    for call in calls {
        assert_eq!(rig.reply(&call), Ok(id.clone()));
    }
}

#[test]
fn callers_are_refused_while_the_session_lives_on() {
    let mut rig = Rig::with_session();
    rig.become_idle();
    rig.sleep(Duration::from_secs(8));
    let call = rig.need(None);
    let since = rig.now;
    let is_answered = |rig: &Rig| rig.is_ready(&call);
    while !is_answered(&rig) {
        let (op, ..) = rig.renewal();
        rig.answer(op, unavailable());
        if !is_answered(&rig) {
            rig.sleep_until_due();
        }
    }
    let waited = rig.now.since(since);
    assert!((4..=5).contains(&waited.as_secs()), "{waited:?}");
    let words = "the session could not be renewed".into();
    let error = AcquireError::Store(StoreError::Unavailable(words));
    assert_eq!(rig.reply(&call), Err(error));
    assert!(rig.core.live().is_some());
}

#[test]
fn call_that_the_driver_never_answers_counts_as_unknown() {
    let mut rig = Rig::with_session();
    rig.sleep_until_due();
    let (late, _, next) = rig.renewal();
    rig.sleep_until_due();
    let read = rig.read();
    rig.answer(late, written(next.clone(), 12));
    assert_eq!(rig.calls(), 0, "an answer that comes later is ignored");
    rig.answer(read, written(next, 12));
    assert_eq!(rig.lost(), None);
}

#[test]
fn ending_waits_for_the_renewal_that_is_in_flight() {
    let mut rig = Rig::with_session();
    rig.sleep_until_due();
    let (op, _, next) = rig.renewal();
    let call = CallId(99);
    rig.feed(Input::EndSession(call));
    assert_eq!(rig.calls(), 0, "one write to an object at a time");
    rig.answer(op, written(next.clone(), 12));
    let read = rig.read();
    rig.answer(read, written(next, 12));
    let (op, current, next) = rig.renewal();
    assert_eq!(current.version, Revision(12));
    assert!(next.revoked.is_some());
    rig.answer(op, written(next, 13));
    let done = |effect: &Effect| matches!(effect, Effect::Reply(to, Reply::Done) if *to == call);
    assert!(rig.effects.iter().any(done));
}

#[test]
fn lost_session_is_revoked_only_after_its_last_promise() {
    let mut rig = Rig::with_session();
    let promised = rig.valid_until().after(Duration::from_secs(2));
    rig.release(ReleaseOf {
        not_before: promised,
        ..release_of("g")
    });
    rig.now = rig.valid_until();
    rig.timer();
    assert_eq!(rig.lost(), Some(Loss::SessionExpired));
    rig.sleep(Duration::from_millis(1_999));
    assert_eq!(rig.calls(), 0);
    rig.sleep(Duration::from_millis(1));
    rig.read();
    rig.lock_write();
}

#[test]
fn stopped_agent_starts_no_renewal_and_waits_for_the_last() {
    let mut rig = Rig::with_session();
    rig.become_idle();
    rig.sleep(Duration::from_secs(10));
    let waiting = rig.need(None);
    let (op, _, next) = rig.renewal();
    let id = next.id.clone();
    rig.renew_now(&id);
    let call = CallId(99);
    rig.feed(Input::StopRenewing(call));
    assert_eq!(rig.reply(&waiting), Err(AcquireError::ShuttingDown));
    rig.effects.clear();
    rig.answer(op, written(next, 12));
    let order = rig.effects.iter().filter_map(|effect| match effect {
        Effect::Persist(Record::Session(_)) => Some("persist"),
        Effect::Reply(to, Reply::Done) if *to == call => Some("done"),
        Effect::Call { .. } => Some("call"),
        _ => None,
    });
    let order: Vec<&str> = order.collect();
    assert_eq!(
        order,
        ["persist", "done"],
        "the next process resumes from the file"
    );
    rig.renew_now(&id);
    rig.sleep(Duration::from_secs(10));
    let late = rig.need(None);
    assert_eq!(rig.reply(&late), Err(AcquireError::ShuttingDown));
    assert_eq!(rig.calls(), 0);
}

#[test]
fn list_counts_although_nobody_waits_for_it_any_more() {
    let mut rig = Rig::new();
    rig.need(None);
    let (list, _) = rig.call();
    rig.feed(Input::EndSession(CallId(99)));
    rig.answer(list, page(1_301));
    let mint = rig.core.horizon.mint().unwrap();
    assert_eq!(mint.seen.highest(), Revision(1_301));
}

#[test]
fn session_created_before_a_restore_is_not_used_after_it() {
    let mut rig = Rig::new();
    rig.need(None);
    let (list, _) = rig.call();
    rig.answer(list, page(10));
    let (create, before) = rig.created();
    rig.with(|core, cx| {
        let sent = core.seen_at_send();
        core.observe_list(cx, sent, Revision(2_000_000_000))
            .unwrap();
    });
    let (list, _) = rig.call();
    rig.answer(create, written(before.clone(), 11));
    assert!(rig.core.live().is_none());
    let read = rig.read();
    rig.answer(read, written(before.clone(), 11));
    let (_, _, revoked) = rig.renewal();
    assert_eq!((&revoked.id, revoked.revoked.is_some()), (&before.id, true));
    rig.answer(list, page(2_000_000_001));
    let (create, after) = rig.created();
    assert_ne!(after.id, before.id);
    rig.answer(create, written(after, 2_000_000_002));
    assert!(rig.core.live().is_some());
}

/// Renews until the core wants something else, and returns how often.
fn renewals_until_idle_end(rig: &mut Rig) -> u64 {
    let is_over = |effect: &Effect| matches!(effect, Effect::Report(Report::IdleSessionEnded(_)));
    for count in 0.. {
        rig.sleep_until_due();
        if rig.effects.iter().any(is_over) {
            return count;
        }
        let (op, _, next) = rig.renewal();
        rig.answer(op, written(next, 12 + count));
        rig.effects.clear();
    }
    unreachable!()
}

#[test]
fn session_ends_when_nothing_has_needed_it_for_long() {
    let mut rig = Rig::with_session();
    let begun = rig.now;
    for count in 0..200 {
        rig.sleep_until_due();
        let (op, _, next) = rig.renewal();
        rig.answer(op, written(next, 12 + count));
        rig.effects.clear();
    }
    let needed = rig.now;
    assert!(
        needed.since(begun) < Duration::from_secs(200 * 5),
        "a third of the TTL"
    );
    assert!(
        needed.since(begun) > Duration::from_secs(600),
        "it never counted as idle"
    );
    rig.become_idle();
    let renewals = renewals_until_idle_end(&mut rig);
    let idle = rig.now.since(needed);
    assert!((600..615).contains(&idle.as_secs()), "{idle:?}");
    assert!(renewals < 600 / 5, "{renewals}: less often than before");
}

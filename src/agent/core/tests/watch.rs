//! How the watch is opened again, and when what it missed is listed.

use super::*;
use crate::protocol::object::LockEvent;

/// Returns a core whose watch is open after revision 10, and the watch's name.
fn watching() -> (Rig, WatchId) {
    let mut rig = Rig::new();
    rig.need(None);
    let (op, _) = rig.call();
    rig.answer(op, page(10));
    let (op, session) = rig.created();
    rig.answer(op, written(session, 11));
    let Some(WatchCommand::Open(id, ..)) = rig.watch() else {
        panic!("no watch was opened");
    };
    rig.feed(Input::Watch(id, WatchInput::Opened));
    rig.effects.clear();
    (rig, id)
}

fn bookmark(revision: u64) -> WatchInput {
    WatchInput::Event(LockEvent::Bookmark(Revision(revision)))
}

impl Rig {
    fn watch_late(&mut self, revision: u64) {
        self.with(|core, cx| {
            let leases = &mut core.leases(cx);
            leases.watching.is_late(Revision(revision), &mut leases.env);
        });
    }
}

/// Returns what follows an interruption: the revision of the next watch, or none where the locks are
/// listed first.
fn next_of(rig: &mut Rig) -> Option<Revision> {
    loop {
        rig.sleep(Duration::from_millis(20));
        if let Some(WatchCommand::Open(_, _, after)) = rig.watch() {
            return Some(after);
        }
        if rig
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Call { .. }))
        {
            return None;
        }
    }
}

#[test]
fn watch_continues_where_it_ended_and_lists_what_it_missed() {
    let failed = |error| WatchInput::Failed(error);
    let away = || StoreError::Unavailable("away".into());
    let event = |rig: &mut Rig, id, revision| {
        rig.feed(Input::Watch(id, bookmark(revision)));
    };
    let (mut rig, id) = watching();
    event(&mut rig, id, 20);
    rig.feed(Input::Watch(id, WatchInput::Ended));
    assert_eq!(next_of(&mut rig), Some(Revision(20)), "an end");

    let (mut rig, id) = watching();
    event(&mut rig, id, 20);
    rig.feed(Input::Watch(id, failed(away())));
    assert_eq!(next_of(&mut rig), Some(Revision(20)), "an error");

    let (mut rig, id) = watching();
    rig.feed(Input::Watch(
        id,
        failed(StoreError::WatchExpired("410".into())),
    ));
    assert_eq!(next_of(&mut rig), None, "a gap");

    let (mut rig, id) = watching();
    event(&mut rig, id, 20);
    rig.watch_late(20);
    assert_eq!(rig.watch(), None, "it has reported as much");
    rig.watch_late(21);
    assert_eq!(next_of(&mut rig), None, "a late watch");

    let (mut rig, id) = watching();
    let mut id = id;
    for _ in 0..3 {
        rig.feed(Input::Watch(id, failed(away())));
        assert_eq!(next_of(&mut rig), Some(Revision(10)));
        id = id.next();
        rig.feed(Input::Watch(id, WatchInput::Opened));
    }
    rig.feed(Input::Watch(id, failed(away())));
    assert_eq!(
        next_of(&mut rig),
        None,
        "the fourth failure at one revision"
    );
    let (list, _) = rig.call();
    rig.answer(list, page(30));
    assert!(matches!(
        rig.watch(),
        Some(WatchCommand::Open(_, _, Revision(30)))
    ));
}

#[test]
fn closed_watch_reports_nothing_any_more() {
    let (mut rig, id) = watching();
    rig.watch_late(21);
    assert_eq!(rig.watch(), Some(WatchCommand::Close));
    rig.feed(Input::Watch(id, WatchInput::Ended));
    assert_eq!(next_of(&mut rig), None, "the list that is due stays due");
    let (list, _) = rig.call();
    rig.answer(list, unavailable());
    assert_eq!(next_of(&mut rig), None, "it is tried again");
    let (list, _) = rig.call();
    rig.answer(list, page(30));
    rig.watch();
    rig.feed(Input::Watch(id, bookmark(99)));
    rig.feed(Input::Watch(id.next(), WatchInput::Opened));
    rig.feed(Input::Watch(id.next(), WatchInput::Ended));
    assert_eq!(next_of(&mut rig), Some(Revision(30)));
}

#[test]
fn list_sent_before_a_rewind_restores_no_trust() {
    let (mut rig, id) = watching();
    rig.feed(Input::Watch(id, bookmark(50)));
    let before = rig.core.seen_at_send();
    let mut is_trusted = |sent: Option<SeenAtSend>, listed| {
        let sent = sent.unwrap_or_else(|| rig.core.seen_at_send());
        let _ = rig.with(|core, cx| core.observe_list(cx, sent, Revision(listed)));
        rig.core.horizon.mint().is_ok()
    };
    assert!(!is_trusted(Some(before), 40));
    assert!(!is_trusted(Some(before), 50));
    assert!(is_trusted(None, 50));
}

#[test]
fn silent_watch_is_closed_and_opened_again() {
    let (mut rig, id) = watching();
    let opened = rig.now;
    while rig.now.since(opened) < Duration::from_secs(329) {
        rig.sleep(Duration::from_secs(1));
        if rig
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Call { .. }))
        {
            let (op, _, next) = rig.renewal();
            rig.answer(op, written(next, 12));
        }
        assert_eq!(rig.watch(), None, "{:?}", rig.now.since(opened));
    }
    rig.sleep(Duration::from_secs(1));
    assert_eq!(rig.watch(), Some(WatchCommand::Close));
    rig.feed(Input::Watch(id, WatchInput::Ended));
    rig.effects.clear();
    assert_eq!(next_of(&mut rig), Some(Revision(10)));
}

#[test]
fn list_below_what_was_seen_ends_the_session_and_all_grants() {
    let (mut rig, id) = watching();
    rig.feed(Input::Watch(id, bookmark(50)));
    rig.feed(Input::Watch(
        id,
        WatchInput::Failed(StoreError::WatchExpired("410".into())),
    ));
    assert_eq!(next_of(&mut rig), None);
    let (list, _) = rig.call();
    rig.answer(list, page(40));
    assert_eq!(rig.lost(), Some(Loss::StoreRestored));
    assert!(matches!(
        rig.core.horizon.mint(),
        Err(AcquireError::StoreWentBack(_))
    ));
}

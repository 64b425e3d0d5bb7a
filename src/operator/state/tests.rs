//! Tests how the answers of the store change the state.

use super::*;
use crate::operator::plan::tests::rules;
use crate::operator::store_check::{CHECK_INTERVAL, RETRY_INTERVAL};
use crate::operator::tests::now;

fn new_state() -> State {
    State::new(Arc::new(rules()), Arc::new(Metrics::new()), now(0).moment)
}

/// Reads the store's revision, which the store answers with `revision`.
fn ask(state: &mut State, revision: u64, now: Now) {
    let before = state.start_store_check();
    state.finish_store_check(Ok(Revision(revision)), before, now);
}

#[test]
fn feeds_relist_after_the_store_went_back_and_after_its_repair() {
    let mut state = new_state();
    for (revision, expected) in [
        (100, false),
        (40, true),
        (41, false),
        (101, true),
        (102, false),
    ] {
        ask(&mut state, revision, now(1));
        let relists = state.store.take_needs_relist();
        assert_eq!(relists, expected, "at {revision}");
        let is_old = (40..100).contains(&revision);
        assert_eq!(state.store.status() == StoreStatus::WentBack, is_old);
    }
}

#[test]
fn doubt_about_the_store_is_settled_only_by_a_later_read() {
    let mut state = new_state();
    state.store.mark_unverified(now(1).moment);
    assert_eq!(state.store.status(), StoreStatus::Unverified);
    let before = state.start_store_check();
    state.store.mark_unverified(now(2).moment);
    assert_eq!(state.store.due(), None, "one at a time");
    state.finish_store_check(Ok(Revision(7)), before, now(3));
    assert_eq!(state.store.status(), StoreStatus::Unverified);
    assert_eq!(state.store.due(), Some(now(2).moment));
    ask(&mut state, 8, now(4));
    assert_eq!(state.store.status(), StoreStatus::Verified);
    assert_eq!(state.store.due(), Some(now(4).moment.after(CHECK_INTERVAL)));
}

#[test]
fn unanswered_read_leaves_the_store_doubtful_and_is_retried() {
    let mut state = new_state();
    state.store.mark_unverified(now(1).moment);
    let before = state.start_store_check();
    let down = StoreError::Unavailable("down".to_owned());
    state.finish_store_check(Err(down), before, now(2));
    assert_eq!(state.store.status(), StoreStatus::Unverified);
    assert_eq!(state.store.due(), Some(now(2).moment.after(RETRY_INTERVAL)));
}

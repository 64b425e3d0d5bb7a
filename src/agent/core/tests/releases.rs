//! How grants that are over leave the store.

use std::collections::BTreeMap;

use super::*;
use crate::agent::core::gone::{Ending, GoneGrant};
use crate::agent::core::history::End;
use crate::agent::core::leftover::Uncertain;
use crate::agent::core::release::ReleaseOf;
use crate::protocol::ids::{OwnerId, Resource};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lock::Grant;
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::session::Claimant;
use crate::protocol::token::Token;

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn resource() -> Resource {
    Resource::parse("r").unwrap()
}

pub(super) fn claimant(session: &str) -> Claimant {
    Claimant {
        owner: OwnerId::from("app"),
        pod: PodRef {
            name: "a".into(),
            uid: "u".into(),
            node: None,
        },
        session: SessionId::from(session),
        session_ttl: SessionTtl::clamped(15),
    }
}

pub(super) fn key(grant: &str) -> GrantKey {
    GrantKey {
        id: grant.into(),
        session: SessionKey {
            id: SessionId::from("s"),
            pod_uid: "u".into(),
        },
    }
}

/// Returns the lock at a version: held by this grant of our session, or free.
pub(super) fn lock(grant: Option<&str>, version: u64) -> Stored<Lock> {
    let held = |id: &str| Grant {
        id: id.into(),
        holder: claimant("s"),
        metadata: BTreeMap::new(),
        acquired_at: WallTime(0),
        kept: false,
    };
    Stored {
        value: Lock {
            grant: grant.map(held),
            token: Token::from_raw(7_000),
            ..Lock::unheld(resource())
        },
        version: Revision(version),
        original: Original::new(()),
    }
}

/// Returns the lock, held by another session, with our entry in its queue.
pub(super) fn queued(grant: &str, version: u64) -> Stored<Lock> {
    let mut stored = lock(Some("another"), version);
    if let Some(held) = &mut stored.value.grant {
        held.holder = claimant("another's");
    }
    stored.value.waiters = Queue::from_entries(vec![Waiter {
        grant: grant.into(),
        claimant: claimant("s"),
        queued_at: WallTime(0),
        preferred: false,
    }]);
    stored
}

pub(super) fn found(stored: Stored<Lock>) -> Answer {
    Answer::Lock(Some(Box::new(stored)))
}

pub(super) fn release_of(grant: &str) -> ReleaseOf {
    ReleaseOf::new(resource(), key(grant), Some(lock(Some(grant), 20)))
}

/// Returns the release of a lease that its app ended, while it was promised for a second more.
fn last_release(rig: &Rig) -> ReleaseOf {
    let ending = Ending {
        lease: "g.0".into(),
        gone: GoneGrant {
            grant: "g".into(),
            base: Token::from_raw(7_000),
        },
        session: SessionId::from("s"),
        seen_at: Revision(20),
        promised_until: rig.now.after(SECOND),
    };
    ReleaseOf {
        ending: Some(ending),
        ..release_of("g")
    }
}

impl Rig {
    pub(super) fn release(&mut self, what: ReleaseOf) {
        self.with(|core, cx| core.leases(cx).release(what, Vec::new()));
    }

    fn end_lease(&mut self) {
        let what = last_release(self);
        let (lease, now) = (what.ending.as_ref().unwrap().lease.clone(), self.now);
        let history = &mut self.core.history;
        history.record_end(lease, End::Releasing, None, now);
        self.release(what);
    }

    fn end(&self) -> Option<End> {
        self.core.history.end(&"g.0".into())
    }

    pub(super) fn lock_read(&mut self) -> OpId {
        match self.call() {
            (op, StoreCall::GetLock(_)) => op,
            (_, call) => panic!("{call:?}"),
        }
    }

    /// Takes a write of the lock: the version that it was decided on, and what is to be written.
    pub(super) fn lock_write(&mut self) -> (OpId, Revision, Lock) {
        match self.call() {
            (op, StoreCall::UpdateLock(current, next)) => (op, current.version, *next),
            (_, call) => panic!("{call:?}"),
        }
    }
}

#[test]
fn known_lock_is_released_by_one_write_on_its_version() {
    let mut rig = Rig::new();
    rig.end_lease();
    let (op, version, next) = rig.lock_write();
    assert_eq!((version, next.grant), (Revision(20), None));
    assert_eq!(rig.end(), Some(End::Releasing));
    rig.answer(op, found(lock(None, 21)));
    assert_eq!(rig.end(), Some(End::Released));
    assert_eq!(rig.core.releases.len(), 0);
}

#[test]
fn conflict_is_followed_by_the_newest_version_or_a_read() {
    let mut rig = Rig::new();
    rig.end_lease();
    let (op, ..) = rig.lock_write();
    let newer = lock(Some("g"), 25);
    assert!(rig.core.releases.observe(&"g".into(), &newer));
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    let (op, version, _) = rig.lock_write();
    assert_eq!(
        version,
        Revision(25),
        "what the watch reported spares a read"
    );
    rig.answer(op, Answer::Failed(StoreError::Conflict));
    let op = rig.lock_read();
    rig.answer(op, found(lock(Some("g"), 26)));
    let (_, version, _) = rig.lock_write();
    assert_eq!(version, Revision(26));
}

#[test]
fn gone_grant_is_a_success_only_if_a_release_was_sent() {
    for (sent, end) in [
        (unclear(), End::Released),
        (unavailable(), End::Lost(Loss::GrantGone)),
    ] {
        let mut rig = Rig::new();
        rig.end_lease();
        let (op, ..) = rig.lock_write();
        rig.answer(op, sent.clone());
        rig.sleep_until_due();
        let op = rig.lock_read();
        rig.answer(op, found(lock(None, 21)));
        assert_eq!(rig.end(), Some(end), "{sent:?}");
    }
}

#[test]
fn held_back_grant_is_released_when_its_promise_or_its_apps_end() {
    for apps_end in [false, true] {
        let mut rig = Rig::new();
        let what = ReleaseOf {
            not_before: rig.now.after(SECOND),
            ..release_of("g")
        };
        rig.release(what);
        rig.sleep(SECOND / 2);
        assert_eq!((rig.calls(), rig.core.releases.held_back()), (0, 1));
        if apps_end {
            rig.with(Core::release_held_back);
        } else {
            rig.sleep(SECOND / 2);
        }
        rig.lock_write();
        assert_eq!(rig.core.releases.held_back(), 0);
    }
}

#[test]
fn release_that_is_refused_is_given_up_after_ten_minutes() {
    let mut rig = Rig::new();
    rig.end_lease();
    let since = rig.now;
    let denied = || Answer::Failed(StoreError::Denied("no right".into()));
    let (op, ..) = rig.lock_write();
    rig.answer(op, denied());
    while rig.core.releases.len() > 0 {
        rig.sleep_until_due();
        let op = rig.lock_read();
        rig.answer(op, denied());
    }
    assert!((600..620).contains(&rig.now.since(since).as_secs()));
    assert_eq!(rig.end(), Some(End::Releasing), "nothing is known of it");
}

#[test]
fn grants_of_a_lost_session_are_released_some_at_a_time() {
    let mut rig = Rig::new();
    for n in 0..40 {
        let what = ReleaseOf {
            not_before: rig.now.after(SECOND),
            give_up_at: Some(rig.now.after(SECOND * 600)),
            ..release_of(&format!("g{n}"))
        };
        rig.release(what);
    }
    assert_eq!(rig.core.releases.len(), 0, "no session has to outlive them");
    rig.sleep(SECOND);
    assert_eq!(rig.calls(), 16);
    for n in 0..40 {
        let (op, ..) = rig.lock_write();
        rig.answer(op, found(lock(None, 21)));
        assert!(rig.calls() <= 16, "after {n}");
    }
    assert_eq!(rig.calls(), 0);
    assert_eq!(rig.core.poll_timeout(), None);
}

/// Looks for what a claim left, and answers the read with this lock; returns whether that is all.
fn is_settled(uncertain: Option<Uncertain>, read: Stored<Lock>) -> bool {
    let mut rig = Rig::new();
    rig.with(|core, cx| {
        core.leases(cx)
            .look_for_leftover(&resource(), key("g"), uncertain);
    });
    let op = rig.lock_read();
    rig.answer(op, found(read));
    rig.core.releases.len() == 0
}

#[test]
fn claim_is_looked_for_while_its_write_may_still_be_applied() {
    let swap = Some(Uncertain::Swap(Revision(20)));
    let join = Some(Uncertain::Join);
    assert!(is_settled(None, lock(None, 20)));
    assert!(
        !is_settled(swap, lock(None, 20)),
        "the lock has that version still"
    );
    assert!(is_settled(swap, lock(None, 21)));
    assert!(!is_settled(join, lock(None, 21)), "a join fits any version");
}

#[test]
fn late_join_is_looked_for_during_two_minutes() {
    let mut rig = Rig::new();
    let join = Some(Uncertain::Join);
    rig.with(|core, cx| {
        core.leases(cx)
            .look_for_leftover(&resource(), key("g"), join);
    });
    let since = rig.now;
    while rig.core.releases.len() > 0 {
        let op = rig.lock_read();
        rig.answer(op, found(lock(None, 21)));
        if rig.core.releases.len() > 0 {
            rig.sleep_until_due();
        }
    }
    assert!((100..=120).contains(&rig.now.since(since).as_secs()));
}

#[test]
fn queue_entry_of_a_given_up_claim_is_removed() {
    for (uncertain, is_done) in [(None, true), (Some(Uncertain::Join), false)] {
        let mut rig = Rig::new();
        rig.with(|core, cx| {
            core.leases(cx)
                .look_for_leftover(&resource(), key("g"), uncertain);
        });
        let op = rig.lock_read();
        rig.answer(op, found(queued("g", 21)));
        let (op, version, next) = rig.lock_write();
        assert_eq!((version, next.waiters.len()), (Revision(21), 0));
        rig.answer(op, found(lock(None, 22)));
        let is_gone = rig.core.releases.len() == 0;
        assert_eq!(is_gone, is_done, "the join may be applied once more");
    }
}

#[test]
fn grant_of_a_given_up_claim_is_released() {
    let mut rig = Rig::new();
    rig.with(|core, cx| {
        core.leases(cx)
            .look_for_leftover(&resource(), key("g"), None);
    });
    let op = rig.lock_read();
    rig.answer(op, found(lock(Some("g"), 21)));
    let (op, version, next) = rig.lock_write();
    assert_eq!((version, next.grant), (Revision(21), None));
    rig.answer(op, found(lock(None, 22)));
    assert_eq!(rig.core.releases.len(), 0);
}

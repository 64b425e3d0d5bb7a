//! What the watch, lists and reads change of leases and warm grants.

use super::leases::{SECOND, request};
use super::releases::{claimant, found, lock, queued, resource};
use super::*;
use crate::agent::api::{AcquireRequest, Life};
use crate::agent::core::begun::FromWarm;
use crate::agent::core::leases::EndedBy;
use crate::agent::core::observed;
use crate::agent::core::own::Before;
use crate::protocol::object::LockEvent;
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::settings::{ReleaseMode, ReleaseRequest};

#[test]
fn warm_grant_is_released_when_others_wait_for_it() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&AcquireRequest {
        keep: SECOND * 3,
        ..request(resource())
    });
    assert!(rig.end_by(&lease.lease, EndedBy::App));
    rig.effects.clear();
    let mut seen = rig.own(resource(), "g", 30);
    seen.value.waiters = queued("w", 0).value.waiters;
    rig.event(LockEvent::Held(Box::new(seen)));
    let (_, version, _) = rig.lock_write();
    assert_eq!(version, Revision(30));
}

#[test]
fn gone_grant_ends_its_lease_at_once_and_the_reason_follows() {
    for is_answered in [true, false] {
        let mut rig = Rig::with_session();
        let lease = rig.begin(&request(resource())).lease;
        rig.effects.clear();
        rig.gone(19);
        assert!(rig.core.own.lease(&lease).is_some(), "it is older news");
        rig.gone(21);
        assert!(rig.core.own.lease(&lease).is_none());
        assert_eq!(rig.lost_leases(), [], "the reason is not known yet");
        let op = rig.lock_read();
        if is_answered {
            rig.answer(op, found(lock(None, 21)));
        } else {
            rig.sleep(Duration::from_millis(999));
            assert_eq!(rig.lost_leases(), []);
            rig.sleep(Duration::from_millis(1));
        }
        assert_eq!(rig.lost_leases(), [Loss::GrantGone]);
    }
}

#[test]
fn read_that_shows_another_grant_ends_the_lease() {
    for (version, is_lost) in [(19, false), (21, true)] {
        let mut rig = Rig::with_session();
        let lease = rig.begin(&request(resource())).lease;
        let before: Before = rig.core.own.before_read(&resource());
        let read = lock(Some("another"), version);
        rig.with(|core, cx| {
            observed::compared(&mut core.leases(cx), &resource(), before, Some(&read));
        });
        assert_eq!(rig.core.own.lease(&lease).is_none(), is_lost);
    }
}

#[test]
fn release_request_is_reported_once_and_ends_the_grant() {
    let mut rig = Rig::with_session();
    let first = rig.begin(&AcquireRequest {
        keep: SECOND * 3,
        ..request(resource())
    });
    rig.effects.clear();
    let mut seen = rig.own(resource(), "g", 30);
    seen.value.settings.release_request = Some(std::sync::Arc::new(ReleaseRequest {
        lease: "g".into(),
        mode: ReleaseMode::Ask,
        reason: "upgrade".into(),
        actor: "alice".into(),
    }));
    for version in [30, 31] {
        seen.version = Revision(version);
        rig.event(LockEvent::Held(Box::new(seen.clone())));
    }
    let reported = rig.effects.iter();
    let reported =
        reported.filter(|effect| matches!(effect, Effect::Report(Report::ReleaseRequested(..))));
    assert_eq!(reported.count(), 1);
    assert!(rig.end_by(&first.lease, EndedBy::App));
    let (_, version, next) = rig.lock_write();
    assert_eq!(version, Revision(31));
    assert_eq!(next.incidents.len(), 1, "the record of the request");
}

#[test]
fn foreign_grant_of_our_session_is_neither_served_nor_released() {
    let mut rig = Rig::with_session();
    rig.effects.clear();
    let mut foreign = rig.own(resource(), "x", 30);
    if let Some(grant) = &mut foreign.value.grant {
        grant.holder.pod.uid = "another".into();
    }
    for _ in 0..2 {
        rig.event(LockEvent::Held(Box::new(foreign.clone())));
    }
    let reported = rig.effects.iter();
    let reported =
        reported.filter(|effect| matches!(effect, Effect::Report(Report::ForeignGrant(..))));
    assert_eq!((reported.count(), rig.calls()), (1, 0));
}

#[test]
fn entry_in_the_queue_shortens_the_share_of_the_lease() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    rig.effects.clear();
    let mut seen = rig.own(resource(), "g", 30);
    seen.value.waiters = Queue::from_entries(vec![Waiter {
        grant: "w".into(),
        claimant: claimant("another's"),
        queued_at: WallTime(0),
        preferred: false,
    }]);
    rig.event(LockEvent::Held(Box::new(seen)));
    assert!(rig.core.own.lease(&lease).unwrap().share.others_wait());
    assert!(rig.end_by(&lease, EndedBy::App));
    let (_, version, next) = rig.lock_write();
    assert_eq!(version, Revision(30), "the release needs no read");
    assert_eq!(next.grant.map(|grant| grant.id), Some("w".into()));
}

#[test]
fn session_is_listed_while_a_grant_is_used_again() {
    let mut rig = Rig::with_session();
    let first = rig.begin(&AcquireRequest {
        keep: SECOND * 3,
        life: Life::Campaign,
        ..request(resource())
    });
    rig.effects.clear();
    rig.live_on(SECOND * 6);
    let lists = |rig: &Rig| {
        let effects = rig.effects.iter();
        let lists = effects.filter(|effect| {
            matches!(
                effect,
                Effect::Call {
                    call: StoreCall::ListHeld(_),
                    ..
                }
            )
        });
        lists.count()
    };
    assert_eq!(lists(&rig), 0, "each lease came with a write");
    assert!(rig.end_by(&first.lease, EndedBy::App));
    assert!(matches!(
        rig.begin_from_warm(Duration::ZERO),
        FromWarm::Lease(_)
    ));
    rig.live_on(SECOND * 6);
    assert_eq!(lists(&rig), 1);
}

#[test]
fn failed_list_of_a_used_grant_is_followed_by_the_next() {
    let mut rig = Rig::with_session();
    let first = rig.begin(&AcquireRequest {
        keep: SECOND * 3,
        life: Life::Campaign,
        ..request(resource())
    });
    assert!(rig.end_by(&first.lease, EndedBy::App));
    for _ in 0..2 {
        let FromWarm::Lease(next) = rig.begin_from_warm(SECOND * 3) else {
            panic!("nothing was kept");
        };
        rig.effects.clear();
        rig.live_on(Duration::from_millis(5_500));
        let (op, call) = rig.call();
        assert!(matches!(call, StoreCall::ListHeld(_)));
        rig.answer(op, unavailable());
        let _ = rig.end_by(&next.lease, EndedBy::App);
    }
}

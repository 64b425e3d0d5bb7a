//! Tests the plan for each kind of session and lock, and when no action is planned.

mod housekeeping;
mod out_of_service;
mod strangers;

use std::sync::Arc;

use super::*;
use crate::operator::observation::Observation;
use crate::operator::rules::BindSidecars;
use crate::operator::tests;
use crate::protocol::ids::{GrantId, OwnerId, Resource};
use crate::protocol::lock::{Claim, Decision, Lock};
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::session::{Claimant, PodRef, RenewalFailures, Session};
use crate::protocol::settings::{ReleaseRequest, Settings};
use crate::protocol::time::{SessionTtl, WallTime};
use crate::protocol::token::{Mint, Revision, Seen, Token};
use crate::store::fleet::{ContainerReport, FeedEvent, Object, PodReport};

const TTL: u64 = 20;

fn at(seconds: u64) -> Now {
    Now {
        moment: Moment::since_boot(Duration::from_secs(1_000_000 + seconds)),
        wall: WallTime(1_700_000_000_000_000 + i64::try_from(seconds).unwrap() * 1_000_000),
    }
}

pub(in crate::operator) fn rules() -> Rules {
    Rules {
        actor: "operator-0".into(),
        token_floor: 0,
        retain: Duration::from_secs(86_400),
        keep_sessions: Duration::from_secs(600),
        long_held: Duration::from_secs(3_600),
        leader_labels: false,
        unready_leader: Duration::from_secs(60),
        bind_sidecars: BindSidecars::None,
        report_uninjected: false,
        namespace: "leasehold-system".into(),
    }
}

fn object_ref(name: &str) -> ObjectRef {
    tests::object_ref("n", name)
}

fn placed<T>(name: &str, value: T, version: u64) -> Object<T> {
    Object {
        uid: format!("uid-of-{name}").into(),
        ..tests::object("n", name, version, value)
    }
}

fn claimant(who: &str) -> Claimant {
    Claimant {
        owner: OwnerId::from(who),
        pod: PodRef {
            name: who.into(),
            uid: format!("pod-{who}").as_str().into(),
            node: None,
        },
        session: who.into(),
        session_ttl: SessionTtl::clamped(TTL),
    }
}

fn session_of(who: &str) -> Session {
    Session {
        id: who.into(),
        pod: claimant(who).pod,
        ttl: SessionTtl::clamped(TTL),
        agent_version: "0".into(),
        renewals: 0,
        renewed_at: None,
        failures: RenewalFailures::default(),
        revoked: None,
    }
}

fn revoked(who: &str, reason: RevokeReason) -> Session {
    let revocation = Revocation {
        at: WallTime(0),
        by: "x".into(),
        reason,
    };
    session_of(who).revoked(revocation).unwrap()
}

fn free_lock() -> Lock {
    Lock::unheld(Resource::parse("r").unwrap())
}

fn held_by(who: &str, waiting: &[&str]) -> Lock {
    let claim = Claim {
        grant: format!("g-{who}").into(),
        claimant: claimant(who),
        metadata: std::collections::BTreeMap::new(),
        kept: false,
        at: at(0).wall,
        preferred: false,
    };
    let mint = Mint {
        seen: Seen::from_list(Revision(10)),
        floor: 0,
    };
    let Decision::Granted(lock) = free_lock().acquire(Revision(10), &mint, &claim) else {
        panic!("the lock is free");
    };
    let waiters = waiting.iter().map(|who| Waiter {
        grant: format!("g-{who}").into(),
        claimant: claimant(who),
        queued_at: WallTime(0),
        preferred: false,
    });
    Lock {
        waiters: Queue::from_entries(waiters.collect()),
        ..*lock
    }
}

/// A view that began at second 0, when every feed had been listed.
struct World {
    view: View,
    version: u64,
}

impl World {
    fn new() -> Self {
        let mut view = View::default();
        view.observe_revision(Revision(100), None);
        let now = at(0).moment;
        view.observe_lock(FeedEvent::ListStarted, at(0));
        view.observe_lock(FeedEvent::ListDone, at(0));
        view.observe_session(FeedEvent::ListStarted, now);
        view.observe_session(FeedEvent::ListDone, now);
        view.observe_pod(FeedEvent::ListStarted);
        view.observe_pod(FeedEvent::ListDone);
        Self { view, version: 100 }
    }

    fn session(mut self, session: Session, seconds: u64) -> Self {
        self.version += 1;
        let name = session.id.to_string();
        let told = FeedEvent::Applied(Box::new(placed(&name, session, self.version)));
        self.view.observe_session(told, at(seconds).moment);
        self
    }

    fn lock(self, lock: Lock, seconds: u64) -> Self {
        self.lock_that_is(lock, seconds, false)
    }

    fn lock_that_is(mut self, lock: Lock, seconds: u64, is_deleted: bool) -> Self {
        self.version += 1;
        let lock = Object {
            is_deleted,
            ..placed("r", lock, self.version)
        };
        self.told(FeedEvent::Applied(Box::new(lock)), seconds)
    }

    fn told(mut self, told: FeedEvent<Object<Lock>>, seconds: u64) -> Self {
        self.view.observe_lock(told, at(seconds));
        self
    }

    fn no_session(mut self, who: &str, seconds: u64) -> Self {
        self.view
            .observe_session_missing(&object_ref(who), at(seconds).moment);
        self
    }

    fn pod_ended(mut self, who: &str) -> Self {
        self.view
            .observe_pod(FeedEvent::Applied(Box::new(PodReport {
                object_ref: object_ref(who),
                uid: claimant(who).pod.uid,
                is_terminal: true,
                is_deleted: false,
                is_presumed: false,
                declared: 1,
                containers: vec![ContainerReport::Terminated],
            })));
        self
    }

    fn about_session(&self, who: &str, seconds: u64) -> Plan {
        plan(
            &self.view,
            &rules(),
            &Key::Session(object_ref(who)),
            at(seconds),
        )
    }

    fn about_lock(&self, seconds: u64) -> Plan {
        plan(
            &self.view,
            &rules(),
            &Key::Lock(object_ref("r")),
            at(seconds),
        )
    }
}

fn waits_until(step: &Plan, seconds: u64) {
    assert!(step.action.is_none(), "{:?}", step.action);
    assert_eq!(step.requeue_at, Some(at(seconds).moment));
}

#[track_caller]
fn revokes(step: Plan, expected: &RevokeReason) {
    let Some(Action::Revoke { next, .. }) = step.action else {
        panic!("{step:?}");
    };
    let revocation = next.revoked.unwrap();
    assert_eq!(revocation.reason, *expected);
    assert_eq!(&*revocation.by, "operator-0");
}

#[track_caller]
fn writes(step: Plan) -> (Lock, WriteReason) {
    let Some(Action::Write { next, why, .. }) = step.action else {
        panic!("{step:?}");
    };
    (*next, why)
}

fn holder(lock: &Lock) -> Option<&str> {
    lock.grant
        .as_ref()
        .map(|grant| grant.holder.session.as_str())
}

#[test]
fn silent_session_is_revoked_after_105_percent_of_its_ttl() {
    let mut world = World::new()
        .session(session_of("a"), 10)
        .lock(held_by("a", &[]), 10);
    waits_until(&world.about_session("a", 10), 22);
    let step = world.about_session("a", 22);
    assert!(
        matches!(step.action, Some(Action::ReadPod(_))),
        "nobody looked before this: {:?}",
        step.action
    );
    let version = world
        .view
        .session(&object_ref("a"))
        .unwrap()
        .session
        .stored
        .version;
    world.view.mark_pod_checked(&object_ref("a"), version);
    waits_until(&world.about_session("a", 22), 31);
    revokes(world.about_session("a", 31), &RevokeReason::Expired);

    let renewed = world.session(session_of("a"), 31);
    waits_until(&renewed.about_session("a", 31), 43);
}

#[test]
fn pod_of_a_session_without_locks_is_not_read() {
    let world = World::new().session(session_of("a"), 10);
    waits_until(&world.about_session("a", 30), 31);
    revokes(world.about_session("a", 31), &RevokeReason::Expired);
}

#[test]
fn lock_of_another_pod_does_not_change_a_sessions_ttl() {
    let mut lock = held_by("a", &[]);
    let holder = &mut lock.grant.as_mut().unwrap().holder;
    holder.session_ttl = SessionTtl::clamped(120);
    holder.pod.uid = "pod-of-another".into();
    let world = World::new().session(session_of("a"), 0).lock(lock, 0);
    revokes(world.about_session("a", 21), &RevokeReason::Expired);
}

#[test]
fn queue_changes_do_not_restart_a_missing_sessions_ttl() {
    let world = World::new().lock(held_by("a", &[]), 0).no_session("a", 10);
    let world = world
        .lock(held_by("a", &["b"]), 15)
        .session(session_of("b"), 15)
        .lock(held_by("a", &[]), 20);
    waits_until(&world.about_lock(20), 31);
    assert_eq!(holder(&writes(world.about_lock(31)).0), None);
}

#[test]
fn waiters_sessions_are_read_while_the_holders_is_missing() {
    let world = World::new()
        .lock(held_by("a", &["b", "c"]), 0)
        .no_session("a", 0);
    let step = world.about_lock(1);
    assert!(matches!(step.action, Some(Action::ReadSession(p)) if p == object_ref("b")));
    let world = world.no_session("b", 1).session(session_of("c"), 9);
    waits_until(&world.about_lock(1), 21);
    assert_eq!(holder(&writes(world.about_lock(23)).0), Some("c"));
}

#[test]
fn report_of_a_running_pod_replaces_the_report_of_its_end() {
    let mut world = World::new().session(session_of("a"), 0).pod_ended("a");
    let running = PodReport {
        object_ref: object_ref("a"),
        uid: claimant("a").pod.uid,
        is_terminal: false,
        is_deleted: true,
        is_presumed: false,
        declared: 1,
        containers: vec![ContainerReport::Alive],
    };
    let read = Observation::PodOfSession {
        session: object_ref("a"),
        version: Revision(world.version),
        report: Some(running),
    };
    world.view.observe(read, at(1));
    assert!(world.about_session("a", 1).action.is_none());
}

#[test]
fn forced_release_does_not_wait_for_an_unreadable_session() {
    let lock = Lock {
        settings: asked(ReleaseMode::Force, "g-a"),
        ..held_by("a", &[])
    };
    let world = World::new().lock(lock, 0);
    assert_eq!(writes(world.about_lock(0)).1, WriteReason::Force);
}

#[test]
fn largest_ttl_recorded_by_a_holder_counts() {
    let mut lock = held_by("a", &[]);
    let holder = &mut lock.grant.as_mut().unwrap().holder;
    holder.session_ttl = SessionTtl::clamped(100);
    let mut world = World::new().session(session_of("a"), 0).lock(lock, 0);
    let version = world
        .view
        .session(&object_ref("a"))
        .unwrap()
        .session
        .stored
        .version;
    world.view.mark_pod_checked(&object_ref("a"), version);
    waits_until(&world.about_session("a", 50), 105);
}

#[test]
fn a_session_whose_pod_ended_is_revoked_at_once() {
    let world = World::new().session(session_of("a"), 0).pod_ended("a");
    revokes(world.about_session("a", 1), &RevokeReason::PodEnded);
    let other = World::new().session(session_of("b"), 0).pod_ended("a");
    assert!(other.about_session("b", 1).action.is_none());
}

#[test]
fn lock_is_taken_over_only_after_its_session_is_revoked() {
    let world = World::new()
        .session(session_of("a"), 0)
        .lock(held_by("a", &["b"]), 0);
    assert!(
        world.about_lock(100).action.is_none(),
        "silent, and not revoked yet"
    );

    let world = world.session(revoked("a", RevokeReason::Expired), 100);
    let (next, why) = writes(world.about_lock(100));
    assert_eq!(holder(&next), Some("b"));
    assert_eq!(next.incidents[0].kind, IncidentKind::Expired);
    assert_eq!(next.incidents[0].grant, Some(GrantId::from("g-a")));
    let last_seen = at(0).moment;
    let kind = IncidentKind::Expired;
    // Late, as the revocation was.
    let due = last_seen.after(Duration::from_secs(21));
    let expected = WriteReason::Reclaim {
        kind,
        last_seen,
        due,
    };
    assert_eq!(why, expected);
}

#[test]
fn unknown_revoke_reason_is_kept_in_the_incident() {
    let reason = RevokeReason::Other("Whatever".into());
    let world = World::new()
        .session(revoked("a", reason), 5)
        .lock(held_by("a", &[]), 5);
    let (next, _) = writes(world.about_lock(5));
    let words = "session a was revoked by x (Whatever)";
    assert_eq!(&*next.incidents[0].reason, words);
}

#[test]
fn ended_sessions_locks_are_reclaimed_after_a_delay() {
    let world = World::new()
        .session(revoked("a", RevokeReason::Ended), 5)
        .lock(held_by("a", &[]), 5);
    waits_until(&world.about_lock(5), 6);
    assert_eq!(holder(&writes(world.about_lock(6)).0), None);
}

#[test]
fn expired_waiters_are_dropped_in_the_same_write() {
    let world = World::new()
        .session(revoked("a", RevokeReason::PodEnded), 0)
        .session(revoked("dead", RevokeReason::Expired), 0)
        .session(session_of("silent"), 0)
        .session(session_of("alive"), 30)
        .lock(held_by("a", &["dead", "silent", "unseen", "alive"]), 30);
    let (next, _) = writes(world.about_lock(31));
    assert_eq!(holder(&next), Some("unseen"));
    assert_eq!(next.incidents[0].kind, IncidentKind::PodEnded);
    let waiting: Vec<_> = next
        .waiters
        .entries()
        .iter()
        .map(|w| w.claimant.session.as_str())
        .collect();
    assert_eq!(waiting, ["alive"]);
}

#[test]
fn missing_session_is_read_and_expires_after_its_ttl() {
    let world = World::new().lock(held_by("a", &[]), 0);
    let step = world.about_lock(0);
    assert!(matches!(step.action, Some(Action::ReadSession(p)) if p == object_ref("a")));
    let world = world.no_session("a", 10);
    waits_until(&world.about_lock(11), 31);
    let (freed, _) = writes(world.about_lock(31));
    assert_eq!(holder(&freed), None);
    // The end of the grant is recorded, regardless of which client deleted the session.
    let [incident] = &freed.incidents[..] else {
        panic!("{:?}", freed.incidents);
    };
    assert_eq!(incident.kind, IncidentKind::Expired);
    assert!(incident.reason.contains("was missing"), "{incident:?}");

    let found = world.session(session_of("a"), 20);
    assert!(found.about_lock(31).action.is_none());
}

fn asked(mode: ReleaseMode, lease: &str) -> Settings {
    Settings {
        release_request: Some(Arc::new(ReleaseRequest {
            lease: lease.into(),
            mode,
            reason: "stuck".into(),
            actor: "jane".into(),
        })),
        ..Settings::default()
    }
}

#[test]
fn forced_release_ends_only_the_named_grant() {
    let world = |settings| {
        let lock = Lock {
            settings,
            ..held_by("a", &["b"])
        };
        World::new().session(session_of("a"), 0).lock(lock, 0)
    };
    let (next, why) = writes(world(asked(ReleaseMode::Force, "g-a")).about_lock(0));
    assert_eq!((holder(&next), why), (Some("b"), WriteReason::Force));
    let incident = &next.incidents[0];
    assert_eq!(incident.kind, IncidentKind::ForceReleased);
    assert_eq!((&*incident.actor, &*incident.reason), ("jane", "stuck"));
    for settings in [
        asked(ReleaseMode::Force, "g-b"),
        asked(ReleaseMode::Ask, "g-a"),
    ] {
        assert!(world(settings).about_lock(0).action.is_none());
    }
}

#[test]
fn no_grant_before_the_stores_revision_is_known() {
    let mut view = View::default();
    let session = revoked("a", RevokeReason::Expired);
    view.observe_session(
        FeedEvent::Applied(Box::new(placed("a", session, 1))),
        at(0).moment,
    );
    view.observe_lock(
        FeedEvent::Applied(Box::new(placed("r", held_by("a", &["b"]), 2))),
        at(0),
    );
    let key = Key::Lock(object_ref("r"));
    assert!(plan(&view, &rules(), &key, at(9)).action.is_none());
    view.observe_revision(Revision(100), None);
    assert!(plan(&view, &rules(), &key, at(9)).action.is_some());
}

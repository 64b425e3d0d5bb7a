//! Tests when the label of an election's leader is removed, added, and left unchanged.

use super::*;
use crate::operator::key::Key;
use crate::operator::observation::Observation;
use crate::operator::plan;
use crate::operator::tests::{at, now, object};
use crate::protocol::ids::{OwnerId, Resource};
use crate::protocol::lock::{Claim, Decision, Lock};
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::time::{SessionTtl, WallTime};
use crate::protocol::token::{Mint, Revision, Seen};
use crate::store::fleet::{FeedEvent, Object};

pub(in crate::operator) fn object_ref(name: &str) -> ObjectRef {
    ObjectRef {
        namespace: "n".into(),
        name: name.into(),
    }
}

pub(in crate::operator) fn pod(who: &str) -> PodIdentity {
    PodIdentity {
        object_ref: object_ref(who),
        uid: format!("uid-{who}").into(),
    }
}

fn free(resource: &str) -> Lock {
    Lock::unheld(Resource::parse(resource).unwrap())
}

pub(in crate::operator) fn led_by(resource: &str, who: &str, pod_uid: &str) -> Lock {
    let claim = Claim {
        grant: format!("g-{who}").into(),
        claimant: Claimant {
            owner: OwnerId::from(who),
            pod: PodRef {
                name: who.into(),
                uid: pod_uid.into(),
                node: None,
            },
            session: who.into(),
            session_ttl: SessionTtl::clamped(15),
        },
        metadata: std::collections::BTreeMap::new(),
        kept: false,
        at: WallTime(0),
        preferred: false,
    };
    let mint = Mint {
        seen: Seen::from_list(Revision(10)),
        floor: 0,
    };
    let Decision::Granted(lock) = free(resource).acquire(Revision(10), &mint, &claim) else {
        panic!("the lock is free");
    };
    *lock
}

/// A view that observes locks, and whether labelling is on.
pub(in crate::operator) struct World {
    pub(in crate::operator) view: View,
    version: u64,
    on: bool,
}

impl World {
    pub(in crate::operator) fn new() -> Self {
        Self {
            view: View::default(),
            version: 0,
            on: true,
        }
    }

    fn told(mut self, name: &str, lock: Lock) -> Self {
        self.tell(name, lock);
        self
    }

    fn tell(&mut self, name: &str, value: Lock) {
        self.tell_placed(name, value, false);
    }

    /// Observes a lock with the election's resource in an object of another name.
    fn misnamed(mut self, name: &str, lock: Lock) -> Self {
        self.tell_placed(name, lock, true);
        self
    }

    /// Observes a lock. `is_misnamed` is whether its name is not that of its resource.
    fn tell_placed(&mut self, name: &str, value: Lock, is_misnamed: bool) {
        self.version += 1;
        let lock = Object {
            is_misnamed,
            ..object("n", name, self.version, value)
        };
        self.view
            .observe_lock(FeedEvent::Applied(Box::new(lock)), now(0));
    }

    /// Makes this pod the leader of the election `jobs`; `None` for no leader.
    pub(in crate::operator) fn lead(&mut self, who: Option<&str>) {
        let lock = match who {
            Some(who) => led_by("election:jobs", who, &format!("uid-{who}")),
            None => free("election:jobs"),
        };
        self.tell("l", lock);
    }

    pub(in crate::operator) fn step(&self, seconds: u64) -> Plan {
        let rules = Rules {
            leader_labels: self.on,
            ..plan::tests::rules()
        };
        plan::plan(
            &self.view,
            &rules,
            &Key::Label(object_ref("jobs")),
            now(seconds),
        )
    }

    fn taken(&mut self, grant: Option<&str>, is_labelled: bool, seconds: u64) {
        let removed = Observation::LabelRemoved {
            election: object_ref("jobs"),
            grant: grant.map(GrantId::from),
            is_labelled,
        };
        self.view.observe(removed, now(seconds));
    }

    fn given(&mut self, grant: &str) {
        let added = Observation::LabelAdded {
            election: object_ref("jobs"),
            grant: grant.into(),
        };
        self.view.observe(added, now(0));
    }
}

#[track_caller]
fn takes(step: Plan, for_grant: Option<&str>, but: Option<&str>) {
    let Some(Action::RemoveLabel { grant, keep, .. }) = step.action else {
        panic!("{step:?}");
    };
    assert_eq!(grant, for_grant.map(GrantId::from));
    assert_eq!(keep, but.map(pod));
}

#[track_caller]
fn gives(step: Plan, to: &str) {
    let Some(Action::AddLabel {
        election,
        grant,
        pod: given,
    }) = step.action
    else {
        panic!("{step:?}");
    };
    assert_eq!(key(&election), "leasehold.dev/leader-jobs");
    assert_eq!(grant, GrantId::from(format!("g-{to}").as_str()));
    assert_eq!(given, pod(to));
}

#[track_caller]
fn rests(step: &Plan, until: Option<u64>) {
    assert!(step.action.is_none(), "{step:?}");
    assert_eq!(step.requeue_at, until.map(at));
}

#[test]
fn label_is_removed_from_all_others_before_it_is_given() {
    let mut world = World::new();
    world.lead(Some("a"));
    takes(world.step(0), Some("g-a"), Some("a"));
    world.taken(Some("g-a"), false, 0);
    gives(world.step(0), "a");
    world.given("g-a");
    rests(&world.step(0), Some(65));

    world.lead(Some("b"));
    takes(world.step(1), Some("g-b"), Some("b"));
    // The lead moved while the label was removed: the observation is about a former leader.
    world.lead(Some("c"));
    world.taken(Some("g-b"), false, 1);
    takes(world.step(1), Some("g-c"), Some("c"));
    world.taken(Some("g-c"), false, 1);
    gives(world.step(1), "c");
    // The lead ended while the label was added.
    world.lead(None);
    world.given("g-c");
    takes(world.step(2), None, None);
    world.taken(None, false, 2);
    rests(&world.step(2), Some(65));
}

#[test]
fn unchanged_lead_causes_no_action() {
    let mut world = World::new();
    world.lead(Some("a"));
    world.taken(Some("g-a"), true, 0);
    rests(&world.step(0), Some(65));
    world.lead(Some("a"));
    rests(&world.step(1), Some(65));
}

#[test]
fn labels_are_read_again_once_after_the_first_read_or_a_failure() {
    let mut world = World::new();
    world.lead(Some("a"));
    world.taken(Some("g-a"), true, 0);
    rests(&world.step(64), Some(65));
    takes(world.step(65), Some("g-a"), Some("a"));
    world.taken(Some("g-a"), true, 65);
    rests(&world.step(9_999), None);

    let unknown = Observation::LabelUnknown(object_ref("jobs"));
    world.view.observe(unknown, now(0));
    takes(world.step(100), Some("g-a"), Some("a"));
    world.taken(Some("g-a"), true, 100);
    rests(&world.step(100), Some(165));
    world.view.forget_labels();
    takes(world.step(101), Some("g-a"), Some("a"));
}

#[test]
fn label_is_removed_after_its_lock_was_deleted() {
    let mut world = World::new();
    world.lead(Some("a"));
    world.taken(Some("g-a"), true, 0);
    takes(world.step(65), Some("g-a"), Some("a"));
    world.taken(Some("g-a"), true, 65);
    world.view.take_changed();
    world
        .view
        .observe_lock(FeedEvent::Deleted(object_ref("l")), now(70));
    assert!(
        world
            .view
            .take_changed()
            .contains(&Key::Label(object_ref("jobs")))
    );
    takes(world.step(70), None, None);
    world.taken(None, false, 70);
    rests(&world.step(70), None);
    assert_eq!(world.view.elections().keys().count(), 0, "none is known");
}

#[test]
fn only_the_holder_of_an_elections_single_lock_is_labelled() {
    let outside = World::new().told("l", led_by("election:jobs", "a", ""));
    takes(outside.step(0), Some("g-a"), None);
    let mut outside = outside;
    outside.taken(Some("g-a"), false, 0);
    rests(&outside.step(0), Some(65));

    let led = || led_by("election:jobs", "a", "uid-a");
    let twice = World::new().told("l", led()).told("m", led());
    takes(twice.step(0), None, None);
    for resource in ["jobs", "election:Jobs", "election:"] {
        let other = World::new().told("l", led_by(resource, "a", "uid-a"));
        rests(&other.step(0), None);
        assert_eq!(other.view.elections().keys().count(), 0, "{resource}");
    }
}

#[test]
fn lock_under_another_name_neither_labels_nor_unlabels() {
    let led = || led_by("election:jobs", "a", "uid-a");
    let stranger = led_by("election:jobs", "m", "uid-m");
    let both = World::new()
        .told("l", led())
        .misnamed("m", stranger.clone());
    takes(both.step(0), Some("g-a"), Some("a"));
    let alone = World::new().misnamed("m", stranger);
    rests(&alone.step(0), None);
    assert_eq!(alone.view.elections().keys().count(), 0);
}

#[test]
fn labelling_that_is_off_causes_no_action() {
    let mut world = World::new();
    world.on = false;
    world.lead(Some("a"));
    rests(&world.step(0), None);
}

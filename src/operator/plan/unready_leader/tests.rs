//! Tests when the pod of a leader is checked, and when it is not.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::operator::key::Key;
use crate::operator::observation::Observation;
use crate::operator::plan;
use crate::operator::plan::label::tests::{led_by, object_ref, pod};
use crate::operator::tests::{at, now, object};
use crate::protocol::ids::GrantId;
use crate::protocol::lock::Lock;
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::settings::{ReleaseMode, ReleaseRequest};
use crate::protocol::time::WallTime;
use crate::store::cluster::CandidatePod;
use crate::store::fleet::FeedEvent;

const BOUND: u64 = 60;

/// Returns the lock of the election `jobs`, led by this pod, with these waiters.
fn led(by: &str, waiting: &[&str]) -> Lock {
    let lock = led_by("election:jobs", by, &format!("uid-{by}"));
    let waiters = waiting.iter().map(|who| {
        let claimant = led_by("election:jobs", who, &format!("uid-{who}"));
        Waiter {
            grant: format!("g-{who}").into(),
            claimant: claimant.grant.unwrap().holder,
            queued_at: WallTime(0),
            preferred: false,
        }
    });
    Lock {
        waiters: Queue::from_entries(waiters.collect()),
        ..lock
    }
}

#[derive(Default)]
struct World {
    view: View,
    version: u64,
}

impl World {
    fn tell(&mut self, value: Lock) {
        self.version += 1;
        let lock = object("n", "l", self.version, value);
        let now = now(0);
        self.view
            .observe_lock(FeedEvent::Applied(Box::new(lock)), now);
    }

    fn step_with(&self, leader_labels: bool, seconds: u64) -> Plan {
        let rules = Rules {
            leader_labels,
            unready_leader: Duration::from_secs(BOUND),
            ..plan::tests::rules()
        };
        let now = now(seconds);
        plan::plan(&self.view, &rules, &Key::Leader(object_ref("jobs")), now)
    }

    fn step(&self, seconds: u64) -> Plan {
        self.step_with(true, seconds)
    }

    /// Records that the pod of this grant was checked.
    fn checked(&mut self, grant: &str, unready_since: Option<&str>, seconds: u64) {
        self.checked_as(true, grant, unready_since, seconds);
    }

    fn checked_as(
        &mut self,
        elects_always: bool,
        grant: &str,
        unready_since: Option<&str>,
        seconds: u64,
    ) {
        let pod = CandidatePod {
            elects_always,
            unready_since: unready_since.map(Into::into),
            is_deleted: false,
        };
        let check = Observation::Leader {
            election: object_ref("jobs"),
            grant: grant.into(),
            pod: Some(pod),
        };
        let now = now(seconds);
        self.view.observe(check, now);
    }
}

#[track_caller]
fn checks(step: Plan, leader: &str, waiting: &[&str], since: Option<&str>) {
    let Some(Action::CheckLeader {
        grant,
        pod: checked,
        others,
        unready_since,
        ..
    }) = step.action
    else {
        panic!("{step:?}");
    };
    assert_eq!(grant, GrantId::from(format!("g-{leader}").as_str()));
    assert_eq!(checked, pod(leader));
    let waiting: Vec<_> = waiting.iter().map(|name| pod(name)).collect();
    assert_eq!(others, waiting);
    assert_eq!(unready_since.as_deref(), since);
}

#[track_caller]
fn rests(step: &Plan, until: Option<u64>) {
    assert!(step.action.is_none(), "{step:?}");
    assert_eq!(step.requeue_at, until.map(at));
}

#[test]
fn unready_leader_is_checked_again_after_the_interval() {
    let mut world = World::default();
    world.tell(led("a", &["b"]));
    checks(world.step(0), "a", &["b"], None);
    world.checked("g-a", Some("noon"), 10);
    rests(&world.step(69), Some(70));
    checks(world.step(70), "a", &["b"], Some("noon"));
    // No other pod was Ready.
    world.checked("g-a", Some("noon"), 70);
    rests(&world.step(70), Some(130));
    // The next leader has its own checks.
    world.tell(led("b", &["a"]));
    checks(world.step(71), "b", &["a"], None);
}

#[test]
fn ready_leader_is_checked_at_intervals() {
    let mut world = World::default();
    world.tell(led("a", &["b", "c"]));
    world.checked("g-a", None, 0);
    rests(&world.step(59), Some(60));
    checks(world.step(60), "a", &["b", "c"], None);
}

#[test]
fn leader_is_not_checked_needlessly() {
    let mut asked = led("a", &["b"]);
    asked.settings.release_request = Some(Arc::new(ReleaseRequest {
        lease: "g-a".into(),
        mode: ReleaseMode::Ask,
        reason: "deploy".into(),
        actor: "jane".into(),
    }));
    let outside = Lock {
        waiters: led("a", &["b"]).waiters,
        ..led_by("election:jobs", "a", "")
    };
    for lock in [led("a", &[]), asked, outside] {
        let mut world = World::default();
        world.tell(lock.clone());
        let step = world.step(0);
        assert!(step.action.is_none(), "{lock:?}: {step:?}");
    }
    let mut world = World::default();
    world.tell(led("a", &["b"]));
    rests(&world.step_with(false, 0), None);
    world.checked_as(false, "g-a", Some("noon"), 0);
    rests(&world.step(9_999), None);
    // Another active replica makes its own checks.
    world.view.forget_labels();
    checks(world.step(9_999), "a", &["b"], None);
}

//! When a pod that leads is looked at, asked to resign, and left alone.

use super::*;
use crate::operator::label::tests::{led_by, place, pod};
use crate::operator::plan;
use crate::operator::view::Key;
use crate::protocol::lock::Lock;
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::settings::{ReleaseMode, ReleaseRequest};
use crate::protocol::time::WallTime;
use crate::protocol::token::Revision;
use crate::store::fleet::{Placed, Told};
use crate::store::{Original, Stored};

const BOUND: u64 = 60;

fn at(seconds: u64) -> Moment {
    Moment::since_boot(Duration::from_secs(seconds))
}

/// The election `jobs` is led by this pod, and these wait.
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
        let lock = Placed {
            place: place("l"),
            uid: "u".into(),
            is_deleted: false,
            is_misnamed: false,
            set_at: None,
            stored: Stored {
                value,
                version: Revision(self.version),
                original: Original::new(()),
            },
        };
        let now = plan::Now {
            moment: at(0),
            wall: WallTime(0),
        };
        self.view.note_lock(Told::There(Box::new(lock)), now);
    }

    fn step_with(&self, leader_labels: bool, seconds: u64) -> Step {
        let rules = Rules {
            leader_labels,
            unready_leader: Duration::from_secs(BOUND),
            ..plan::tests::rules()
        };
        let now = plan::Now {
            moment: at(seconds),
            wall: WallTime(0),
        };
        plan::step(&self.view, &rules, &Key::Leader(place("jobs")), now)
    }

    fn step(&self, seconds: u64) -> Step {
        self.step_with(true, seconds)
    }

    /// The pod of this grant was looked at.
    fn looked(&mut self, grant: &str, unready_since: Option<&str>, has_heir: bool, seconds: u64) {
        let pod = CandidatePod {
            runs_unasked: true,
            unready_since: unready_since.map(Into::into),
        };
        let elections = self.view.elections_mut();
        elections.note_leader(
            &place("jobs"),
            grant.into(),
            Some(pod),
            has_heir,
            at(seconds),
        );
    }
}

#[track_caller]
fn looks(step: Step, leader: &str, waiting: &[&str]) {
    let Some(Action::LookAtLeader {
        grant,
        pod: at,
        others,
        ..
    }) = step.action
    else {
        panic!("{step:?}");
    };
    assert_eq!(grant, GrantId::from(format!("g-{leader}").as_str()));
    assert_eq!(at, pod(leader));
    let waiting: Vec<_> = waiting.iter().map(|who| pod(who)).collect();
    assert_eq!(others, waiting);
}

#[track_caller]
fn asks(step: Step, leader: &str) {
    let Some(Action::AskLeader { grant, reason, .. }) = step.action else {
        panic!("{step:?}");
    };
    assert_eq!(grant, GrantId::from(format!("g-{leader}").as_str()));
    assert!(
        reason.contains(leader) && reason.contains("since noon"),
        "{reason}"
    );
}

#[track_caller]
fn rests(step: &Step, until: Option<u64>) {
    assert!(step.action.is_none(), "{step:?}");
    assert_eq!(step.again, until.map(at));
}

#[test]
fn who_is_unready_for_the_bound_is_asked_once() {
    let mut world = World::default();
    world.tell(led("a", &["b"]));
    looks(world.step(0), "a", &["b"]);
    world.looked("g-a", Some("noon"), true, 10);
    rests(&world.step(10), Some(70));
    // Another look is needed, even if something gave rise to none until long after.
    looks(world.step(500), "a", &["b"]);
    world.looked("g-a", Some("noon"), true, 500);
    asks(world.step(500), "a");
    let elections = world.view.elections_mut();
    elections.note_asked(&place("jobs"), "g-a".into(), at(500));
    rests(&world.step(9_999), None);
    // So is the next one that leads, by looks of its own.
    world.tell(led("b", &["a"]));
    looks(world.step(501), "b", &["a"]);
    world.looked("g-b", Some("noon"), true, 501);
    rests(&world.step(501), Some(561));
}

#[test]
fn who_was_ready_in_between_begins_anew() {
    let mut world = World::default();
    world.tell(led("a", &["b"]));
    world.looked("g-a", Some("morning"), true, 0);
    world.looked("g-a", Some("noon"), true, 60);
    rests(&world.step(60), Some(120));
    world.looked("g-a", None, false, 120);
    rests(&world.step(120), Some(180));
    looks(world.step(180), "a", &["b"]);
}

#[test]
fn nobody_is_asked_while_no_other_pod_is_ready() {
    let mut world = World::default();
    world.tell(led("a", &["b"]));
    world.looked("g-a", Some("noon"), false, 0);
    world.looked("g-a", Some("noon"), false, 60);
    rests(&world.step(60), Some(120));
    looks(world.step(120), "a", &["b"]);
    world.looked("g-a", Some("noon"), true, 120);
    asks(world.step(120), "a");
}

#[test]
fn these_are_left_alone() {
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
    let asks_itself = CandidatePod {
        runs_unasked: false,
        unready_since: Some("noon".into()),
    };
    let elections = world.view.elections_mut();
    elections.note_leader(&place("jobs"), "g-a".into(), Some(asks_itself), true, at(0));
    rests(&world.step(9_999), None);
    // Another replica looks by itself.
    world.view.elections_mut().forget_all();
    looks(world.step(9_999), "a", &["b"]);
}

#[test]
fn only_a_few_of_many_others_are_looked_at() {
    let names: Vec<String> = (0..30).map(|number| format!("w{number:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut world = World::default();
    world.tell(led("a", &names));
    looks(world.step(0), "a", &names[..OTHERS]);
}

//! Tests the exact format of records, and what is recorded.

use super::*;
use crate::clock::Now;
use crate::operator::tests::object;
use crate::operator::view::View;
use crate::protocol::ids::OwnerId;
use crate::protocol::settings::ReleaseMode;
use crate::protocol::token::Token;
use crate::store::fleet::FeedEvent;

/// 2026-04-30T03:12:09.481920Z.
const THEN: WallTime = WallTime(1_777_518_729_481_920);

fn incident(kind: IncidentKind) -> Incident {
    Incident {
        at: THEN,
        kind,
        grant: Some("1eebfb7a-35b4-4b51-8b60-95e344ea0fd5".into()),
        token: Token::from_raw(1_842_000),
        owner: OwnerId::from("worker-1"),
        pod: "billing-7c9f-x2v".into(),
        actor: "jane".into(),
        reason: "hangs in a loop, INC-4711".into(),
    }
}

fn lock_with(incidents: Vec<Incident>) -> Object<Lock> {
    let name = "billing-close";
    let lock = Lock {
        incidents,
        ..Lock::unheld(Resource::parse(name).unwrap())
    };
    Object {
        uid: "d2c1".into(),
        ..object("billing", name, 7, lock)
    }
}

/// Returns what an operator records if it finds the lock when it starts.
fn news(lock: &Object<Lock>) -> Vec<AuditRecord> {
    let now = Now {
        moment: Moment::default(),
        wall: THEN,
    };
    let mut view = View::default();
    view.observe_lock(FeedEvent::Applied(Box::new(lock.clone())), now);
    let observation = view.lock(&lock.object_ref).unwrap();
    records_of(&lock.object_ref, observation, now.moment).collect()
}

/// The example in the documentation defines the format.
#[test]
fn audit_line_equals_the_documented_example() {
    let forced = incident(IncidentKind::ForceReleased);
    let lock = lock_with(vec![]);
    let line = line(Target::of(&lock), &lock.stored.value.resource, &forced).to_string();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operator.md");
    let documented = std::fs::read_to_string(path).unwrap();
    assert!(
        documented.lines().any(|shown| shown == line),
        "not in docs/operator.md: {line}"
    );
}

#[test]
fn each_incident_kind_has_its_own_action_and_event() {
    let seen: Vec<_> = [
        IncidentKind::Expired,
        IncidentKind::PodEnded,
        IncidentKind::ForceReleased,
        IncidentKind::ReleasedOnRequest,
    ]
    .map(|kind| {
        let lock = lock_with(vec![incident(kind)]);
        let news = news(&lock);
        let [
            AuditRecord {
                line: Some(line),
                event: note,
            },
        ] = news.as_slice()
        else {
            panic!("one incident is one line and one Event: {news:?}");
        };
        assert_eq!(line["id"].as_str(), Some(&*note.name));
        let action = line["action"].as_str().unwrap().to_owned();
        (action, note.reason, note.action, note.is_warning)
    })
    .into();
    assert_eq!(
        seen,
        [
            ("expire".to_owned(), "HolderExpired", "Reclaim", true),
            ("reclaim".to_owned(), "HolderPodEnded", "Reclaim", false),
            (
                "force-release".to_owned(),
                "ForceReleased",
                "ForceRelease",
                true
            ),
            (
                "release-on-request".to_owned(),
                "ReleasedOnRequest",
                "Release",
                false
            ),
        ]
    );
}

#[test]
fn incident_has_a_stable_unique_name() {
    let one = incident(IncidentKind::Expired);
    let later = Incident {
        at: WallTime(THEN.0 + 1),
        ..one.clone()
    };
    let lock = lock_with(vec![one.clone(), later]);
    let names = |lock: &Object<Lock>| -> Vec<Arc<str>> {
        let news = news(lock).into_iter();
        news.map(|news| news.event.name).collect()
    };
    let two = names(&lock);
    assert_ne!(two[0], two[1]);
    assert_eq!(names(&lock), two);
    let made_anew = Object {
        uid: "another".into(),
        ..lock_with(vec![one])
    };
    assert!(!two.contains(&names(&made_anew)[0]));
}

#[test]
fn event_name_fits_for_the_longest_lock_name() {
    let object_ref = ObjectRef {
        namespace: "n".into(),
        name: "a-".repeat(126).as_str().into(),
    };
    let name = event_name(&object_ref, "x");
    assert!(name.len() <= 253, "{}", name.len());
    assert!(!name.contains("-."));
}

#[test]
fn ignored_request_is_an_event_and_not_an_audit_line() {
    let request = ReleaseRequest {
        lease: "old".into(),
        mode: ReleaseMode::Force,
        reason: "why".into(),
        actor: "jane".into(),
    };
    let news = ignored_request(&lock_with(vec![]), &request, THEN);
    assert_eq!(news.line, None);
    assert_eq!(news.event.reason, "ReleaseRequestIgnored");
    assert!(news.event.message.contains("jane") && news.event.message.contains("\"old\""));
}

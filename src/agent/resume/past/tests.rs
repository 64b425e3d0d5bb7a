//! What is made of records: read back as they were meant, refused where they are not ours, and
//! sorted by what the session holds.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::agent::Life;
use crate::agent::core::held::Held;
use crate::agent::core::history::RequestKey;
use crate::agent::journal::record::{LifeRecord, RequestRecord, TtlRecord};
use crate::agent::resume::plan::Unserved;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::{OwnerId, Resource, SessionId};
use crate::protocol::key::SessionKey;
use crate::protocol::lease::Tenure;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::time::WallTime;
use crate::protocol::token::{Revision, Token};
use crate::store::{Original, Page, Stored};

const NOW: Moment = Moment::since_boot(Duration::from_secs(100));

fn ttl() -> SessionTtl {
    SessionTtl::clamped(20)
}

fn identity() -> Identity {
    Identity {
        boot_id: "boot".into(),
        pod_uid: "uid".into(),
        namespace: "team-a".into(),
        ttl_seconds: 20,
    }
}

fn session(valid_until_s: u64) -> Record {
    let text = format!(
        r#"{{"session":{{"id":"a-1","version":7,"validUntilNs":{}}}}}"#,
        valid_until_s * 1_000_000_000
    );
    Record::parse(text.as_bytes()).unwrap()
}

fn stored(name: &str, grant: &str) -> Stored<Lock> {
    let mut value = Lock::unheld(Resource::parse(name).unwrap());
    value.token = Token::from_raw(7_000);
    value.grant = Some(Grant {
        id: GrantId::from(grant),
        holder: Claimant {
            owner: OwnerId::from("app"),
            pod: PodRef {
                name: "a".into(),
                uid: "uid".into(),
                node: None,
            },
            session: SessionId::from("a-1"),
            session_ttl: ttl(),
        },
        metadata: BTreeMap::new(),
        acquired_at: WallTime(5),
        kept: false,
    });
    Stored {
        value,
        version: Revision(9),
        original: Original::new(()),
    }
}

/// A lease of the lock of its own name.
fn held(grant: &str, life: Life) -> Held {
    let stored = stored(grant, grant);
    let mut tenure = Tenure::new(GrantId::from(grant), stored.value.token);
    Held {
        lease: tenure.serve(NOW).unwrap(),
        tenure,
        session: SessionKey {
            id: SessionId::from("a-1"),
            pod_uid: "u".into(),
        },
        owner: OwnerId::from("app"),
        life,
        keep: Duration::ZERO,
        share: FairShare::default(),
        metadata: BTreeMap::from([("line\nbreak".into(), "\u{1f512}".into())]),
        acquired_at: WallTime(5),
        request: Some(RequestKey {
            owner: OwnerId::from("app"),
            resource: stored.value.resource.clone(),
            request_id: "r1".into(),
        }),
        stored,
        since: NOW,
        replayed: false,
        readers_until: Moment::default(),
        closing: None,
        unheard_until: None,
    }
}

fn seconds(seconds: u64) -> Life {
    Life::Ttl(Duration::from_secs(seconds))
}

fn lease(grant: &str) -> Record {
    Record::Lease(Box::new(LeaseRecord::of(&held(grant, seconds(30)), None)))
}

fn ended(lease: &str, end: End, gives_back: bool) -> Record {
    Record::Ended(EndedRecord::new(lease.into(), end, gives_back, None))
}

fn journal(records: &[Record]) -> Past {
    let first = Record::Agent(identity());
    let all = std::iter::once(&first).chain(records);
    Past::Records(all.map(|record| record.to_bytes().unwrap()).collect())
}

fn left(records: &[Record]) -> Left {
    read(&journal(records), &identity(), ttl(), NOW).unwrap()
}

fn refusal(past: &Past, own: &Identity) -> Refusal {
    read(past, own, ttl(), NOW).unwrap_err().why
}

fn page(locks: Vec<Stored<Lock>>) -> Page<Lock> {
    Page {
        items: locks,
        revision: Revision(50),
        next: None,
        unreadable: Vec::new(),
    }
}

#[test]
fn a_record_is_one_line_and_reads_as_it_was_written() {
    let held = held(
        "g",
        Life::Connection {
            max_hold: Duration::from_secs(9),
        },
    );
    let lease = Record::Lease(Box::new(LeaseRecord::of(&held, Some(seconds(3)))));
    let lost = ended("g.0", End::Lost(Loss::GrantGone), true);
    for record in [lease, lost, session(110), Record::SessionOver] {
        let bytes = record.to_bytes().unwrap();
        assert!(!bytes.contains(&b'\n'));
        assert_eq!(Record::parse(&bytes), Ok(record));
    }
}

#[test]
fn last_record_of_a_session_and_of_a_lease_counts() {
    let life = LifeRecord::TtlMs(5_000);
    let change = Record::Ttl(TtlRecord {
        lease: "b.0".into(),
        life,
    });
    let released = ended("a.0", End::Releasing, true);
    let left = left(&[
        session(105),
        lease("a"),
        lease("b"),
        session(110),
        released,
        change,
    ]);
    assert_eq!(
        left.session
            .as_ref()
            .unwrap()
            .valid_until()
            .elapsed_since_boot()
            .as_secs(),
        110
    );
    assert_eq!(left.end_of(&left.ended[0]), ("a.0".into(), End::Releasing));
    let [b] = left.leases.values().collect::<Vec<_>>()[..] else {
        panic!("{:?}", left.leases);
    };
    assert_eq!((b.life, b.asked()), (life, seconds(30)));
}

#[test]
fn undelivered_answer_does_not_answer_a_repeated_request() {
    let lease = held("a", seconds(30));
    let request = lease.request.as_ref().map(RequestRecord::from).unwrap();
    let end = EndedRecord::new("a.0".into(), End::Releasing, true, Some(request.clone()));
    let granted = Record::Lease(Box::new(LeaseRecord::of(&lease, None)));
    let heard = left(&[granted.clone(), Record::Ended(end.clone())]);
    assert_eq!(heard.ended[0].request, Some(request.clone()));
    let unheard = left(&[granted, Record::Unheard(request), Record::Ended(end)]);
    assert_eq!(unheard.ended[0].request, None);
}

#[test]
fn every_lease_ends_with_its_session() {
    let left = left(&[session(110), lease("a"), Record::SessionOver]);
    assert_eq!((left.session, left.leases.len()), (None, 0));
    assert_eq!(left.ended[0].end(), End::Lost(Loss::AgentRestarted));
}

#[test]
fn foreign_or_damaged_journal_is_refused_with_its_reason() {
    let past = journal(&[session(110)]);
    let own = identity();
    let boot_id = "other".into();
    assert_eq!(
        refusal(
            &past,
            &Identity {
                boot_id,
                ..own.clone()
            }
        ),
        Refusal::OtherBoot
    );
    let pod_uid = "other".into();
    let other = Identity {
        pod_uid,
        ..own.clone()
    };
    assert_eq!(refusal(&past, &other), Refusal::OtherPod("uid".into()));
    let namespace = "other".into();
    let other = Identity {
        namespace,
        ..own.clone()
    };
    assert_eq!(
        refusal(&past, &other),
        Refusal::OtherNamespace("team-a".into())
    );
    let other = Identity {
        ttl_seconds: 15,
        ..own.clone()
    };
    assert_eq!(refusal(&past, &other), Refusal::OtherTtl(20));
    // 19 s is all that a session of 20 s has.
    assert!(read(&journal(&[session(119)]), &own, ttl(), NOW).is_ok());
    assert_eq!(
        refusal(&journal(&[session(120)]), &own),
        Refusal::FromTheFuture
    );
    let damaged = Past::Damaged("cut".into());
    assert_eq!(refusal(&damaged, &own), Refusal::Damaged("cut".into()));
}

#[test]
fn unreadable_journal_records_are_refused() {
    let own = identity();
    let head = Record::Agent(own.clone()).to_bytes().unwrap();
    for records in [
        vec![],
        vec![session(110).to_bytes().unwrap()],
        vec![head.clone(), head.clone()],
        vec![head.clone(), b"{\"grant\":1}".to_vec()],
        vec![head, b"nothing".to_vec()],
    ] {
        let refused = refusal(&Past::Records(records), &own);
        assert!(matches!(refused, Refusal::Unreadable(_)), "{refused}");
    }
}

fn names(grants: &[Unserved]) -> Vec<String> {
    let mut names: Vec<_> = grants.iter().map(|u| u.grant.to_string()).collect();
    names.sort();
    names
}

#[test]
fn only_leases_in_both_journal_and_store_are_resumed() {
    let by_connection = held(
        "d",
        Life::Connection {
            max_hold: Duration::from_secs(60),
        },
    );
    let left = left(&[
        session(110),
        lease("a"),
        lease("b"),
        lease("c"),
        Record::Lease(Box::new(LeaseRecord::of(&by_connection, None))),
        ended("c.0", End::Releasing, true),
        ended("f.0", End::Lost(Loss::AppSilent), false),
    ]);
    // b is on file alone, e in the store alone; d was a connection's, c was released; f was lost,
    // and not given back yet.
    let plan = left.plan(page(vec![
        stored("a", "a"),
        stored("b", "another"),
        stored("c", "c"),
        stored("d", "d"),
        stored("e", "e"),
        stored("f", "f"),
    ]));
    let resumed: Vec<_> = plan
        .resumed
        .iter()
        .map(|(lease, _)| lease.id.as_str())
        .collect();
    assert_eq!(resumed, ["a.0"]);
    let lost: Vec<_> = plan
        .lost
        .iter()
        .map(|(lease, loss)| (lease.id.as_str(), *loss))
        .collect();
    assert_eq!(
        lost,
        [("b.0", Loss::GrantGone), ("d.0", Loss::AgentRestarted)]
    );
    assert_eq!(names(&plan.at_once), ["c"]);
    assert_eq!(names(&plan.in_time), ["another", "d", "e", "f"]);
}

#[test]
fn grant_of_another_lock_does_not_resume_the_lease() {
    let plan = left(&[session(110), lease("a")]).plan(page(vec![stored("other", "a")]));
    assert!(plan.resumed.is_empty());
    assert_eq!(plan.lost[0].1, Loss::GrantGone);
    assert_eq!(plan.in_time.len(), 1);
}

#[test]
fn token_of_another_grant_does_not_resume_the_lease() {
    for base in [6_000, 7_001, 9_000] {
        let mut found = stored("a", "a");
        found.value.token = Token::from_raw(base);
        let plan = left(&[session(110), lease("a")]).plan(page(vec![found]));
        assert!(plan.resumed.is_empty(), "{base}");
    }
}

/// Only the last of a grant's leases waits for its release; that of the others is over.
#[test]
fn only_the_last_lease_of_a_grant_is_still_being_released() {
    let left = left(&[
        session(110),
        ended("g.0", End::Releasing, false),
        ended("g.1", End::Lost(Loss::AppSilent), false),
        ended("g.2", End::Releasing, true),
        ended("h.0", End::Lost(Loss::GrantGone), true),
    ]);
    let ends: Vec<_> = left.ended.iter().map(|ended| left.end_of(ended)).collect();
    assert_eq!(
        ends,
        [
            ("g.0".into(), End::Released),
            ("g.1".into(), End::Lost(Loss::AppSilent)),
            ("g.2".into(), End::Releasing),
            ("h.0".into(), End::Lost(Loss::GrantGone)),
        ]
    );
    let plan = left.plan(page(vec![stored("g", "g")]));
    assert_eq!(names(&plan.at_once), ["g"]);
    assert_eq!(plan.at_once[0].lease, Some("g.2".into()));
    assert_eq!(plan.settled, [("h.0".into(), End::Released)]);
}

/// Its app ended it, and something has to run out before its grant is given back.
#[test]
fn held_back_lease_is_released_at_its_deadline_and_not_before() {
    let records = [
        session(110),
        lease("a"),
        ended("a.0", End::Releasing, false),
        lease("b"),
        ended("b.0", End::Releasing, false),
        // The grant of this one was kept for whoever comes next.
        lease("c"),
        ended("c.0", End::Released, false),
    ];
    let left = left(&records);
    let ends: Vec<_> = left
        .ended
        .iter()
        .map(|ended| left.end_of(ended).1)
        .collect();
    assert_eq!(ends, [End::Releasing, End::Releasing, End::Released]);
    let plan = left.plan(page(vec![stored("a", "a"), stored("c", "c")]));
    assert_eq!(names(&plan.in_time), ["a", "c"]);
    let lease_of = |grant: &str| {
        let mut grants = plan.in_time.iter();
        let unserved = grants.find(|unserved| unserved.grant == GrantId::from(grant));
        unserved.unwrap().lease.clone()
    };
    assert_eq!((lease_of("a"), lease_of("c")), (Some("a.0".into()), None));
    assert_eq!(plan.settled, [("b.0".into(), End::Released)]);
    assert!(plan.at_once.is_empty() && plan.lost.is_empty());
}

#[test]
fn last_record_of_a_held_back_lease_counts() {
    let gone = End::Lost(Loss::GrantGone);
    for (end, gives_back) in [(End::Releasing, true), (gone, true), (gone, false)] {
        let left = left(&[
            session(110),
            lease("a"),
            ended("a.0", End::Releasing, false),
            ended("a.0", end, gives_back),
        ]);
        assert_eq!(left.ended.len(), 1);
        assert_eq!(left.end_of(&left.ended[0]), ("a.0".into(), end));
        let plan = left.plan(page(vec![stored("a", "a")]));
        let (at_once, in_time) = (names(&plan.at_once), names(&plan.in_time));
        assert_eq!(
            (at_once.len(), in_time.len()),
            if gives_back { (1, 0) } else { (0, 1) }
        );
    }
}

/// What its app ended since may have had a later lease that is not on file.
#[test]
fn lease_ended_since_is_released_in_time_or_lost_with_its_grant() {
    let mut left = left(&[session(110), lease("a"), lease("b")]);
    for id in ["a.0", "b.0"] {
        assert!(left.end_since(&id.into()).is_some());
        assert!(left.end_since(&id.into()).is_none());
    }
    let plan = left.plan(page(vec![stored("a", "a")]));
    assert!(plan.resumed.is_empty() && plan.lost.is_empty() && plan.at_once.is_empty());
    assert_eq!(names(&plan.in_time), ["a"]);
    assert_eq!(plan.in_time[0].lease, Some("a.0".into()));
    assert_eq!(plan.settled, [("b.0".into(), End::Lost(Loss::GrantGone))]);
}

#[test]
fn unreadable_lock_does_not_count_as_deleted() {
    let listed = |locks| Page {
        unreadable: vec!["b: no token".into()],
        ..page(locks)
    };
    let left = left(&[session(110), lease("a"), lease("b"), lease("c")]);
    let plan = left.plan(listed(vec![stored("a", "a"), stored("c", "another")]));
    assert_eq!(plan.resumed.len(), 1);
    let lost: Vec<_> = plan.lost.iter().map(|(l, loss)| (&*l.id, *loss)).collect();
    let restarted = Loss::AgentRestarted;
    // That of c can be read; which lock it is that cannot is not known.
    assert_eq!(lost, [("b.0", restarted), ("c.0", restarted)]);
    assert_eq!(names(&plan.in_time), ["another", "b", "c"]);
}

/// Which lock it is that cannot be read is not known.
#[test]
fn release_is_resent_for_a_lock_that_may_be_unreadable() {
    let request = RequestRecord::from(held("c", seconds(30)).request.as_ref().unwrap());
    let left = left(&[
        session(110),
        // Their leases were dropped when the journal was written anew.
        Record::Ended(EndedRecord::new(
            "c.0".into(),
            End::Releasing,
            true,
            Some(request),
        )),
        ended("d.0", End::Releasing, true),
        lease("a"),
        ended("a.0", End::Releasing, true),
        lease("b"),
        ended("b.0", End::Releasing, false),
    ]);
    let plan = left.plan(Page {
        unreadable: vec!["a: no token".into()],
        ..page(vec![])
    });
    assert_eq!(
        (names(&plan.at_once), names(&plan.in_time)),
        (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()],)
    );
    for unserved in plan.at_once.iter().chain(&plan.in_time) {
        assert!(unserved.may_have_landed && unserved.stored.is_none());
        assert_eq!(unserved.resource.to_string(), unserved.grant.to_string());
    }
    // Nobody knows what d.0 locked: it is not called released.
    assert_eq!(plan.settled, []);
}

#[test]
fn refused_journal_still_yields_its_session_and_leases() {
    let past = journal(&[session(110), lease("a"), ended("b.0", End::Releasing, true)]);
    let own = Identity {
        boot_id: "other".into(),
        ..identity()
    };
    let refused = read(&past, &own, ttl(), NOW).unwrap_err();
    assert_eq!(refused.left.session.unwrap().id, "a-1");
    assert_eq!(refused.left.leases.len(), 1);
}

/// The writer died between the end of a lost session's leases and that of the session.
#[test]
fn no_lease_is_resumed_without_a_session() {
    let left = left(&[lease("a")]);
    assert!(left.leases.is_empty());
    assert_eq!(left.ended[0].end(), End::Lost(Loss::AgentRestarted));
}

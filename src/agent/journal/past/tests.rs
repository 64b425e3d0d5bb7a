//! What is made of records: they are read back as they were meant, and discarded where they are not this
//! agent's.

mod plan;

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::agent::api::Life;
use crate::agent::core::held::Held;
use crate::agent::core::history::{End, EndedLease, RequestKey};
use crate::agent::journal::record::{
    EndedRecord, LeaseRecord, LifeRecord, RequestRecord, TtlRecord,
};
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::{GrantId, OwnerId, Resource, SessionId};
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

fn ended(lease: &str, end: End, may_release: bool) -> Record {
    ended_with(lease, end, may_release, None)
}

fn ended_with(lease: &str, end: End, may_release: bool, request: Option<RequestKey>) -> Record {
    let lease = lease.into();
    let ended = EndedLease {
        lease,
        end,
        may_release,
        request,
    };
    Record::Ended(EndedRecord::from(&ended))
}

fn journal(records: &[Record]) -> Past {
    let first = Record::Agent(identity());
    let all = std::iter::once(&first).chain(records);
    Past::Records(all.map(|record| record.to_bytes().unwrap()).collect())
}

fn saved(records: &[Record]) -> SavedState {
    read(&journal(records), &identity(), ttl(), NOW).unwrap()
}

fn ends(saved: &mut SavedState) -> Vec<(LeaseId, End)> {
    let ends = saved.take_ends().into_iter();
    ends.map(|ended| (ended.lease, ended.end)).collect()
}

fn discard_reason(past: &Past, own: &Identity) -> DiscardReason {
    read(past, own, ttl(), NOW).unwrap_err().reason
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
    let mut saved = saved(&[
        session(105),
        lease("a"),
        lease("b"),
        session(110),
        released,
        change,
    ]);
    let valid_until = saved.session.as_ref().unwrap().valid_until;
    assert_eq!(valid_until.elapsed_since_boot().as_secs(), 110);
    assert_eq!(ends(&mut saved), [("a.0".into(), End::Releasing)]);
    let [b] = saved.leases.values().collect::<Vec<_>>()[..] else {
        panic!("{:?}", saved.leases);
    };
    assert_eq!((b.life, b.requested), (seconds(5), Some(seconds(30))));
}

#[test]
fn undelivered_answer_does_not_answer_a_repeated_request() {
    let lease = held("a", seconds(30));
    let request = lease.request.clone().unwrap();
    let end = ended_with("a.0", End::Releasing, true, Some(request.clone()));
    let granted = Record::Lease(Box::new(LeaseRecord::of(&lease, None)));
    let mut heard = saved(&[granted.clone(), end.clone()]);
    assert_eq!(heard.take_ends()[0].request, Some(request.clone()));
    let unheard = Record::Unheard(RequestRecord::from(&request));
    let mut unheard = saved(&[granted, unheard, end]);
    assert_eq!(unheard.take_ends()[0].request, None);
}

#[test]
fn every_lease_ends_with_its_session() {
    let mut saved = saved(&[session(110), lease("a"), Record::SessionOver]);
    assert_eq!((&saved.session, saved.leases.len()), (&None, 0));
    assert_eq!(saved.take_ends()[0].end, End::Lost(Loss::AgentRestarted));
}

#[test]
fn foreign_or_damaged_journal_is_discarded_with_its_reason() {
    let past = journal(&[session(110)]);
    let own = identity();
    let boot_id = "other".into();
    assert_eq!(
        discard_reason(
            &past,
            &Identity {
                boot_id,
                ..own.clone()
            }
        ),
        DiscardReason::OtherBoot
    );
    let pod_uid = "other".into();
    let other = Identity {
        pod_uid,
        ..own.clone()
    };
    assert_eq!(
        discard_reason(&past, &other),
        DiscardReason::OtherPod("uid".into())
    );
    let namespace = "other".into();
    let other = Identity {
        namespace,
        ..own.clone()
    };
    assert_eq!(
        discard_reason(&past, &other),
        DiscardReason::OtherNamespace("team-a".into())
    );
    let other = Identity {
        ttl_seconds: 15,
        ..own.clone()
    };
    assert_eq!(discard_reason(&past, &other), DiscardReason::OtherTtl(20));
    // 19 s is all that a session of 20 s has.
    assert!(read(&journal(&[session(119)]), &own, ttl(), NOW).is_ok());
    assert_eq!(
        discard_reason(&journal(&[session(120)]), &own),
        DiscardReason::FromTheFuture
    );
    let damaged = Past::Damaged("cut".into());
    assert_eq!(
        discard_reason(&damaged, &own),
        DiscardReason::Damaged("cut".into())
    );
}

#[test]
fn unreadable_journal_records_are_discarded() {
    let own = identity();
    let head = Record::Agent(own.clone()).to_bytes().unwrap();
    for records in [
        vec![],
        vec![session(110).to_bytes().unwrap()],
        vec![head.clone(), head.clone()],
        vec![head.clone(), b"{\"grant\":1}".to_vec()],
        vec![head, b"nothing".to_vec()],
    ] {
        let reason = discard_reason(&Past::Records(records), &own);
        assert!(matches!(reason, DiscardReason::Unreadable(_)), "{reason}");
    }
}

#[test]
fn discarded_journal_still_yields_its_session_and_leases() {
    let past = journal(&[session(110), lease("a"), ended("b.0", End::Releasing, true)]);
    let own = Identity {
        boot_id: "other".into(),
        ..identity()
    };
    let discarded = read(&past, &own, ttl(), NOW).unwrap_err();
    assert_eq!(discarded.saved.session.unwrap().id, "a-1".into());
    assert_eq!(discarded.saved.leases.len(), 1);
}

/// The writer died between the end of a lost session's leases and that of the session.
#[test]
fn no_lease_is_resumed_without_a_session() {
    let mut saved = saved(&[lease("a")]);
    assert!(saved.leases.is_empty());
    assert_eq!(saved.take_ends()[0].end, End::Lost(Loss::AgentRestarted));
}

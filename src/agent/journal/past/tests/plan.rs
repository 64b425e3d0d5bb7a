//! What becomes of the leases on file, by what the session holds.

use super::*;
use crate::agent::core::resume_plan::{Plan, Unserved};

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
    let saved = saved(&[
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
    let locks = vec![
        stored("a", "a"),
        stored("b", "another"),
        stored("c", "c"),
        stored("d", "d"),
        stored("e", "e"),
        stored("f", "f"),
    ];
    let plan = Plan::new(saved, page(locks));
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
    assert!(plan.at_once[0].may_be_applied, "its release may land late");
    assert_eq!(names(&plan.in_time), ["another", "d", "e", "f"]);
}

#[test]
fn grant_of_another_lock_does_not_resume_the_lease() {
    let plan = Plan::new(
        saved(&[session(110), lease("a")]),
        page(vec![stored("other", "a")]),
    );
    assert!(plan.resumed.is_empty());
    assert_eq!(plan.lost[0].1, Loss::GrantGone);
    assert_eq!(plan.in_time.len(), 1);
}

#[test]
fn token_of_another_grant_does_not_resume_the_lease() {
    for base in [6_000, 7_001, 9_000] {
        let mut found = stored("a", "a");
        found.value.token = Token::from_raw(base);
        let plan = Plan::new(saved(&[session(110), lease("a")]), page(vec![found]));
        assert!(plan.resumed.is_empty(), "{base}");
    }
}

/// Only the last of a grant's leases waits for its release; that of the others is over.
#[test]
fn only_the_last_lease_of_a_grant_is_still_being_released() {
    let mut saved = saved(&[
        session(110),
        ended("g.0", End::Releasing, false),
        ended("g.1", End::Lost(Loss::AppSilent), false),
        ended("g.2", End::Releasing, true),
        ended("h.0", End::Lost(Loss::GrantGone), true),
    ]);
    assert_eq!(
        ends(&mut saved),
        [
            ("g.0".into(), End::Released),
            ("g.1".into(), End::Lost(Loss::AppSilent)),
            ("g.2".into(), End::Releasing),
            ("h.0".into(), End::Lost(Loss::GrantGone)),
        ]
    );
    let plan = Plan::new(saved, page(vec![stored("g", "g")]));
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
        // The grant of this one was kept for the next caller.
        lease("c"),
        ended("c.0", End::Released, false),
    ];
    let mut saved = saved(&records);
    let ends: Vec<_> = ends(&mut saved).into_iter().map(|(_, end)| end).collect();
    assert_eq!(ends, [End::Releasing, End::Releasing, End::Released]);
    let plan = Plan::new(saved, page(vec![stored("a", "a"), stored("c", "c")]));
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
    for (end, may_release) in [(End::Releasing, true), (gone, true), (gone, false)] {
        let mut saved = saved(&[
            session(110),
            lease("a"),
            ended("a.0", End::Releasing, false),
            ended("a.0", end, may_release),
        ]);
        assert_eq!(ends(&mut saved), [("a.0".into(), end)]);
        let plan = Plan::new(saved, page(vec![stored("a", "a")]));
        let (at_once, in_time) = (names(&plan.at_once), names(&plan.in_time));
        assert_eq!(
            (at_once.len(), in_time.len()),
            if may_release { (1, 0) } else { (0, 1) }
        );
    }
}

/// An app's word counts, but for a lead's readers.
#[test]
fn lease_ended_since_is_released_or_lost_with_its_grant() {
    let election = "election:e";
    let mut saved = saved(&[session(110), lease("a"), lease("b"), lease(election)]);
    let lead = LeaseId::of(&GrantId::from(election), 0);
    for id in ["a.0".into(), "b.0".into(), lead] {
        let ended = saved.end_by_app(&id).unwrap();
        assert_eq!((&ended.lease, ended.end), (&id, End::Releasing));
        assert_eq!(ended.may_release, !id.as_str().starts_with(election));
        assert_eq!(saved.end_by_app(&id), None);
    }
    let locks = vec![stored("a", "a"), stored(election, election)];
    let plan = Plan::new(saved, page(locks));
    assert!(plan.resumed.is_empty() && plan.lost.is_empty());
    assert_eq!(names(&plan.at_once), ["a"]);
    assert_eq!(plan.at_once[0].lease, Some("a.0".into()));
    assert_eq!(names(&plan.in_time), [election]);
    assert_eq!(plan.settled, [("b.0".into(), End::Lost(Loss::GrantGone))]);
}

#[test]
fn unreadable_lock_does_not_count_as_deleted() {
    let listed = |locks| Page {
        unreadable: vec!["b: no token".into()],
        ..page(locks)
    };
    let saved = saved(&[session(110), lease("a"), lease("b"), lease("c")]);
    let locks = vec![stored("a", "a"), stored("c", "another")];
    let plan = Plan::new(saved, listed(locks));
    assert_eq!(plan.resumed.len(), 1);
    let lost: Vec<_> = plan
        .lost
        .iter()
        .map(|(l, loss)| (l.id.as_str(), *loss))
        .collect();
    let restarted = Loss::AgentRestarted;
    // That of c can be read; which lock it is that cannot is not known.
    assert_eq!(lost, [("b.0", restarted), ("c.0", restarted)]);
    assert_eq!(names(&plan.in_time), ["another", "b", "c"]);
}

/// Which lock it is that cannot be read is not known.
#[test]
fn release_is_resent_for_a_lock_that_may_be_unreadable() {
    let request = held("c", seconds(30)).request;
    let saved = saved(&[
        session(110),
        // Their leases were dropped when the journal was rewritten.
        ended_with("c.0", End::Releasing, true, request),
        ended("d.0", End::Releasing, true),
        lease("a"),
        ended("a.0", End::Releasing, true),
        lease("b"),
        ended("b.0", End::Releasing, false),
    ]);
    let page = Page {
        unreadable: vec!["a: no token".into()],
        ..page(vec![])
    };
    let plan = Plan::new(saved, page);
    assert_eq!(
        (names(&plan.at_once), names(&plan.in_time)),
        (vec!["a".to_owned(), "c".to_owned()], vec!["b".to_owned()],)
    );
    for unserved in plan.at_once.iter().chain(&plan.in_time) {
        assert!(unserved.may_be_applied && unserved.stored.is_none());
        assert_eq!(unserved.resource.to_string(), unserved.grant.to_string());
    }
    // Nobody knows what d.0 locked: it is not called released.
    assert_eq!(plan.settled, []);
}

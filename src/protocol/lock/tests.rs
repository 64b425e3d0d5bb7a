//! The transitions of a lock, one fact per test, and the invariants after any sequence of them.

mod ownership;
mod tokens;

use super::*;
use crate::protocol::election::is_election;
use crate::protocol::ids::OwnerId;
use crate::protocol::queue::QUEUE_MAX;
use crate::protocol::session::PodRef;
use crate::protocol::time::SessionTtl;
use crate::protocol::token::Seen;
use proptest::prelude::*;

fn mint() -> Mint {
    Mint {
        seen: Seen::from_list(Revision(1)),
        floor: 0,
    }
}

/// Returns a mint that can compute no token.
fn exhausted() -> Mint {
    Mint {
        floor: u64::MAX,
        ..mint()
    }
}

/// Returns a claim of session `s<session>` with the grant id `<grant>`.
fn claim(session: usize, grant: &str) -> Claim {
    Claim {
        grant: GrantId::from(grant),
        claimant: Claimant {
            owner: OwnerId::from(format!("o{session}")),
            pod: PodRef {
                name: format!("p{session}").into(),
                uid: "u".into(),
                node: None,
            },
            session: SessionId::from(format!("s{session}")),
            session_ttl: SessionTtl::clamped(15),
        },
        kept: false,
        metadata: BTreeMap::from([("build".to_owned(), "7".to_owned())]),
        at: WallTime(5),
        preferred: false,
    }
}

/// Returns the key of grant `g<n>` of session `s<n>`.
fn key(n: usize) -> GrantKey {
    claim(n, &format!("g{n}")).key()
}

fn ending() -> Ending {
    Ending {
        at: WallTime(9),
        kind: IncidentKind::Expired,
        actor: "operator".into(),
        reason: "silent for 1.05 TTL".into(),
    }
}

fn free() -> Lock {
    Lock::unheld(Resource::parse("r").unwrap())
}

fn held(session: usize, grant: &str) -> Lock {
    granted(free().acquire(Revision(10), &mint(), &claim(session, grant)))
}

fn granted(decision: Decision) -> Lock {
    match decision {
        Decision::Granted(lock) => *lock,
        other => panic!("not granted: {other:?}"),
    }
}

fn queued(lock: &Lock, session: usize, grant: &str) -> Lock {
    match lock.acquire_or_queue(Revision(10), &mint(), &claim(session, grant)) {
        Decision::Queued(waiter) => lock.joined_by(*waiter).expect("it may join"),
        other => panic!("not queued: {other:?}"),
    }
}

fn dead<'a>(sessions: &'a [&'a str]) -> impl Fn(&Claimant) -> bool + 'a {
    move |who| sessions.contains(&who.session.as_str())
}

#[test]
fn free_lock_is_granted_with_the_token_of_its_revision() {
    let lock = held(1, "g1");
    assert_eq!(lock.token, Token::from_raw(10_000));
    assert_eq!(lock.transitions, 1);
    let grant = lock.grant.as_ref().unwrap();
    assert_eq!(grant.id, GrantId::from("g1"));
    assert_eq!(grant.holder, claim(1, "g1").claimant);
    assert_eq!(grant.metadata, claim(1, "g1").metadata);
    assert!(!grant.kept);
}

#[test]
fn held_lock_is_refused_or_queued_for_except_by_its_holder() {
    let lock = held(1, "g1");
    let again = lock.acquire(Revision(11), &mint(), &claim(1, "g1"));
    assert_eq!(again, Decision::AlreadyGranted);
    let other = lock.acquire(Revision(11), &mint(), &claim(2, "g2"));
    assert_eq!(other, Decision::Refused(Refusal::Held));
    let waiting = queued(&lock, 2, "g2");
    assert_eq!(waiting.grant, lock.grant);
    assert_eq!(waiting.token, lock.token);
    assert_eq!(waiting.waiters.len(), 1);
}

#[test]
fn session_has_one_queue_entry_however_often_it_asks() {
    let lock = queued(&held(1, "g1"), 2, "g2");
    let again = lock.acquire_or_queue(Revision(11), &mint(), &claim(2, "g3"));
    assert_eq!(again, Decision::AlreadyQueued(key(2)));
}

#[test]
fn the_thirty_third_waiter_is_refused() {
    let full = (0..QUEUE_MAX).fold(held(99, "g"), |lock, n| queued(&lock, n, &format!("w{n}")));
    let next = full.acquire_or_queue(Revision(11), &mint(), &claim(98, "late"));
    assert_eq!(next, Decision::Refused(Refusal::QueueFull));
}

/// A join is the only write that may be applied to any version. Each row is a lock at that time.
#[test]
fn late_join_is_last_in_the_queue_or_refused() {
    let waiter = |session, grant: &str| claim(session, grant).to_waiter();
    let one = queued(&held(1, "g1"), 2, "g2");
    let full =
        (10..10 + QUEUE_MAX).fold(held(1, "g1"), |lock, n| queued(&lock, n, &format!("w{n}")));
    let handed = one
        .release(Revision(11), &mint(), &key(1), WallTime(1))
        .unwrap();
    for (what, lock, joining, joins) in [
        ("the queue is empty", &held(1, "g1"), waiter(3, "g3"), true),
        ("another session waits", &one, waiter(3, "g3"), true),
        ("the holder queues again", &one, waiter(1, "g9"), true),
        ("it was never held", &free(), waiter(3, "g3"), false),
        ("its session waits", &one, waiter(2, "g2"), false),
        ("another entry of its session", &one, waiter(2, "g9"), false),
        ("it holds the lock", &handed, waiter(2, "g2"), false),
        (
            "its session holds another grant",
            &handed,
            waiter(2, "g9"),
            true,
        ),
        ("32 wait", &full, waiter(3, "g3"), false),
    ] {
        let expected = joins.then(|| {
            let before = lock.waiters.entries().iter().cloned();
            let entries = before.chain([joining.clone()]).collect();
            Lock {
                waiters: Queue::from_entries(entries),
                ..lock.clone()
            }
        });
        assert_eq!(lock.joined_by(joining), expected, "{what}");
    }
}

#[test]
fn preferred_waiter_goes_first_in_elections_only() {
    let prefer = |lock: &Lock, n: usize| {
        let claim = Claim {
            preferred: true,
            ..claim(n, &format!("g{n}"))
        };
        match lock.acquire_or_queue(Revision(10), &mint(), &claim) {
            Decision::Queued(waiter) => (lock.joined_by((*waiter).clone()).unwrap(), *waiter),
            other => panic!("not queued: {other:?}"),
        }
    };
    for (name, expected) in [
        ("election:r", ["g3", "g4", "g2"]),
        ("r", ["g2", "g3", "g4"]),
    ] {
        let unheld = Lock::unheld(Resource::parse(name).unwrap());
        let held = granted(unheld.acquire(Revision(10), &mint(), &claim(1, "g1")));
        let before = held.grant.clone();
        let lock = queued(&held, 2, "g2");
        let (lock, third) = prefer(&lock, 3);
        let (mut lock, _) = prefer(&lock, 4);
        assert_eq!(lock.grant, before, "the holder keeps it");
        assert_eq!(third.preferred, name != "r");
        let mut holder = key(1);
        for (revision, next) in (20..).zip(expected) {
            let released = lock.release(Revision(revision), &mint(), &holder, WallTime(1));
            lock = released.unwrap();
            holder = lock.grant.as_ref().unwrap().key();
            assert_eq!(holder.id, GrantId::from(next), "{name}");
        }
    }
    let preferred = Waiter {
        preferred: true,
        ..claim(2, "g2").to_waiter()
    };
    assert_eq!(
        held(1, "g1").joined_by(preferred),
        None,
        "not an election's lock"
    );
}

#[test]
fn release_frees_the_lock_or_hands_it_to_the_first_waiter() {
    let alone = held(1, "g1")
        .release(Revision(11), &mint(), &key(1), WallTime(1))
        .unwrap();
    assert_eq!((alone.grant, alone.token), (None, Token::from_raw(10_000)));

    let line = queued(&queued(&held(1, "g1"), 2, "g2"), 3, "g3");
    let next = line
        .release(Revision(12), &mint(), &key(1), WallTime(1))
        .unwrap();
    assert!(next.names_grant(&"g2".into()));
    assert_eq!(next.token, Token::from_raw(12_000));
    assert_eq!(next.waiters.len(), 1);
    assert_eq!(next.transitions, 2);
    assert!(next.incidents.is_empty());
}

#[test]
fn leaving_removes_only_the_callers_queue_entry() {
    let line = queued(&queued(&held(1, "g1"), 2, "g2"), 3, "g3");
    let left = line.leave_queue(&key(2)).unwrap();
    assert_eq!(left.waiters.entries()[0].grant, GrantId::from("g3"));
    assert_eq!(left.grant, line.grant);
    assert_eq!(line.leave_queue(&key(1)), None);
}

#[test]
fn lock_of_a_live_session_is_not_taken_over() {
    let lock = held(1, "g1");
    let taken = lock.take_over(Revision(11), &mint(), |_| false, &ending(), None);
    assert_eq!(taken, None);
    assert_eq!(
        free().take_over(Revision(11), &mint(), |_| true, &ending(), None),
        None
    );
}

#[test]
fn take_over_serves_the_first_live_waiter_and_then_the_taker() {
    let line = queued(&queued(&held(1, "g1"), 2, "g2"), 3, "g3");
    let taker = claim(4, "g4");
    for (dead_ones, taker, winner) in [
        (vec!["s1"], None, Some("g2")),
        (vec!["s1", "s2"], None, Some("g3")),
        (vec!["s1"], Some(&taker), Some("g2")),
        (vec!["s1", "s2", "s3"], Some(&taker), Some("g4")),
        (vec!["s1", "s2", "s3"], None, None),
    ] {
        let next = line
            .take_over(Revision(20), &mint(), dead(&dead_ones), &ending(), taker)
            .unwrap();
        let holder = next.grant.as_ref().map(|grant| grant.id.as_str());
        assert_eq!(holder, winner, "dead: {dead_ones:?}");
        let living = |w: &Waiter| !dead_ones.contains(&w.claimant.session.as_str());
        assert!(next.waiters.entries().iter().all(living));
        let incident = &next.incidents[0];
        assert_eq!(incident.token, line.token);
        assert_eq!(incident.owner, OwnerId::from("o1"));
        assert_eq!(incident.kind, IncidentKind::Expired);
        assert_eq!(incident.grant, Some("g1".into()));
    }
}

#[test]
fn force_release_ends_the_named_grant_and_serves_live_waiters() {
    let line = queued(&queued(&held(1, "g1"), 2, "g2"), 3, "g3");
    let forced = Ending {
        kind: IncidentKind::ForceReleased,
        ..ending()
    };
    let force = |grant: &str, dead_ones: &[&str]| {
        let is_dead = |who: &Claimant| dead_ones.contains(&who.session.as_str());
        line.force_release(Revision(20), &mint(), &grant.into(), is_dead, &forced)
    };
    for (dead_ones, winner) in [
        (&[][..], Some("g2")),
        (&["s2"], Some("g3")),
        (&["s2", "s3"], None),
    ] {
        let next = force("g1", dead_ones).unwrap();
        assert_eq!(next.grant.map(|grant| grant.id), winner.map(GrantId::from));
        assert_eq!(
            next.incidents.last().unwrap().kind,
            IncidentKind::ForceReleased
        );
    }
    assert_eq!(force("g2", &[]), None, "it waits and holds nothing");
    assert_eq!(force("gone", &[]), None);
}

#[test]
fn a_ninth_incident_pushes_out_the_oldest() {
    let mut lock = held(1, "g1");
    for n in 0..9_usize {
        let next = claim(1, &format!("n{n}"));
        let at = Revision(20 + n as u64);
        lock = lock
            .take_over(at, &mint(), |_| true, &ending(), Some(&next))
            .unwrap();
    }
    assert_eq!(lock.incidents.len(), INCIDENTS_MAX);
    assert_eq!(lock.incidents[0].token, Token::from_raw(20_000));
}

#[test]
fn a_rebase_keeps_the_grant_and_raises_its_token() {
    let lock = queued(&held(1, "g1"), 2, "g2");
    let raised = lock
        .rebase(Revision(12), &mint(), &key(1))
        .unwrap()
        .unwrap();
    assert_eq!(raised.token, Token::from_raw(12_000));
    let unraised = Lock {
        token: lock.token,
        ..raised
    };
    assert_eq!(unraised, lock);
    assert_eq!(lock.rebase(Revision(12), &mint(), &key(2)), Ok(None));
}

#[test]
fn exhausted_tokens_prevent_grants_and_a_hand_over_frees() {
    let refused = free().acquire(Revision(10), &exhausted(), &claim(1, "g1"));
    assert!(matches!(
        refused,
        Decision::Refused(Refusal::TokenExhausted(_))
    ));
    let line = queued(&held(1, "g1"), 2, "g2");
    assert!(line.rebase(Revision(11), &exhausted(), &key(1)).is_err());
    let freed = line
        .release(Revision(11), &exhausted(), &key(1), WallTime(1))
        .unwrap();
    assert_eq!(freed.grant, None);
    assert!(freed.waiters.is_empty());
    assert_eq!(freed.token, line.token);
}

#[test]
fn a_token_is_current_stale_or_unknown() {
    let lock = held(1, "g1");
    for (token, check) in [
        (9_999, TokenCheck::Stale),
        (10_000, TokenCheck::Current),
        (10_999, TokenCheck::Current),
        (11_000, TokenCheck::Unknown),
    ] {
        assert_eq!(lock.check_token(Token::from_raw(token)), check, "{token}");
    }
    let freed = lock
        .release(Revision(11), &mint(), &key(1), WallTime(1))
        .unwrap();
    assert_eq!(
        freed.check_token(Token::from_raw(10_000)),
        TokenCheck::Stale
    );
    assert_eq!(free().check_token(Token::NONE), TokenCheck::Unknown);
}

/// One transition; the numbers choose sessions and grants.
#[derive(Clone, Debug)]
enum Step {
    Acquire(usize),
    Queue(usize),
    /// A join that was decided on an earlier lock is applied to this one.
    JoinLate(usize),
    /// A preferred candidate joins.
    Prefer(usize),
    Leave(usize),
    Release(usize),
    TakeOver(Vec<bool>, Option<usize>),
    Rebase(usize),
    TokensRunOut(bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = 0..40_usize;
    let step = prop_oneof![
        who.clone().prop_map(Step::Acquire),
        who.clone().prop_map(Step::Queue),
        who.clone().prop_map(Step::Queue),
        who.clone().prop_map(Step::JoinLate),
        who.clone().prop_map(Step::Prefer),
        who.clone().prop_map(Step::Leave),
        who.clone().prop_map(Step::Release),
        (
            prop::collection::vec(any::<bool>(), 40),
            prop::option::of(who.clone())
        )
            .prop_map(|(dead, taker)| Step::TakeOver(dead, taker)),
        who.prop_map(Step::Rebase),
        prop::bool::weighted(0.1).prop_map(Step::TokensRunOut),
    ];
    prop::collection::vec(step, 0..120)
}

/// Returns the lock after a step, if the step changes it. Session `n` always claims grant `g<n>`,
/// so the id of a released grant is used again, which is harsher than what agents do.
fn after(lock: &Lock, step: &Step, at: Revision, mint: &Mint) -> Option<Lock> {
    let grant = |n: &usize| key(*n);
    let claims = |n: &usize| claim(*n, &format!("g{n}"));
    let written = |decision| match decision {
        Decision::Granted(lock) => Some(*lock),
        Decision::Queued(waiter) => lock.joined_by(*waiter),
        Decision::AlreadyGranted | Decision::AlreadyQueued(_) | Decision::Refused(_) => None,
    };
    match step {
        Step::Acquire(n) => written(lock.acquire(at, mint, &claims(n))),
        Step::Queue(n) => written(lock.acquire_or_queue(at, mint, &claims(n))),
        // The lock that it was decided on does not matter: a join carries only the waiter.
        Step::JoinLate(n) => lock.joined_by(claims(n).to_waiter()),
        Step::Prefer(n) => {
            let preferred = Claim {
                preferred: true,
                ..claims(n)
            };
            written(lock.acquire_or_queue(at, mint, &preferred))
        }
        Step::Leave(n) => lock.leave_queue(&grant(n)),
        Step::Release(n) => lock.release(at, mint, &grant(n), WallTime(1)),
        Step::Rebase(n) => lock.rebase(at, mint, &grant(n)).ok().flatten(),
        Step::TakeOver(dead, taker) => {
            let is_dead =
                |who: &Claimant| dead[who.session.as_str()[1..].parse::<usize>().unwrap()];
            let taker = taker.filter(|n| !dead[*n]).map(|n| claims(&n));
            lock.take_over(at, mint, is_dead, &ending(), taker.as_ref())
        }
        Step::TokensRunOut(_) => None,
    }
}

fn ended(lock: &Lock) -> Option<&GrantId> {
    lock.grant.as_ref().map(|grant| &grant.id)
}

proptest! {
    /// Checks what the API server checks on every write, and what only this code checks.
    #[test]
    fn no_sequence_of_transitions_breaks_a_lock(
        steps in steps(), resource in prop::sample::select(vec!["r", "election:r"]),
    ) {
        let mut lock = Lock::unheld(Resource::parse(resource).unwrap());
        let mut mint = mint();
        for (at, step) in (20_u64..).zip(&steps) {
            if let Step::TokensRunOut(out) = step {
                mint = if *out { exhausted() } else { self::mint() };
            }
            let Some(next) = after(&lock, step, Revision(at), &mint) else { continue };
            let entries = next.waiters.entries();
            prop_assert!(next.grant.is_some() || entries.is_empty(), "free with waiters");
            prop_assert!(entries.len() <= QUEUE_MAX);
            prop_assert!(next.incidents.len() <= INCIDENTS_MAX);
            for (n, waiter) in entries.iter().enumerate() {
                let session = &waiter.claimant.session;
                prop_assert!(entries[..n].iter().all(|w| w.claimant.session != *session));
                prop_assert!(!next.names_grant(&waiter.grant), "the holder waits for itself");
                prop_assert!(!waiter.preferred || is_election(&lock.resource));
            }
            prop_assert!(entries.is_sorted_by_key(|waiter| !waiter.preferred));
            let stay = |queue: &Queue, other: &Queue| {
                let in_other = |w: &&Waiter| other.entries().contains(*w);
                queue.entries().iter().filter(in_other).cloned().collect::<Vec<_>>()
            };
            let (before, after) = (&lock.waiters, &next.waiters);
            prop_assert_eq!(stay(before, after), stay(after, before), "order unchanged");
            prop_assert!(next.token >= lock.token);
            prop_assert!(next.transitions >= lock.transitions);
            prop_assert_eq!(&next.resource, &lock.resource);
            if let Step::JoinLate(_) = step {
                prop_assert_eq!(&next.grant, &lock.grant);
                prop_assert_eq!(next.token, lock.token);
                prop_assert!(entries.starts_with(lock.waiters.entries()));
                prop_assert_eq!(entries.len(), lock.waiters.len() + 1);
            }
            if ended(&next) != ended(&lock) {
                prop_assert!(next.grant.is_none() || next.token > lock.token.nth(999).unwrap());
                let by_its_own_id = matches!(
                    step, Step::Release(n) if lock.names_grant(&GrantId::from(format!("g{n}")))
                );
                let proven_dead = matches!(step, Step::TakeOver(..));
                prop_assert!(lock.grant.is_none() || by_its_own_id || proven_dead);
            }
            lock = next;
        }
    }
}

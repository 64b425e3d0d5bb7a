//! How leases begin and end, and what their apps are told.

use std::collections::BTreeMap;

use super::releases::{claimant, found, key, lock, resource};
use super::*;
use crate::agent::api::{AcquireRequest, LeaseError, LeaseView, Life};
use crate::agent::core::answers;
use crate::agent::core::begun::{self, FromWarm, NewLease};
use crate::agent::core::history::End;
use crate::agent::core::leases::EndedBy;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{LeaseId, OwnerId};
use crate::protocol::key::SessionKey;
use crate::protocol::object::LockEvent;

pub(super) const SECOND: Duration = Duration::from_secs(1);

pub(super) fn request(resource: Resource) -> AcquireRequest {
    AcquireRequest {
        resource,
        owner: OwnerId::from("app"),
        life: Life::Ttl(SECOND * 6),
        metadata: BTreeMap::new(),
        wait: Duration::ZERO,
        preferred: false,
        keep: Duration::ZERO,
        request_id: None,
    }
}

impl Rig {
    pub(super) fn session_id(&self) -> SessionId {
        self.core.live().unwrap().id().clone()
    }

    /// Returns a lock that this agent's session holds by a grant.
    pub(super) fn own(&self, resource: Resource, grant: &str, version: u64) -> Stored<Lock> {
        let mut stored = lock(Some(grant), version);
        stored.value.resource = resource;
        if let Some(grant) = &mut stored.value.grant {
            grant.holder = claimant(self.session_id().as_str());
            grant.kept = true;
        }
        stored
    }

    pub(super) fn begin(&mut self, request: &AcquireRequest) -> LeaseView {
        let view = self.try_begin(request, "g", None);
        self.effects
            .retain(|effect| !matches!(effect, Effect::Report(_)));
        view.unwrap()
    }

    /// Makes a lease of a grant that was read at revision 20.
    pub(super) fn try_begin(
        &mut self,
        request: &AcquireRequest,
        grant: &str,
        gone_at: Option<Revision>,
    ) -> Result<LeaseView, AcquireError> {
        let stored = self.own(request.resource.clone(), grant, 20);
        let session = SessionKey {
            id: self.session_id(),
            pod_uid: "u".into(),
        };
        let new = NewLease {
            request,
            arrived: self.now,
            grant: GrantKey {
                session,
                ..key(grant)
            },
            stored,
            gone_at,
        };
        self.with(|core, cx| begun::begin(&mut core.leases(cx), new))
    }

    pub(super) fn is_answered(&self, call: CallId) -> bool {
        let mut effects = self.effects.iter();
        effects.any(|effect| matches!(effect, Effect::Reply(to, Reply::Done) if *to == call))
    }

    /// Returns a lead whose app has ended it, and whose reader believes in it for a second more.
    pub(super) fn with_closing_lead(keep: Duration) -> Self {
        let election = ElectionName::parse("jobs").unwrap().resource().clone();
        let mut rig = Self::with_session();
        let lease = rig.begin(&AcquireRequest {
            keep,
            ..request(election.clone())
        });
        let now = rig.now;
        rig.with(|core, cx| {
            answers::tell_readers(&mut core.leases(cx), &election, now, SECOND).unwrap();
        });
        rig.effects.clear();
        assert!(rig.end_by(&lease.lease, EndedBy::App));
        assert!(!rig.is_answered(CallId(99)), "it waits for its readers");
        rig
    }

    pub(super) fn end_by(&mut self, lease: &LeaseId, by: EndedBy) -> bool {
        self.with(|core, cx| core.leases(cx).end(lease, by, CallId(99)))
    }

    pub(super) fn renew(&mut self, lease: &LeaseId) -> Result<LeaseView, LeaseError> {
        let now = self.now;
        self.with(|core, cx| answers::renew(&mut core.leases(cx), lease, None, now))
    }

    pub(super) fn event(&mut self, event: LockEvent) {
        let id = self.core.watching.id().unwrap();
        self.feed(Input::Watch(id, WatchInput::Event(event)));
    }

    pub(super) fn gone(&mut self, at: u64) {
        self.event(LockEvent::Gone {
            resource: resource(),
            at: Revision(at),
        });
    }

    /// Lets time pass, and confirms the renewals of the session.
    pub(super) fn live_on(&mut self, time: Duration) {
        let until = self.now.after(time);
        while self.now < until {
            self.sleep(Duration::from_millis(500));
            let renewal = self.effects.iter().find_map(|effect| match effect {
                Effect::Call {
                    op,
                    call: StoreCall::UpdateSession(current, next),
                    ..
                } => Some((*op, current.version.0 + 1, (**next).clone())),
                _ => None,
            });
            if let Some((renewal, version, next)) = renewal {
                let is_it =
                    |effect: &Effect| matches!(effect, Effect::Call { op, .. } if *op == renewal);
                self.effects.retain(|effect| !is_it(effect));
                self.answer(renewal, written(next, version));
            }
        }
    }

    pub(super) fn lost_leases(&self) -> Vec<Loss> {
        let losses = self.effects.iter().filter_map(|effect| match effect {
            Effect::Report(Report::LeaseLost(_, loss)) => Some(*loss),
            _ => None,
        });
        losses.collect()
    }

    pub(super) fn begin_from_warm(&mut self, keep: Duration) -> FromWarm {
        let now = self.now;
        let request = AcquireRequest {
            keep,
            ..request(resource())
        };
        self.with(|core, cx| begun::begin_from_warm(&mut core.leases(cx), &request, now))
    }

    pub(super) fn persisted(&self) -> Vec<&Record> {
        let records = self.effects.iter().filter_map(|effect| match effect {
            Effect::Persist(record) => Some(record),
            _ => None,
        });
        records.collect()
    }
}

#[test]
fn silent_app_loses_its_lease_and_the_grant_is_released() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    rig.live_on(SECOND * 5);
    rig.effects.clear();
    rig.renew(&lease).unwrap();
    rig.live_on(SECOND * 5);
    assert_eq!(rig.lost_leases(), []);
    rig.live_on(SECOND);
    assert_eq!(rig.lost_leases(), [Loss::AppSilent]);
    assert_eq!(rig.renew(&lease), Err(LeaseError::Lost(Loss::AppSilent)));
    rig.lock_write();
}

#[test]
fn lease_that_the_clock_has_ended_is_told_nothing_more() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    rig.now = rig.now.after(SECOND * 6);
    assert_eq!(rig.renew(&lease), Err(LeaseError::Lost(Loss::AppSilent)));

    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    rig.now = rig.valid_until();
    let lost = LeaseError::Lost(Loss::SessionExpired);
    assert_eq!(rig.renew(&lease), Err(lost));
}

#[test]
fn ended_lease_leaves_a_grant_that_serves_no_other_lease() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    assert!(rig.end_by(&lease, EndedBy::App));
    assert_eq!(rig.begin_from_warm(Duration::ZERO), FromWarm::Nothing);
    let records = rig.persisted();
    let Some(Record::Ended(end)) = records.last() else {
        panic!("{records:?}");
    };
    assert!(
        end.may_release,
        "its end is on file before its release is sent"
    );
    rig.lock_write();
}

#[test]
fn kept_grant_serves_the_next_lease_without_a_write() {
    let mut rig = Rig::with_session();
    let first = rig.begin(&AcquireRequest {
        keep: SECOND * 3,
        ..request(resource())
    });
    rig.effects.clear();
    assert!(rig.end_by(&first.lease, EndedBy::App));
    assert_eq!(rig.core.history.end(&first.lease), Some(End::Released));
    let FromWarm::Lease(second) = rig.begin_from_warm(Duration::ZERO) else {
        panic!("nothing was kept");
    };
    assert_eq!(second.token.get(), first.token.get() + 1);
    assert_eq!(rig.calls(), 0);
    assert!(rig.end_by(&second.lease, EndedBy::App));
    rig.lock_write();
}

#[test]
fn grants_of_a_lost_session_wait_for_its_last_promise() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    rig.effects.clear();
    let promised = rig.core.own.lease(&lease).unwrap().lease.told_until();
    rig.with(|core, cx| {
        let sent = core.seen_at_send();
        core.observe_list(cx, sent, Revision(21)).unwrap();
        core.observe_revision(cx, Revision(2_000_000_000));
    });
    assert_eq!(rig.lost_leases(), [Loss::StoreRestored]);
    let records = rig.persisted();
    assert!(matches!(
        records[..],
        [Record::Ended(_), Record::SessionOver]
    ));
    assert_eq!(rig.calls(), 0);
    rig.now = promised;
    rig.timer();
    assert_eq!(
        rig.calls(),
        2,
        "the session is revoked, and the lock released"
    );
}

#[test]
fn ended_lead_is_released_when_its_readers_time_is_over() {
    let election = ElectionName::parse("jobs").unwrap().resource().clone();
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(election.clone())).lease;
    let now = rig.now;
    let short = |core: &mut Core, cx: &mut Cx| {
        answers::tell_readers(&mut core.leases(cx), &election, now, SECOND)
    };
    assert_eq!(rig.with(short).unwrap().valid_for, SECOND);
    rig.effects.clear();
    assert!(rig.end_by(&lease, EndedBy::App));
    assert!(!rig.end_by(&lease, EndedBy::App), "that has begun");
    assert_eq!(rig.with(short), None);
    assert_eq!(rig.renew(&lease), Err(LeaseError::Released));
    rig.sleep(Duration::from_millis(999));
    assert_eq!(rig.calls(), 0);
    rig.sleep(Duration::from_millis(1));
    let (op, ..) = rig.lock_write();
    rig.answer(op, found(lock(None, 21)));
    assert_eq!(rig.core.history.end(&lease), Some(End::Released));
}

#[test]
fn hang_up_ends_a_lease_unless_its_request_was_repeated() {
    for is_repeated in [false, true] {
        let mut rig = Rig::with_session();
        let mut request = request(resource());
        request.request_id = Some("r1".into());
        let lease = rig.begin(&request).lease;
        rig.effects.clear();
        if is_repeated {
            let now = rig.now;
            rig.with(|core, cx| answers::replay(&mut core.leases(cx), &lease, now))
                .unwrap();
        }
        assert_eq!(rig.end_by(&lease, EndedBy::HangUp), !is_repeated);
        let unheard = rig
            .persisted()
            .iter()
            .any(|record| matches!(record, Record::Unheard(_)));
        assert_eq!(unheard, !is_repeated);
    }
}

#[test]
fn stopping_agent_leaves_promised_leases_and_extends_none() {
    let mut rig = Rig::with_session();
    let lease = rig.begin(&request(resource())).lease;
    let until = rig.core.own.lease(&lease).unwrap().lease.told_until();
    rig.feed(Input::Drain);
    rig.sleep(SECOND);
    rig.renew(&lease).unwrap();
    let held = rig.core.own.lease(&lease).unwrap();
    assert_eq!(held.lease.told_until(), until);
    let at_stop = |leaves_promised| EndedBy::Agent { leaves_promised };
    assert!(!rig.end_by(&lease, at_stop(true)));
    assert!(rig.end_by(&lease, at_stop(false)));
    assert!(rig.core.own.was_stopped(&lease));
}

#[test]
fn request_to_end_a_lead_is_answered_however_that_ends() {
    let mut rig = Rig::with_closing_lead(SECOND * 3);
    rig.live_on(SECOND);
    assert!(rig.is_answered(CallId(99)), "the grant is kept");

    let mut rig = Rig::with_closing_lead(Duration::ZERO);
    rig.now = rig.valid_until();
    rig.timer();
    assert!(rig.is_answered(CallId(99)), "its session is lost");

    let mut rig = Rig::with_closing_lead(Duration::ZERO);
    let lease = LeaseId::from("g.0");
    let stop = EndedBy::Agent {
        leaves_promised: false,
    };
    rig.with(|core, cx| core.leases(cx).end(&lease, stop, CallId(98)));
    assert!(!rig.core.own.was_stopped(&lease), "its app ended it before");
    let (op, ..) = rig.lock_write();
    rig.answer(op, found(lock(None, 21)));
    assert!(rig.is_answered(CallId(98)) && rig.is_answered(CallId(99)));
}

#[test]
fn only_leases_of_elections_change_who_leads() {
    let election = ElectionName::parse("jobs").unwrap().resource().clone();
    for (resource, changes) in [(resource(), 0), (election, 2)] {
        let mut rig = Rig::with_session();
        let lease = rig.begin(&request(resource)).lease;
        assert!(rig.end_by(&lease, EndedBy::App));
        let changed = |effect: &&Effect| matches!(effect, Effect::LeadChanged(..));
        assert_eq!(rig.effects.iter().filter(changed).count(), changes);
    }
}

#[test]
fn lease_begins_only_from_a_grant_that_may_still_be_ours() {
    let mut rig = Rig::with_session();
    let gone = rig.try_begin(&request(resource()), "g", Some(Revision(21)));
    assert_eq!(gone, Err(AcquireError::GrantEnded));
    let older_news = Some(Revision(20));
    let first = rig
        .try_begin(&request(resource()), "g", older_news)
        .unwrap();
    rig.effects.clear();
    let second = rig.try_begin(&request(resource()), "g2", None).unwrap();
    assert_eq!(rig.lost_leases(), [Loss::GrantGone], "superseded");
    assert!(rig.core.own.lease(&first.lease).is_none());
    assert!(rig.core.own.lease(&second.lease).is_some());
    rig.feed(Input::Drain);
    let stopping = rig.try_begin(&request(resource()), "g3", None);
    assert_eq!(stopping, Err(AcquireError::ShuttingDown));
}

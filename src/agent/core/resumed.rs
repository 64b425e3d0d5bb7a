//! What an earlier process left, in this one: how its leases ended, and, once that is known, which of
//! them continue.

use crate::agent::api::Life;
use crate::protocol::fair_share::FairShare;
use crate::protocol::ids::SessionId;
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::{Lease, Tenure};
use crate::protocol::lock::Lock;
use crate::protocol::object::{Page, Stored};
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

use super::begun;
use super::discard::DiscardReason;
use super::effect::{Effect, Record};
use super::gone::{Ending, GoneGrant};
use super::held::Held;
use super::history::{End, EndedLease};
use super::leases::Leases;
use super::observed;
use super::release::ReleaseOf;
use super::report::{Report, ResumptionReport};
use super::requests;
use super::resume_plan::{Plan, Unserved};
use super::saved::{SavedLease, SavedState};
use super::session::{Resumption, ResumptionEnd};
use super::warm::others_wait;

/// Records what an earlier process left. If it had a session, that is resumed.
pub(super) fn recall(leases: &mut Leases, mut saved: SavedState) {
    record_ends(leases, saved.take_ends());
    match saved.session.take() {
        Some(session) => leases.session.resume(saved, session, &mut leases.env),
        None => forget(leases, &saved),
    }
}

/// Does what follows from the end of a resumption.
pub(super) fn settle(leases: &mut Leases, resumption: Resumption) {
    leases.env.out.push(Effect::SomethingEnded);
    match resumption.end {
        ResumptionEnd::Continues(session, page) => {
            continue_leases(
                leases,
                resumption.saved,
                &session,
                resumption.promised_until,
                *page,
            );
        }
        ResumptionEnd::Discarded(reason) => {
            discard(leases, resumption.saved, resumption.session, reason);
        }
    }
    for deferred in resumption.deferred {
        requests::acquire(leases, deferred.call, deferred.request, deferred.arrived);
    }
}

/// None of the leases continues.
fn discard(leases: &mut Leases, mut saved: SavedState, session: SessionId, reason: DiscardReason) {
    saved.end_all(reason.loss());
    let ends = saved.take_ends();
    let report = ResumptionReport::Discarded(reason, session, ends.len());
    leases.env.out.report(report);
    record_ends(leases, ends);
    forget(leases, &saved);
}

/// Records pending releases as done, because the old session is not continued, and replaces the file.
fn forget(leases: &mut Leases, saved: &SavedState) {
    for lease in saved.released() {
        leases.history.release_ended(lease, End::Released);
    }
    leases.env.out.push(Effect::Persist(Record::Replacement));
}

/// Continues the leases that both the file and the store have, and releases other grants.
fn continue_leases(
    leases: &mut Leases,
    saved: SavedState,
    session: &SessionKey,
    promised_until: Moment,
    mut page: Page<Lock>,
) {
    page.items
        .retain(|lock| !observed::is_foreign(leases, lock));
    if !page.unreadable.is_empty() {
        let unreadable = page.unreadable.clone();
        let report = Report::UnreadableLocks(session.id.clone(), unreadable);
        leases.env.out.report(report);
    }
    let plan = Plan::new(saved, page);
    leases.env.out.report(ResumptionReport::Continues {
        session: session.id.clone(),
        leases: plan.resumed.len(),
        lost: plan.lost.len(),
        released: plan.at_once.len(),
        released_later: plan.in_time.len(),
    });
    for (lease, stored) in plan.resumed {
        let requested = lease.requested();
        if let Some(held) = resumed(lease, stored, promised_until, leases.env.now) {
            begun::resume(leases, held, requested);
        }
    }
    for (lease, end) in plan.settled {
        leases.history.release_ended(&lease, end);
    }
    for (lease, loss) in plan.lost {
        let report = ResumptionReport::LeaseLost(lease.id.clone(), lease.token, loss);
        leases.env.out.report(report);
        let ended = lease.ended(End::Lost(loss), false);
        record_ends(leases, vec![ended.clone()]);
        leases.env.out.push(Effect::Persist(Record::Ended(ended)));
    }
    let release_of = |unserved| release_of(unserved, session, promised_until);
    let at_once = plan.at_once.into_iter().map(release_of);
    let in_time = plan.in_time.into_iter().map(release_of);
    let in_time = in_time.map(|release| ReleaseOf {
        not_before: promised_until,
        // Its queue may have changed by then.
        known: None,
        ..release
    });
    for release in at_once.chain(in_time) {
        leases.release(release, Vec::new());
    }
    // Otherwise the file grows with each crash.
    leases.env.out.push(Effect::Persist(Record::Compaction));
}

/// Records how leases of an earlier process ended.
pub(super) fn record_ends(leases: &mut Leases, ends: Vec<EndedLease>) {
    let now = leases.env.now;
    for ended in ends {
        leases
            .history
            .record_earlier_end(ended.lease, ended.end, ended.request, now);
    }
}

/// Returns the release of a grant that serves no lease.
fn release_of(unserved: Unserved, session: &SessionKey, promised_until: Moment) -> ReleaseOf {
    let stored = unserved.stored.as_ref();
    let ending = unserved.lease.map(|lease| Ending {
        lease,
        gone: GoneGrant {
            grant: unserved.grant.clone(),
            base: stored.map_or(Token::NONE, |stored| stored.value.token),
        },
        session: session.id.clone(),
        seen_at: stored.map(|stored| stored.version).unwrap_or_default(),
        promised_until,
    });
    let grant = GrantKey {
        id: unserved.grant,
        session: session.clone(),
    };
    ReleaseOf {
        ending,
        may_be_applied: unserved.may_be_applied,
        ..ReleaseOf::new(unserved.resource, grant, unserved.stored)
    }
}

/// Returns a lease of an earlier process, as it is served from now on. Its grant's other tokens are spent.
fn resumed(
    saved: SavedLease,
    stored: Stored<Lock>,
    promised_until: Moment,
    now: Moment,
) -> Option<Held> {
    let Life::Ttl(ttl) = saved.life else {
        return None;
    };
    let request = saved.request();
    // It is unknown which readers were given the lead.
    let readers_until = Some(promised_until).filter(|_| saved.has_readers());
    let session = stored.value.grant.as_ref()?.holder.key();
    let mut share = FairShare::default();
    share.note_others(others_wait(&stored.value, &session), now);
    Some(Held {
        lease: Lease::resumed(saved.id, saved.token, promised_until, now, ttl),
        tenure: Tenure::resumed(saved.grant, stored.value.token),
        session,
        owner: saved.owner,
        life: saved.life,
        keep: saved.keep,
        metadata: saved.metadata,
        acquired_at: saved.acquired_at,
        stored,
        share,
        since: now,
        request,
        // Whether its answer was received is not known.
        replayed: true,
        readers_until: readers_until.unwrap_or_default(),
        closing: None,
        unheard_until: None,
    })
}

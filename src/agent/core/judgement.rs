//! What a claim does about a held lock: whether its holder lives, and what the callers are told, or the
//! write that takes the lock over.

use crate::protocol::lock::{Grant, Lock};
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;

use super::callers::KEPT_IS_GIVEN_WITHIN;
use super::claim::{Claim, Step, Write};
use super::effect::{Answer, Effect, OpId, StoreCall};
use super::granted::{session_claim, write};
use super::holder::{self, Fate, Judge, Judging, Progress};
use super::leases::Leases;
use super::next::{Next, Outlook, Source};
use super::release::ReleaseOf;
use super::reply::held_as_read;
use super::report::ClaimReport;
use super::session::Live;
use crate::agent::api::{AcquireError, Acquired};

/// Asks whether the holder lives.
pub(super) fn judge(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
) -> Next {
    let Some(grant) = lock.value.grant.as_ref() else {
        return Next::Recheck;
    };
    let own = leases.session.live().map(Live::key);
    if own == Some(grant.holder.key()) {
        release_if_orphaned(leases, claim, grant);
        return Next::BackOff;
    }
    let takes_over = leases.acquiring.config.takes_over;
    if let Some(fate) = Fate::without_read(takes_over, leases.peers, leases.env.now) {
        return Next::or_fail(by_fate(leases, claim, lock, source, fate));
    }
    let Some(judging) = Judging::new(lock, source, &mut leases.env) else {
        return Next::Recheck;
    };
    claim.step = Step::Judging(Box::new(judging));
    Next::Wait
}

/// A grant under our own session is some lease's, or is being released. One that is neither was applied
/// after it was given up: it is released.
fn release_if_orphaned(leases: &mut Leases, claim: &Claim, grant: &Grant) {
    let is_known = leases.own.has(&claim.resource, &grant.id) || leases.releases.has(&grant.id);
    // The lock may have been read before a release that is done by now: only a grant that a second read
    // still shows is an orphan.
    if !is_known && leases.acquiring.suspected_before(&grant.id) {
        let report = ClaimReport::OrphanedGrant(claim.resource.clone(), grant.id.clone());
        leases.env.out.report(report);
        let what = ReleaseOf::new(claim.resource.clone(), grant.key(), None);
        leases.release(what, Vec::new());
    }
}

/// Takes the answer to a call that asks whether the holder lives.
pub(super) fn judged(
    leases: &mut Leases,
    claim: &mut Claim,
    mut judging: Box<Judging>,
    op: OpId,
    answer: Answer,
) -> Next {
    let pod = leases.session.pod().clone();
    let judge = &mut Judge {
        own: claim.session_key(&pod),
        pod: &pod,
        peers: leases.peers,
    };
    match judging.answered(op, answer, judge, &mut leases.env) {
        Progress::Continues => {
            claim.step = Step::Judging(judging);
            Next::Wait
        }
        Progress::Failed(error) => Next::Fail(error.into()),
        Progress::Known(fate) => {
            let source = judging.source;
            Next::or_fail(by_fate(leases, claim, judging.lock, source, fate))
        }
    }
}

fn by_fate(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
    fate: Fate,
) -> Result<Next, AcquireError> {
    let Some(grant) = &lock.value.grant else {
        return Ok(Next::Recheck);
    };
    claim.silence = None;
    match fate {
        Fate::Changed => Ok(Next::BackOff),
        Fate::MayLive {
            hint,
            silence,
            until,
            dead_at,
        } => {
            claim.silence = silence.map(|silence| (grant.id.clone(), silence));
            let outlook = Outlook {
                held: held_as_read(leases, claim, &lock.value, grant, hint),
                again_at: until,
                dead_at,
            };
            Ok(Next::Held(lock, source, outlook))
        }
        Fate::Dead => take_over(leases, claim, lock),
    }
}

fn take_over(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
) -> Result<Next, AcquireError> {
    let Some(first) = leases.acquiring.first(&claim.resource, leases.env.now) else {
        return Ok(Next::Recheck);
    };
    let Some(protocol_claim) = session_claim(leases, claim, &first)? else {
        return Ok(Next::NeedSession(Some(lock)));
    };
    let pod = leases.session.pod().clone();
    let judge = Judge {
        own: None,
        pod: &pod,
        peers: leases.peers,
    };
    let mint = leases.env.horizon.mint()?;
    let next = holder::taken_over(&lock, &protocol_claim, &mint, &judge, &leases.env);
    let Some(next) = next else {
        return Ok(Next::BackOff);
    };
    claim.granted_for = Some(first.id);
    let call = StoreCall::UpdateLock(lock.clone(), Box::new(next));
    Ok(write(leases, claim, lock, Write::TakeOver, call))
}

/// The lock is held, also by a grant of this session on its way back, and that is all that can be known now: tries are answered, and callers that
/// wait stay in the queue or come back.
pub(super) fn held(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
    outlook: &Outlook,
) -> Next {
    record_outlook(leases, claim, source, outlook);
    claim.pace.failing_since = None;
    let (now, pod) = (leases.env.now, leases.session.pod().clone());
    if claim.is_queued_in(&lock.value, &pod) {
        stay_queued(leases, claim, lock, source, outlook.again_at);
        return Next::Recheck;
    }
    (claim.queued, claim.has_place) = (None, false);
    let Some(first) = leases.acquiring.first(&claim.resource, now) else {
        return Next::Recheck;
    };
    if first.tried.is_some() && !claim.pace.has_paused() && matches!(source, Source::Read(_)) {
        // A try that queues from now on.
        return Next::Found(lock, Source::Known);
    }
    let until = if first.waits() {
        claim.pace.pause_for_room(first.patience(), &mut leases.env)
    } else {
        // A session that lives is renewed in each third of its period; the lock may be released, too.
        let again_at = now.after(leases.session.period() / 10);
        outlook
            .dead_at
            .map_or(again_at, |dead_at| again_at.min(dead_at))
    };
    claim.wait_until(until);
    // A try may have arrived since the read was sent.
    Next::Recheck
}

/// Only a read that was sent after a try arrived answers it.
fn record_outlook(leases: &mut Leases, claim: &Claim, source: Source, outlook: &Outlook) {
    let now = leases.env.now;
    let Some(callers) = leases.acquiring.callers.get_mut(&claim.resource) else {
        return;
    };
    let held = outlook.held.clone();
    match source {
        Source::Read(sent) => {
            let is_kept = matches!(&held, Acquired::Held(held) if held.holder.kept);
            if outlook.dead_at.is_none() && is_kept {
                callers.queue_tries(&held, now.after(KEPT_IS_GIVEN_WITHIN));
            }
            callers.settle(held, sent, outlook.dead_at);
        }
        Source::Known => callers.record(Ok(held)),
    }
    leases.env.out.push(Effect::OutlookChanged);
}

/// The claim has an entry in the queue. The lock is read again after a third of the period, whatever the
/// watch reports. The first in the queue reads the holder's session more often: it takes over.
fn stay_queued(
    leases: &mut Leases,
    claim: &mut Claim,
    lock: Box<Stored<Lock>>,
    source: Source,
    again_at: Option<Moment>,
) {
    let (now, period) = (leases.env.now, leases.session.period());
    let own = claim.session_key(leases.session.pod());
    let waiters = &lock.value.waiters;
    let entry = own.as_ref().and_then(|own| waiters.entry_of(own));
    let ahead = own.as_ref().map_or(0, |own| waiters.ahead_of(own).len());
    if let Some(entry) = entry.filter(|_| !claim.has_place) {
        let owner = entry.claimant.owner.clone();
        let report = ClaimReport::Queued(claim.resource.clone(), owner, ahead);
        leases.env.out.report(report);
    }
    let jitter = 0.9 + 0.2 * leases.env.rng.fraction();
    let third = (period / 3).mul_f64(jitter);
    if claim.queued.is_none() || matches!(source, Source::Read(_)) {
        claim.pace.read_at = now.after(third);
    }
    let judge_at = now.after(if ahead == 0 { period / 10 } else { third });
    claim.pace.judge_at = again_at.map_or(judge_at, |at| at.min(judge_at).max(now));
    claim.queued = Some(lock);
    claim.has_place = true;
    claim.pace.succeed();
    claim.wait_until(claim.pace.judge_at.min(claim.pace.read_at));
}

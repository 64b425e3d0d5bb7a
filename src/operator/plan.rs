//! Plans what to do about one object, from the observations of it.
//!
//! Pure: takes a view and the time, returns a plan. Every write is a compare-and-swap on the
//! version that the plan is based on, so a late one has no effect. An ordinary acquire or release
//! leads to no write, because that would make the agent's next write fail.

mod binding;
pub(super) mod label;
mod reclaim;
mod unready_leader;

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::protocol::election::is_election;
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::observed::Verdict;
use crate::protocol::session::{Claimant, Revocation, RevokeReason};
use crate::protocol::settings::ReleaseMode;
use crate::protocol::time::Moment;
use crate::protocol::token::LEASES_PER_GRANT;
use crate::store::fleet::{Object, ObjectRef};

use self::reclaim::{is_expired, plan_reclaim};
use super::action::{Action, Plan, WriteReason};
use super::key::Key;
use super::rules::Rules;
use super::view::{LockObservation, SessionObservation, View};

/// Plans one key.
pub(super) fn plan(view: &View, rules: &Rules, key: &Key, now: Now) -> Plan {
    match key {
        Key::Session(object_ref) => view
            .session(object_ref)
            .map_or_else(Plan::default, |seen| plan_session(view, rules, seen, now)),
        Key::Lock(object_ref) => {
            view.lock(object_ref)
                .map_or_else(Plan::default, |seen| match &seen.lock {
                    Some(lock) => plan_lock(view, rules, lock, seen.since, now),
                    None => plan_free_lock(view, rules, object_ref, seen, now),
                })
        }
        Key::Label(election) => label::plan(view, rules, election, now.moment),
        Key::Leader(election) => unready_leader::plan(view, rules, election, now.moment),
        Key::Binding(namespace) => binding::plan(view, rules, namespace, now.moment),
        // It is only reported.
        Key::UninjectedPod(_) => Plan::default(),
    }
}

fn plan_session(view: &View, rules: &Rules, seen: &SessionObservation, now: Now) -> Plan {
    let value = &seen.session.stored.value;
    if value.revoked.is_some() {
        return plan_ended_session(view, rules, seen, now);
    }
    let revoke = |reason| {
        let revocation = Revocation {
            at: now.wall,
            by: rules.actor.clone(),
            reason,
        };
        value
            .revoked(revocation)
            .map_or_else(Plan::default, |next| {
                Plan::act(Action::Revoke {
                    current: seen.session.clone(),
                    next: Box::new(next),
                })
            })
    };
    if view.pod_has_ended(&seen.session) {
        return revoke(RevokeReason::PodEnded);
    }
    let lost_at = lost_with_node_at(view, seen);
    if lost_at.is_some_and(|lost_at| now.moment >= lost_at) {
        // A CAS on the silent version, as below. If a process of the node runs after all, its renewal wins.
        return revoke(RevokeReason::NodeOutOfService);
    }
    let ttl = view.ttl_of(&seen.session);
    match seen.observed.verdict(ttl, now.moment) {
        // A CAS on exactly the silent version: a concurrent renewal wins.
        Verdict::MayRevoke(_) => revoke(RevokeReason::Expired),
        Verdict::MayLive { until } => {
            let next = lost_at.map_or(until, |lost_at| lost_at.min(until));
            Plan::requeue_at(next).or(|| check_missed_renewal(view, seen, now))
        }
        Verdict::Dead => Plan::default(),
    }
}

/// Returns when a session counts as ended with its node: an administrator affirms by the taint
/// `node.kubernetes.io/out-of-service` that the node is shut down, it is not Ready, and the session
/// has missed a renewal.
///
/// The taint alone is not enough. It may stay when the node starts again, with pods that tolerate it,
/// before the node is Ready. Their agents renew, so their sessions miss no renewal. If the taint is
/// wrong and the node only cut off, its apps may still act until their validity ends. Then only the
/// fencing token protects, as after a force release.
fn lost_with_node_at(view: &View, seen: &SessionObservation) -> Option<Moment> {
    let lost_at = view.lost_with_node_at(seen)?;
    view.is_in_use(&seen.session).then_some(lost_at)
}

/// Returns when a session that is in use has missed a renewal.
fn overdue(seen: &SessionObservation) -> Moment {
    let ttl = seen.session.stored.value.ttl;
    seen.observed.since().after(ttl.missed_renewal())
}

/// Reads the pod of a session that missed a renewal. The feed of ended pods does not have a pod
/// that is being deleted until its phase changes. Sessions without locks or queue entries are
/// renewed less often and delay no lock.
fn check_missed_renewal(view: &View, seen: &SessionObservation, now: Now) -> Plan {
    let value = &seen.session.stored.value;
    let version = seen.session.stored.version;
    let is_irrelevant = value.pod.uid.is_empty() || !view.is_in_use(&seen.session);
    if is_irrelevant || seen.pod_checked_at == Some(version) {
        return Plan::default();
    }
    let overdue = overdue(seen);
    if now.moment < overdue {
        return Plan::requeue_at(overdue);
    }
    Plan::act(Action::ReadPod(seen.session.clone()))
}

fn plan_ended_session(view: &View, rules: &Rules, seen: &SessionObservation, now: Now) -> Plan {
    // An object that is already being deleted waits for its finalizers.
    if seen.session.is_deleted || view.is_in_use(&seen.session) {
        return Plan::default();
    }
    let since = seen.observed.since().max(seen.referenced_until);
    let due = since.after(rules.keep_sessions);
    if now.moment < due {
        return Plan::requeue_at(due);
    }
    Plan::act(Action::DeleteSession(seen.session.clone()))
}

fn plan_lock(
    view: &View,
    rules: &Rules,
    lock: &Arc<Object<Lock>>,
    since: Moment,
    now: Now,
) -> Plan {
    match &lock.stored.value.grant {
        // A force release does not wait for the state of the holder.
        Some(grant) => plan_force_release(view, rules, lock, now)
            .or(|| plan_reclaim(view, rules, lock, grant, now))
            .or(|| mark_long_held(rules, lock, since, now)),
        None => clear_long_held(lock),
    }
}

fn plan_force_release(view: &View, rules: &Rules, lock: &Arc<Object<Lock>>, now: Now) -> Plan {
    let value = &lock.stored.value;
    let request = value.settings.release_request.as_ref();
    let Some((request, grant)) = request.zip(value.grant.as_ref()) else {
        return Plan::default();
    };
    if request.mode != ReleaseMode::Force || !request.names(&grant.id) {
        return Plan::default();
    }
    let Some(mint) = view.mint(rules.token_floor) else {
        return Plan::default();
    };
    let ending = Ending {
        at: now.wall,
        kind: IncidentKind::ForceReleased,
        actor: request.actor.clone(),
        reason: request.reason.clone(),
    };
    let is_expired = |who: &Claimant| is_expired(view, lock, who, now);
    let next = value.force_release(lock.stored.version, &mint, &grant.id, is_expired, &ending);
    Plan::write(lock, next, WriteReason::Force)
}

fn mark_long_held(rules: &Rules, lock: &Arc<Object<Lock>>, since: Moment, now: Now) -> Plan {
    let value = &lock.stored.value;
    if value.long_held.is_some() {
        return Plan::default();
    }
    // A leader may lead for any time.
    let usual = Some(rules.long_held).filter(|_| !is_election(&value.resource));
    let Some(limit) = value.settings.long_held.or(usual) else {
        return Plan::default();
    };
    let due = held_since(value.grant.as_ref(), since, now).after(limit);
    if now.moment < due {
        return Plan::requeue_at(due);
    }
    let next = value.marked_long_held(Some(now.wall));
    Plan::write(lock, next, WriteReason::LongHeld)
}

/// Returns since when the grant is held: since its first observation or, if that is earlier, since
/// the time of its agent's wall clock. So a restarted operator does not start over. A wrong clock
/// only marks the lock too early or too late.
fn held_since(grant: Option<&Grant>, since: Moment, now: Now) -> Moment {
    let acquired_at = grant.map_or(0, |grant| grant.acquired_at.0);
    let held = u64::try_from(now.wall.0.saturating_sub(acquired_at)).unwrap_or_default();
    let by_wall_clock = now.moment.before(Duration::from_micros(held));
    let is_known = acquired_at > 0;
    if is_known {
        since.min(by_wall_clock)
    } else {
        since
    }
}

/// Removes a mark that an older agent left when it released.
fn clear_long_held(lock: &Arc<Object<Lock>>) -> Plan {
    let next = lock.stored.value.marked_long_held(None);
    Plan::write(lock, next, WriteReason::LongHeld)
}

fn plan_free_lock(
    view: &View,
    rules: &Rules,
    object_ref: &ObjectRef,
    free: &LockObservation,
    now: Now,
) -> Plan {
    if free.is_deleted {
        // It is deleted once its finalizers are removed.
        return Plan::default();
    }
    let due = free.delete_at(rules.retain);
    if now.moment < due {
        return Plan::requeue_at(due);
    }
    // A recreated lock does not know the old tokens. Its first token comes from the store's
    // revision alone, and must be larger than all of them.
    let Some(seen_by_now) = view.seen() else {
        return Plan::default();
    };
    let next_base = u128::from(rules.token_floor) + seen_by_now.highest().scale();
    let is_below = u128::from(free.token.get()) + u128::from(LEASES_PER_GRANT) <= next_base;
    if !is_below {
        return Plan::requeue_at(now.moment.after(rules.retain));
    }
    Plan::act(Action::DeleteLock(free.object_version(object_ref)))
}

#[cfg(test)]
pub(super) mod tests;

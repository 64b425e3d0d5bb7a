//! Plans the take-over of a lock whose holder's session has ended.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Now;
use crate::operator::action::{Action, Plan, WriteReason};
use crate::operator::rules::Rules;
use crate::operator::view::{SessionState, View, session_ref};
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::observed::{Observed, Verdict};
use crate::protocol::session::{Claimant, RevokeReason};
use crate::protocol::time::Moment;
use crate::store::fleet::{OUT_OF_SERVICE_TAINT, Object};

/// How much later than the end of a session its releases may be observed. Acting at once would
/// only lead to a failing write.
const RELEASES_OBSERVED: Duration = Duration::from_secs(1);

/// Plans the take-over of a lock from a holder whose session was revoked or is missing.
pub(super) fn plan_reclaim(
    view: &View,
    rules: &Rules,
    lock: &Arc<Object<Lock>>,
    grant: &Grant,
    now: Now,
) -> Plan {
    let holder = &grant.holder;
    let session = &holder.session;
    let namespace = &lock.object_ref.namespace;
    let (reason, by, since, last_seen) = match view.session_state(namespace, holder) {
        // The session is revoked first, by its own plan.
        SessionState::Unrevoked(_) => return Plan::default(),
        SessionState::Unknown => {
            let object_ref = session_ref(namespace, holder);
            return Plan::act(Action::ReadSession(object_ref));
        }
        SessionState::Missing(observed) => {
            return plan_missing(view, rules, lock, holder, observed, now);
        }
        SessionState::Revoked {
            reason,
            by,
            since,
            alive_at,
        } => (reason, by, since, alive_at),
    };
    let (kind, reason) = match reason {
        RevokeReason::PodEnded => (
            IncidentKind::PodEnded,
            format!("pod {} ended and will not run again", holder.pod.name),
        ),
        RevokeReason::NodeOutOfService => (IncidentKind::PodEnded, lost_with_node(holder)),
        RevokeReason::Ended => {
            // The releases were written before the end, but may not be observed yet.
            let observed_by = since.after(RELEASES_OBSERVED);
            if now.moment < observed_by {
                return Plan::requeue_at(observed_by);
            }
            let reason =
                format!("session {session} was ended by its agent without releasing the lock");
            (IncidentKind::Expired, reason)
        }
        RevokeReason::Expired => (
            IncidentKind::Expired,
            format!("session {session} was not renewed for 1.05 of its TTL"),
        ),
        RevokeReason::Other(word) => (
            IncidentKind::Expired,
            format!("session {session} was revoked by {by} ({word})"),
        ),
    };
    let ended = HolderEnd {
        kind,
        last_seen,
        // The revocation may itself be late.
        due: since.min(last_seen.after(holder.session_ttl.challenger_share())),
        reason,
    };
    reclaim(view, rules, lock, holder, ended, now)
}

/// Plans the take-over of a lock whose holder's session is missing.
///
/// A pod's session is deleted with the pod's object, also when Kubernetes deletes that by force. The
/// agent may still run. It notices at its next renewal, so on a node that is out of service a missed
/// renewal is enough, as for a session that exists.
fn plan_missing(
    view: &View,
    rules: &Rules,
    lock: &Arc<Object<Lock>>,
    holder: &Claimant,
    observed: Observed,
    now: Now,
) -> Plan {
    let namespace = &lock.object_ref.namespace;
    let session = &holder.session;
    let (since, ttl) = (observed.since(), holder.session_ttl);
    let lost_at = view.missing_lost_with_node_at(namespace, holder, since);
    let (due, kind, reason) = if let Some(due) = lost_at {
        (due, IncidentKind::PodEnded, lost_with_node(holder))
    } else {
        let is_other_pods = view.session(&session_ref(namespace, holder)).is_some();
        let reason = if is_other_pods {
            let pod = &holder.pod.name;
            format!("session {session} belongs to another pod than {pod}")
        } else {
            format!("session {session} was missing for 1.05 of its TTL")
        };
        let due = since.after(ttl.challenger_share());
        (due, IncidentKind::Expired, reason)
    };
    if now.moment < due {
        return Plan::requeue_at(due).or(|| read_unknown_waiter(view, lock));
    }
    let ended = HolderEnd {
        kind,
        last_seen: since,
        due,
        reason,
    };
    reclaim(view, rules, lock, holder, ended, now)
}

fn lost_with_node(holder: &Claimant) -> String {
    let pod = &holder.pod.name;
    format!("the node of pod {pod} has the taint {OUT_OF_SERVICE_TAINT}")
}

/// Reads a waiter's session that was not observed. The cause that removed the holder's session may
/// have removed the waiters' sessions, too. So all of them are observed as missing at once, not one
/// TTL after the other.
fn read_unknown_waiter(view: &View, lock: &Arc<Object<Lock>>) -> Plan {
    let namespace = &lock.object_ref.namespace;
    let mut waiters = lock.stored.value.waiters.entries().iter();
    let unknown =
        waiters.find(|w| view.session_state(namespace, &w.claimant) == SessionState::Unknown);
    unknown.map_or_else(Plan::default, |waiter| {
        let object_ref = session_ref(namespace, &waiter.claimant);
        Plan::act(Action::ReadSession(object_ref))
    })
}

/// How the holder's grant ends.
struct HolderEnd {
    kind: IncidentKind,
    last_seen: Moment,
    due: Moment,
    reason: String,
}

/// Hands the lock over to the first waiter, or frees it.
fn reclaim(
    view: &View,
    rules: &Rules,
    lock: &Arc<Object<Lock>>,
    holder: &Claimant,
    ended: HolderEnd,
    now: Now,
) -> Plan {
    let Some(mint) = view.mint(rules.token_floor) else {
        return Plan::default();
    };
    let ending = Ending {
        at: now.wall,
        kind: ended.kind,
        actor: rules.actor.clone(),
        reason: ended.reason.into(),
    };
    let is_expired = |who: &Claimant| who.key() == holder.key() || is_expired(view, lock, who, now);
    let next = lock
        .stored
        .value
        .take_over(lock.stored.version, &mint, is_expired, &ending, None);
    let why = WriteReason::Reclaim {
        kind: ended.kind,
        last_seen: ended.last_seen,
        due: ended.due,
    };
    Plan::write(lock, next, why)
}

/// Returns whether a waiter is skipped: its session is revoked, has been silent for too long, or ended
/// with its node. A waiter that is alive after all joins the queue again.
pub(super) fn is_expired(
    view: &View,
    lock: &Arc<Object<Lock>>,
    claimant: &Claimant,
    now: Now,
) -> bool {
    let namespace = &lock.object_ref.namespace;
    let (observed, lost_at) = match view.session_state(namespace, claimant) {
        SessionState::Revoked { .. } => return true,
        SessionState::Unknown => return false,
        SessionState::Unrevoked(observed) => {
            let seen = view.session(&session_ref(namespace, claimant));
            (observed, seen.and_then(|seen| view.lost_with_node_at(seen)))
        }
        SessionState::Missing(observed) => {
            let since = observed.since();
            (
                observed,
                view.missing_lost_with_node_at(namespace, claimant, since),
            )
        }
    };
    let verdict = observed.verdict(claimant.session_ttl, now.moment);
    let is_silent = !matches!(verdict, Verdict::MayLive { .. });
    is_silent || lost_at.is_some_and(|lost_at| now.moment >= lost_at)
}

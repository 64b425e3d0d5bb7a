//! What becomes of the lock of a holder whose session is dead.

use std::time::Duration;

use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::lock::Grant;
use crate::protocol::observed::Verdict;
use crate::protocol::session::{Claimant, RevokeReason};
use crate::protocol::time::Moment;
use crate::seeded::{self, Bug};

use super::{Action, Now, Rules, Step, Why, mint, write};
use crate::operator::view::{Life, SeenLock, View, session_place};

/// How much later the end of a session may be told than the releases before it. To act at once would
/// only make a write that fails.
const RELEASES_TOLD: Duration = Duration::from_secs(1);

pub(super) fn dead_holder(
    view: &View,
    rules: &Rules,
    seen: &SeenLock,
    grant: &Grant,
    now: Now,
) -> Step {
    let holder = &grant.holder;
    let session = &holder.session;
    let namespace = &seen.lock.object_ref.namespace;
    let (reason, by, since) = match view.life_of(namespace, holder) {
        // Its session's own step revokes it, and this one comes after.
        Life::Session(_) => return Step::default(),
        Life::Unseen => {
            let object_ref = session_place(namespace, holder);
            return Step::act(Action::LookForSession(object_ref));
        }
        Life::Missing(observed) => match observed.verdict(holder.session_ttl, now.moment) {
            Verdict::MayLive { until } => {
                return Step::at(until).or(|| unseen_waiter(view, seen));
            }
            Verdict::MayRevoke(_) | Verdict::Dead => {
                let is_anothers = view.session(&session_place(namespace, holder)).is_some();
                let reason = if is_anothers {
                    let pod = &holder.pod.name;
                    format!("session {session} belongs to another pod than {pod}")
                } else {
                    format!("session {session} was missing for 1.05 of its TTL")
                };
                let died = Died {
                    kind: IncidentKind::Expired,
                    last_seen: observed.since(),
                    reason,
                };
                return reclaimed(view, rules, seen, holder, died, now);
            }
        },
        Life::Revoked { reason, by, since } => (reason, by, since),
    };
    let (kind, reason) = match reason {
        RevokeReason::PodEnded => (
            IncidentKind::PodEnded,
            format!("pod {} ended and will not run again", holder.pod.name),
        ),
        RevokeReason::Ended => {
            // Its releases were written before; they may only not have been told yet.
            let told_by_now = since.after(RELEASES_TOLD);
            if now.moment < told_by_now {
                return Step::at(told_by_now);
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
    let last_seen = last_sign_of_life(view, seen, holder);
    let died = Died {
        kind,
        last_seen,
        reason,
    };
    reclaimed(view, rules, seen, holder, died, now)
}

/// What took the session of the holder may have taken those of waiters: each is to be missed from
/// now on, and not one TTL after the other.
fn unseen_waiter(view: &View, seen: &SeenLock) -> Step {
    let namespace = &seen.lock.object_ref.namespace;
    let mut waiters = seen.lock.stored.value.waiters.entries().iter();
    let unseen = waiters.find(|w| view.life_of(namespace, &w.claimant) == Life::Unseen);
    unseen.map_or_else(Step::default, |waiter| {
        let object_ref = session_place(namespace, &waiter.claimant);
        Step::act(Action::LookForSession(object_ref))
    })
}

/// How a holder died.
struct Died {
    kind: IncidentKind,
    last_seen: Moment,
    reason: String,
}

/// Hands the lock of a dead holder on, or frees it.
fn reclaimed(
    view: &View,
    rules: &Rules,
    seen: &SeenLock,
    holder: &Claimant,
    died: Died,
    now: Now,
) -> Step {
    let Some(mint) = mint(view, rules) else {
        return Step::default();
    };
    let ending = Ending {
        at: now.wall,
        kind: died.kind,
        actor: rules.actor.clone(),
        reason: died.reason.into(),
    };
    let judges = !seeded::has(Bug::OperatorHandsToTheDead);
    let is_dead =
        |who: &Claimant| who.key() == holder.key() || (judges && is_dead(view, seen, who, now));
    let lock = &seen.lock.stored;
    let next = lock
        .value
        .take_over(lock.version, &mint, is_dead, &ending, None);
    let why = Why::Reclaim {
        kind: died.kind,
        last_seen: died.last_seen,
    };
    write(seen, next, why)
}

/// When the session last gave a sign of life, as far as was seen: its revocation is none.
fn last_sign_of_life(view: &View, seen: &SeenLock, holder: &Claimant) -> Moment {
    let object_ref = session_place(&seen.lock.object_ref.namespace, holder);
    view.session(&object_ref)
        .map_or(seen.since, |seen| seen.alive_at)
}

/// Whether a waiter is to be skipped: it is dead, or as silent as the dead are. One that lives all
/// the same queues again.
pub(super) fn is_dead(view: &View, seen: &SeenLock, claimant: &Claimant, now: Now) -> bool {
    match view.life_of(&seen.lock.object_ref.namespace, claimant) {
        Life::Revoked { .. } => true,
        Life::Session(observed) | Life::Missing(observed) => {
            let verdict = observed.verdict(claimant.session_ttl, now.moment);
            !matches!(verdict, Verdict::MayLive { .. })
        }
        Life::Unseen => false,
    }
}

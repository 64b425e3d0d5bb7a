//! What is to be done about a session or a lock, by what was seen of it.
//!
//! Pure: a view and the time in, a step out. Whatever it says is written by compare-and-swap on
//! the version that it was decided on, so a step that comes too late does nothing. Nothing is
//! written for an ordinary acquire or release: that would make the agent's next write fail.

mod reclaim;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::election::is_election;
use crate::protocol::ids::GrantId;
use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::lock::Lock;
use crate::protocol::observed::Verdict;
use crate::protocol::session::{Claimant, Revocation, RevokeReason, Session};
use crate::protocol::settings::ReleaseMode;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{LEASES_PER_GRANT, Mint, Revision, Seen};
use crate::seeded::{self, Bug};
use crate::store::cluster::PodIdentity;
use crate::store::fleet::{Object, ObjectRef, ObjectVersion};
use crate::store::namespaces::{Binding, Subject};

use self::reclaim::{dead_holder, is_dead};
use super::binding::{self, BindSidecars};
use super::label;
use super::trouble::Kind;
use super::unready;
use super::view::{FreeLock, KeptLock, Key, SeenLock, SeenSession, View};

/// What the operator is set to.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Who ends grants, in the record: the operator's pod.
    pub actor: Arc<str>,
    /// Added to every token base; the same in the whole installation.
    pub token_floor: u64,
    /// How long a free and idle lock is kept where its spec does not say.
    pub retain: Duration,
    /// How long an ended session's object is kept when nothing names it: a place in a queue that
    /// was asked for before may still land, and people look at what happened.
    pub keep_sessions: Duration,
    /// After how long a grant counts as long-held where the lock's spec does not say.
    pub long_held: Duration,
    /// Whether the pod of an election's leader gets a label that says so.
    pub leader_labels: bool,
    /// How far apart the checks are of a leader's pod that runs with `elect-always`. Only where leaders are
    /// labelled.
    pub unready_leader: Duration,
    /// To whom the sidecar's role is given in labelled namespaces.
    pub bind_sidecars: BindSidecars,
    /// Whether pods that ask for a sidecar and have none are told of.
    pub report_uninjected: bool,
    /// The operator's own namespace, where no pod is injected.
    pub namespace: Arc<str>,
}

impl Rules {
    /// What has to be watched.
    pub(super) const fn watches(&self, kind: Kind) -> bool {
        match kind {
            Kind::Lock | Kind::Session | Kind::Pod => true,
            Kind::Account | Kind::Binding => self.bind_sidecars.watches(kind),
            Kind::Namespace => self.report_uninjected || self.bind_sidecars.watches(kind),
            Kind::UninjectedPod => self.report_uninjected,
        }
    }
}

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The local clock: what is decided by.
    pub moment: Moment,
    /// The wall clock: for people.
    pub wall: WallTime,
}

/// What is to be done now, and when to ask again if nothing changes.
#[derive(Debug, Default)]
pub struct Step {
    /// What is to be done.
    pub action: Option<Action>,
    /// When there may be something to do.
    pub again: Option<Moment>,
}

/// Something to do.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write the session as revoked, on exactly this version.
    Revoke {
        /// The session as it was seen.
        current: Arc<Object<Session>>,
        /// What to write.
        next: Box<Session>,
    },
    /// Write the lock, on exactly this version.
    Write {
        /// The lock as it was seen.
        current: Arc<Object<Lock>>,
        /// What to write.
        next: Box<Lock>,
        /// What it is for.
        why: Why,
    },
    /// Ask what the kubelet reports of the pod of a session that missed a renewal.
    LookAtPod(Arc<Object<Session>>),
    /// Ask whether the session exists that a lock's holder has.
    LookForSession(ObjectRef),
    /// Delete an idle lock's object.
    DeleteLock(ObjectVersion),
    /// Delete an ended session's object.
    DeleteSession(Arc<Object<Session>>),
    /// Take the label of an election's leader from all pods but this one.
    TakeLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The grant that leads; none while nobody does.
        grant: Option<GrantId>,
        /// Its pod, if it has one.
        keep: Option<PodIdentity>,
    },
    /// Give it to the pod that leads: nobody else has it.
    GiveLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The grant that leads.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
    },
    /// Check the pod of an election's leader. If it is not Ready since the moment of the check before, and
    /// another candidate's pod is Ready, ask the leader to resign, on exactly this version of the lock.
    CheckLeader {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The lock as it was seen; it is held.
        current: Arc<Object<Lock>>,
        /// The grant that leads.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
        /// The pods of the other candidates, in the order of the queue.
        others: Vec<PodIdentity>,
        /// Since when the pod was not Ready at the check before; none if it was, or if there was no check.
        unready_since: Option<Arc<str>>,
    },
    /// Give the sidecar's role in a namespace.
    CreateBinding {
        /// The namespace.
        namespace: Arc<str>,
        /// To whom.
        subjects: BTreeSet<Subject>,
    },
    /// Give it to others, on exactly this version.
    UpdateBinding {
        /// The binding as it was seen.
        current: Arc<Object<Binding>>,
        /// To whom.
        subjects: BTreeSet<Subject>,
    },
    /// Ask whether pods of a namespace have the sidecar.
    LookForSidecars(Arc<str>),
    /// Take it away, on exactly this version.
    DeleteBinding(Arc<Object<Binding>>),
}

impl Action {
    /// The version that it was decided on.
    #[must_use]
    pub fn version(&self) -> Option<Revision> {
        match self {
            Self::Write { current, .. } | Self::CheckLeader { current, .. } => {
                Some(current.stored.version)
            }
            Self::DeleteLock(lock) => Some(lock.version),
            Self::Revoke { current, .. } | Self::DeleteSession(current) => {
                Some(current.stored.version)
            }
            Self::UpdateBinding { current, .. } | Self::DeleteBinding(current) => {
                Some(current.stored.version)
            }
            Self::LookAtPod(_)
            | Self::LookForSession(_)
            | Self::LookForSidecars(_)
            | Self::CreateBinding { .. }
            | Self::TakeLabel { .. }
            | Self::GiveLabel { .. } => None,
        }
    }
}

/// What a lock is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its holder's session is dead.
    Reclaim {
        /// How it ended.
        kind: IncidentKind,
        /// The last sign of life that was seen of it.
        last_seen: Moment,
    },
    /// A person ended the grant.
    Force,
    /// It is held for long, or is not any more.
    LongHeld,
}

impl Step {
    pub(super) fn act(action: Action) -> Self {
        Self {
            action: Some(action),
            again: None,
        }
    }

    pub(super) fn at(moment: Moment) -> Self {
        Self {
            action: None,
            again: Some(moment),
        }
    }

    /// The first thing to do, and the earliest time to look again.
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self.action.is_some() {
            return self;
        }
        let other = other();
        Self {
            again: match (self.again, other.again) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            ..other
        }
    }
}

/// What is to be done about a session or a lock.
#[must_use]
pub fn step(view: &View, rules: &Rules, key: &Key, now: Now) -> Step {
    match key {
        Key::Session(object_ref) => view
            .session(object_ref)
            .map_or_else(Step::default, |seen| session(view, rules, seen, now)),
        Key::Lock(object_ref) => {
            view.lock(object_ref)
                .map_or_else(Step::default, |kept| match kept {
                    KeptLock::Full(seen) => lock(view, rules, seen, now),
                    KeptLock::Free(free) => idle(view, rules, object_ref, free, now),
                })
        }
        Key::Label(election) => label::step(view, rules, election, now.moment),
        Key::Leader(election) => unready::step(view, rules, election, now.moment),
        Key::Binding(namespace) => binding::step(view, rules, namespace, now.moment),
        // It is told of, and nothing is done about it.
        Key::UninjectedPod(_) => Step::default(),
    }
}

fn session(view: &View, rules: &Rules, seen: &SeenSession, now: Now) -> Step {
    let value = &seen.session.stored.value;
    if value.revoked.is_some() {
        return ended_session(view, rules, seen, now);
    }
    let revoke = |reason| {
        let revocation = Revocation {
            at: now.wall,
            by: rules.actor.clone(),
            reason,
        };
        value
            .revoked(revocation)
            .map_or_else(Step::default, |next| {
                Step::act(Action::Revoke {
                    current: seen.session.clone(),
                    next: Box::new(next),
                })
            })
    };
    if view.pod_has_ended(&seen.session) {
        return revoke(RevokeReason::PodEnded);
    }
    let ttl = view.ttl_of(&seen.session);
    let judged_at = if seeded::has(Bug::ImpatientOperator) {
        now.moment.after(ttl.get() * 55 / 100)
    } else {
        now.moment
    };
    match seen.observed.verdict(ttl, judged_at) {
        // By a CAS on exactly the version that was silent: whoever renews meanwhile wins.
        Verdict::MayRevoke(_) => revoke(RevokeReason::Expired),
        Verdict::MayLive { until } => Step::at(until).or(|| suspicion(view, seen, now)),
        Verdict::Dead => Step::default(),
    }
}

/// A session that missed its renewal may be of a pod that ended; the feed of ended pods does not
/// tell of one that is being deleted before its phase says so. One on which nothing hangs is renewed
/// later, and nobody waits for its end.
fn suspicion(view: &View, seen: &SeenSession, now: Now) -> Step {
    let value = &seen.session.stored.value;
    let version = seen.session.stored.version;
    let nobody_waits = value.pod.uid.is_empty() || !view.is_claimed(&seen.session);
    if nobody_waits || seen.pod_looked_at == Some(version) {
        return Step::default();
    }
    let overdue = seen.observed.since().after(value.ttl.get() * 3 / 5);
    if now.moment < overdue {
        return Step::at(overdue);
    }
    Step::act(Action::LookAtPod(seen.session.clone()))
}

fn ended_session(view: &View, rules: &Rules, seen: &SeenSession, now: Now) -> Step {
    // What is deleted already goes when its finalizers do.
    if seen.session.is_deleted || view.is_claimed(&seen.session) {
        return Step::default();
    }
    let since = seen.observed.since().max(seen.named_until);
    let due = since.after(rules.keep_sessions);
    if now.moment < due {
        return Step::at(due);
    }
    Step::act(Action::DeleteSession(seen.session.clone()))
}

fn lock(view: &View, rules: &Rules, seen: &SeenLock, now: Now) -> Step {
    match &seen.lock.stored.value.grant {
        // What a person forces does not wait for what cannot be known of the holder.
        Some(grant) => forced(view, rules, seen, now)
            .or(|| dead_holder(view, rules, seen, grant, now))
            .or(|| long_held(rules, seen, now)),
        None => unmarked(seen),
    }
}

fn forced(view: &View, rules: &Rules, seen: &SeenLock, now: Now) -> Step {
    let lock = &seen.lock.stored;
    let request = lock.value.settings.release_request.as_ref();
    let Some((request, grant)) = request.zip(lock.value.grant.as_ref()) else {
        return Step::default();
    };
    if request.mode != ReleaseMode::Force || !request.names(&grant.id) {
        return Step::default();
    }
    let Some(mint) = mint(view, rules) else {
        return Step::default();
    };
    let ending = Ending {
        at: now.wall,
        kind: IncidentKind::ForceReleased,
        actor: request.actor.clone(),
        reason: request.reason.clone(),
    };
    let is_dead = |who: &Claimant| is_dead(view, seen, who, now);
    let next = lock
        .value
        .force_release(lock.version, &mint, &grant.id, is_dead, &ending);
    write(seen, next, Why::Force)
}

fn long_held(rules: &Rules, seen: &SeenLock, now: Now) -> Step {
    let value = &seen.lock.stored.value;
    if value.long_held.is_some() {
        return Step::default();
    }
    // To lead for long is what elections are for.
    let usual = Some(rules.long_held).filter(|_| !is_election(&value.resource));
    let Some(limit) = value.settings.long_held.or(usual) else {
        return Step::default();
    };
    let due = held_since(seen, now).after(limit);
    if now.moment < due {
        return Step::at(due);
    }
    write(seen, value.marked_long_held(Some(now.wall)), Why::LongHeld)
}

/// Since when the grant is held: since it was seen first, or, so that a new operator does not begin
/// to count anew, since its agent's wall clock says. A clock that is wrong costs a mark too early
/// or too late, and no more.
fn held_since(seen: &SeenLock, now: Now) -> Moment {
    let grant = seen.lock.stored.value.grant.as_ref();
    let acquired_at = grant.map_or(0, |grant| grant.acquired_at.0);
    let held = u64::try_from(now.wall.0.saturating_sub(acquired_at)).unwrap_or_default();
    let by_wall_clock = now.moment.before(Duration::from_micros(held));
    let is_known = acquired_at > 0;
    if is_known {
        seen.since.min(by_wall_clock)
    } else {
        seen.since
    }
}

/// A mark that an older agent left behind when it released.
fn unmarked(seen: &SeenLock) -> Step {
    write(
        seen,
        seen.lock.stored.value.marked_long_held(None),
        Why::LongHeld,
    )
}

fn idle(view: &View, rules: &Rules, object_ref: &ObjectRef, free: &FreeLock, now: Now) -> Step {
    if free.is_deleted {
        // It goes when its finalizers do.
        return Step::default();
    }
    let due = free.due(rules.retain);
    if now.moment < due {
        return Step::at(due);
    }
    // The next lock of that name knows nothing of this one's tokens: its first one is made from
    // the store's revision alone, and must be larger than all of this one's.
    let Some(seen_by_now) = view.seen() else {
        return Step::default();
    };
    let next_base = u128::from(rules.token_floor) + seen_by_now.highest().scale();
    let is_below = u128::from(free.token.get()) + u128::from(LEASES_PER_GRANT) <= next_base;
    if !is_below && !seeded::has(Bug::TokensForgotten) {
        return Step::at(now.moment.after(rules.retain));
    }
    Step::act(Action::DeleteLock(free.object_version(object_ref)))
}

fn write(seen: &SeenLock, next: Option<Lock>, why: Why) -> Step {
    next.map_or_else(Step::default, |next| {
        Step::act(Action::Write {
            current: seen.lock.clone(),
            next: Box::new(next),
            why,
        })
    })
}

fn mint(view: &View, rules: &Rules) -> Option<Mint> {
    let seen: Seen = view.seen()?;
    Some(Mint {
        seen,
        floor: rules.token_floor,
    })
}

#[cfg(test)]
pub(super) mod tests;

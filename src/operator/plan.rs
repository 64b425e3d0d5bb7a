//! Plans what to do about one object, from the observations of it.
//!
//! Pure: takes a view and the time, returns a plan. Every write is a compare-and-swap on the
//! version that the plan is based on, so a late one has no effect. An ordinary acquire or release
//! leads to no write, because that would make the agent's next write fail.

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
use crate::store::cluster::PodIdentity;
use crate::store::fleet::{Object, ObjectRef, ObjectVersion};
use crate::store::namespaces::{Binding, Subject};

use self::reclaim::{is_dead, reclaim_from_ended};
use super::binding::{self, BindSidecars};
use super::errors::FeedKind;
use super::label;
use super::unready_leader;
use super::view::{FreeLock, FullLock, Key, LockObservation, SessionObservation, View};

/// The settings of the operator.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The actor in records of grants that the operator ends: its pod.
    pub actor: Arc<str>,
    /// Added to every token base; the same in the whole installation.
    pub token_floor: u64,
    /// How long a free and idle lock is kept if its spec has no value.
    pub retain: Duration,
    /// How long the object of an ended session is kept if no lock names it. A late write may still
    /// add a queue entry of the session, and people inspect ended sessions.
    pub keep_sessions: Duration,
    /// After how long a grant counts as long-held if the lock's spec has no value.
    pub long_held: Duration,
    /// Whether the pod of an election's leader gets a label.
    pub leader_labels: bool,
    /// The interval between checks of a leader's pod that runs with `elect-always`. Only used with
    /// leader labels.
    pub unready_leader: Duration,
    /// Which service accounts of labelled namespaces get the sidecar's role.
    pub bind_sidecars: BindSidecars,
    /// Whether pods that request a sidecar and have none are reported.
    pub report_uninjected: bool,
    /// The operator's own namespace, where no pod is injected.
    pub namespace: Arc<str>,
}

impl Rules {
    /// Returns whether a kind of object has to be watched.
    pub(super) const fn watches(&self, kind: FeedKind) -> bool {
        match kind {
            FeedKind::Lock | FeedKind::Session | FeedKind::Pod => true,
            FeedKind::Account | FeedKind::Binding => self.bind_sidecars.watches(kind),
            FeedKind::Namespace => self.report_uninjected || self.bind_sidecars.watches(kind),
            FeedKind::UninjectedPod => self.report_uninjected,
        }
    }
}

/// The time, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The local clock, on which decisions are based.
    pub moment: Moment,
    /// The wall clock, for records.
    pub wall: WallTime,
}

/// What to do now, and when to plan again if nothing changes.
#[derive(Debug, Default)]
pub struct Plan {
    /// What to do now.
    pub action: Option<Action>,
    /// When to plan again.
    pub requeue_at: Option<Moment>,
}

/// An action.
#[derive(Clone, Debug)]
pub enum Action {
    /// Write the session as revoked, on exactly this version.
    Revoke {
        /// The observed session.
        current: Arc<Object<Session>>,
        /// What to write.
        next: Box<Session>,
    },
    /// Write the lock, on exactly this version.
    Write {
        /// The observed lock.
        current: Arc<Object<Lock>>,
        /// What to write.
        next: Box<Lock>,
        /// The reason of the write.
        why: WriteReason,
    },
    /// Read the kubelet's report of the pod of a session that missed a renewal.
    ReadPod(Arc<Object<Session>>),
    /// Read the session of a lock's holder or waiter, which was not observed.
    ReadSession(ObjectRef),
    /// Delete an idle lock's object.
    DeleteLock(ObjectVersion),
    /// Delete an ended session's object.
    DeleteSession(Arc<Object<Session>>),
    /// Remove the label of an election's leader from all pods but this one.
    RemoveLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The leading grant; `None` without a leader.
        grant: Option<GrantId>,
        /// Its pod, if it has one.
        keep: Option<PodIdentity>,
    },
    /// Add the label to the leader's pod, after it was removed from all others.
    AddLabel {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The leading grant.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
    },
    /// Check the pod of an election's leader. Request the leader's resignation if the pod has not
    /// been Ready since the previous check and another candidate's pod is Ready. The request is
    /// written on exactly this version of the lock.
    CheckLeader {
        /// The election, by namespace and name.
        election: ObjectRef,
        /// The observed lock, which is held.
        current: Arc<Object<Lock>>,
        /// The leading grant.
        grant: GrantId,
        /// Its pod.
        pod: PodIdentity,
        /// The pods of the other candidates, in the order of the queue.
        others: Vec<PodIdentity>,
        /// Since when the pod was not Ready at the previous check; `None` if it was Ready, or at
        /// the first check.
        unready_since: Option<Arc<str>>,
    },
    /// Create the binding of the sidecar's role in a namespace.
    CreateBinding {
        /// The namespace.
        namespace: Arc<str>,
        /// Its subjects.
        subjects: BTreeSet<Subject>,
    },
    /// Replace the subjects of a binding, on exactly this version.
    UpdateBinding {
        /// The observed binding.
        current: Arc<Object<Binding>>,
        /// The new subjects.
        subjects: BTreeSet<Subject>,
    },
    /// Check whether any pod of a namespace has a sidecar.
    FindSidecars(Arc<str>),
    /// Delete a binding, on exactly this version.
    DeleteBinding(Arc<Object<Binding>>),
}

impl Action {
    /// Returns the version that the action is based on.
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
            Self::ReadPod(_)
            | Self::ReadSession(_)
            | Self::FindSidecars(_)
            | Self::CreateBinding { .. }
            | Self::RemoveLabel { .. }
            | Self::AddLabel { .. } => None,
        }
    }
}

/// The reason of a lock's write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteReason {
    /// The session of its holder has ended.
    Reclaim {
        /// How it ended.
        kind: IncidentKind,
        /// The last observed renewal of the session.
        last_seen: Moment,
    },
    /// A person ended the grant.
    Force,
    /// The grant has become long-held, or is not any more.
    LongHeld,
}

impl Plan {
    pub(super) fn act(action: Action) -> Self {
        Self {
            action: Some(action),
            requeue_at: None,
        }
    }

    pub(super) fn requeue_at(moment: Moment) -> Self {
        Self {
            action: None,
            requeue_at: Some(moment),
        }
    }

    /// Returns the first action, and the earlier time to plan again.
    fn or(self, other: impl FnOnce() -> Self) -> Self {
        if self.action.is_some() {
            return self;
        }
        let other = other();
        Self {
            requeue_at: match (self.requeue_at, other.requeue_at) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            ..other
        }
    }
}

/// Plans one key.
#[must_use]
pub fn plan(view: &View, rules: &Rules, key: &Key, now: Now) -> Plan {
    match key {
        Key::Session(object_ref) => view
            .session(object_ref)
            .map_or_else(Plan::default, |seen| plan_session(view, rules, seen, now)),
        Key::Lock(object_ref) => view
            .lock(object_ref)
            .map_or_else(Plan::default, |observation| match observation {
                LockObservation::Full(seen) => plan_lock(view, rules, seen, now),
                LockObservation::Free(free) => plan_free_lock(view, rules, object_ref, free, now),
            }),
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
    let ttl = view.ttl_of(&seen.session);
    match seen.observed.verdict(ttl, now.moment) {
        // A CAS on exactly the silent version: a concurrent renewal wins.
        Verdict::MayRevoke(_) => revoke(RevokeReason::Expired),
        Verdict::MayLive { until } => {
            Plan::requeue_at(until).or(|| check_missed_renewal(view, seen, now))
        }
        Verdict::Dead => Plan::default(),
    }
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
    let overdue = seen.observed.since().after(value.ttl.get() * 3 / 5);
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

fn plan_lock(view: &View, rules: &Rules, seen: &FullLock, now: Now) -> Plan {
    match &seen.lock.stored.value.grant {
        // A force release does not wait for the state of the holder.
        Some(grant) => force_release(view, rules, seen, now)
            .or(|| reclaim_from_ended(view, rules, seen, grant, now))
            .or(|| mark_long_held(rules, seen, now)),
        None => clear_long_held(seen),
    }
}

fn force_release(view: &View, rules: &Rules, seen: &FullLock, now: Now) -> Plan {
    let lock = &seen.lock.stored;
    let request = lock.value.settings.release_request.as_ref();
    let Some((request, grant)) = request.zip(lock.value.grant.as_ref()) else {
        return Plan::default();
    };
    if request.mode != ReleaseMode::Force || !request.names(&grant.id) {
        return Plan::default();
    }
    let Some(mint) = mint(view, rules) else {
        return Plan::default();
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
    write(seen, next, WriteReason::Force)
}

fn mark_long_held(rules: &Rules, seen: &FullLock, now: Now) -> Plan {
    let value = &seen.lock.stored.value;
    if value.long_held.is_some() {
        return Plan::default();
    }
    // A leader may lead for any time.
    let usual = Some(rules.long_held).filter(|_| !is_election(&value.resource));
    let Some(limit) = value.settings.long_held.or(usual) else {
        return Plan::default();
    };
    let due = held_since(seen, now).after(limit);
    if now.moment < due {
        return Plan::requeue_at(due);
    }
    write(
        seen,
        value.marked_long_held(Some(now.wall)),
        WriteReason::LongHeld,
    )
}

/// Returns since when the grant is held: since its first observation or, if that is earlier, since
/// the time of its agent's wall clock. So a restarted operator does not start over. A wrong clock
/// only marks the lock too early or too late.
fn held_since(seen: &FullLock, now: Now) -> Moment {
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

/// Removes a mark that an older agent left when it released.
fn clear_long_held(seen: &FullLock) -> Plan {
    write(
        seen,
        seen.lock.stored.value.marked_long_held(None),
        WriteReason::LongHeld,
    )
}

fn plan_free_lock(
    view: &View,
    rules: &Rules,
    object_ref: &ObjectRef,
    free: &FreeLock,
    now: Now,
) -> Plan {
    if free.is_deleted {
        // It is deleted once its finalizers are removed.
        return Plan::default();
    }
    let due = free.due(rules.retain);
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

fn write(seen: &FullLock, next: Option<Lock>, why: WriteReason) -> Plan {
    next.map_or_else(Plan::default, |next| {
        Plan::act(Action::Write {
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

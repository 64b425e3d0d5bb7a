//! The words of a release: what it will do, and what it has done.

use std::fmt::Write as _;

use serde::Serialize;

use super::session_health::Health;
use super::words::{self, about, who};
use super::world::{Known, LockSeen, OperatorSeen, World};
use crate::crd::lock::{Holder, IncidentRecord, LeaseRecord, ReleaseMode};
use crate::text::escape;

/// Returns what a release will do, for the person who confirms it.
#[must_use]
pub fn preview(
    world: &World,
    lock: &LockSeen,
    holder: &Holder,
    lease: &LeaseRecord,
    mode: ReleaseMode,
) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let mut line = |words: String| {
        let _ = writeln!(out, "{words}");
    };
    line(format!(
        "{} is held by {}, for {}.",
        escape(&lock.spec.resource),
        who(&holder.owner_id, &holder.pod),
        about(&lease.acquired_at, world.now)
    ));
    line(format!(
        "  Pod:       {}",
        words::pod(world, &lock.namespace, &holder.pod, &holder.pod_uid)
    ));
    let session = Health::of_holder(world, &lock.namespace, holder);
    line(format!("  Session:   {}", words::health(&session)));
    line(format!("  Operator:  {}", words::operator(&world.operator)));
    line(format!("  Next:      {}", next(world, lock)));
    if let Some(request) = words::request(lock) {
        line(format!("  Replaces:  {}", escape(&request)));
    }
    let is_over = !matches!(session, Health::Live { .. } | Health::Unknown(_));
    line(match mode {
        ReleaseMode::Ask if is_over => {
            "Its session is over, so no agent may answer a request: it is freed by a take-over.".to_owned()
        }
        ReleaseMode::Ask if lease.kept => "No app uses it: its agent releases it at once.".to_owned(),
        ReleaseMode::Ask => "Its app is notified, and decides.".to_owned(),
        ReleaseMode::Force => "Its grant ends although its app may still act. From then on only the fencing token \
                               protects the resource: if the resource does not compare tokens, make sure first that \
                               the app has ended."
            .to_owned(),
    });
    out
}

/// Returns the next holder: the first waiter whose session is not over.
fn next(world: &World, lock: &LockSeen) -> String {
    let waiters = lock.status.iter().flat_map(|status| &status.waiters);
    let mut live = waiters.filter(|waiter| {
        let health = Health::of(world, &lock.namespace, &waiter.session);
        matches!(health, Health::Live { .. } | Health::Unknown(_))
    });
    live.next().map_or_else(
        || "no pod waits; the lock will be free".to_owned(),
        |waiter| who(&waiter.owner_id, &waiter.pod),
    )
}

/// Returns what follows a request, for the person who has made it.
#[must_use]
pub fn requested(world: &World, lock: &LockSeen, mode: ReleaseMode) -> String {
    let follows = match (mode, &world.operator) {
        (ReleaseMode::Ask, _) => "The release was requested: the app of its holder decides.",
        (ReleaseMode::Force, Known::Seen(OperatorSeen::Absent(_))) => {
            "The forced release was requested, but no operator is active that could end the grant: see \
             `kubectl leasehold check`."
        }
        (ReleaseMode::Force, _) => "The forced release was requested: the operator ends the grant.",
    };
    format!("{follows} {}", withdrawal(lock))
}

/// Returns how a request is withdrawn.
#[must_use]
pub fn withdrawal(lock: &LockSeen) -> String {
    let (name, namespace) = (&lock.name, &lock.namespace);
    format!(
        "The request stays; withdraw it with `kubectl patch dlock {name} --namespace {namespace} --type merge \
         --patch '{{\"spec\":{{\"releaseRequest\":null}}}}'`"
    )
}

/// What has become of a release request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The resource that the lock guards.
    pub resource: String,
    /// The name of the lock object.
    pub name: String,
    /// The grant that has ended.
    pub grant: String,
    /// The record of its end; absent if its holder released it without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incident: Option<IncidentRecord>,
    /// Whether the object was deleted, and with it the record.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deleted: bool,
    /// The pod that holds the lock now; absent if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}

impl Outcome {
    /// Returns what has become of a grant; `None` while it still holds the lock. `lock` is `None` if its object does
    /// not exist any more.
    #[must_use]
    pub fn of(before: &LockSeen, grant: &str, lock: Option<&LockSeen>) -> Option<Self> {
        // An object that was recreated knows nothing of the grant.
        let lock = lock.filter(|lock| lock.uid == before.uid);
        let status = match lock {
            None => None,
            // An unreadable status says nothing about the grant.
            Some(lock) => Some(lock.status.as_ref().ok()?),
        };
        let lease = status.and_then(|status| status.lease.as_ref());
        if lease.is_some_and(|lease| lease.id == grant) {
            return None;
        }
        let incidents = status.map_or(&[][..], |status| &status.incidents);
        let incident = incidents.iter().rev();
        let incident = incident
            .into_iter()
            .find(|one| one.lease_id.as_deref() == Some(grant));
        let holder = status.and_then(|status| status.holder.as_ref());
        Some(Self {
            resource: before.spec.resource.clone(),
            name: before.name.clone(),
            grant: grant.to_owned(),
            incident: incident.cloned(),
            deleted: lock.is_none(),
            held_by: holder.map(|holder| holder.pod.clone()),
        })
    }

    /// Returns the outcome as text.
    #[must_use]
    pub fn text(&self) -> String {
        if self.deleted {
            let resource = escape(&self.resource);
            return format!(
                "The lock object of {resource} was deleted, and with it the record of its release.\n"
            );
        }
        let now = match &self.held_by {
            Some(pod) => format!("held by pod {}", escape(pod)),
            None => "free".to_owned(),
        };
        let record = match &self.incident {
            Some(incident) => format!(
                "  Record: {} at {}, by {}: {} (fencing token {})\n",
                escape(&incident.kind),
                escape(&incident.at),
                escape(&incident.actor),
                escape(&incident.reason),
                incident.token
            ),
            None => "  Record: none; its holder released it without one\n".to_owned(),
        };
        format!(
            "{} was released, and is {now} now.\n{record}",
            escape(&self.resource)
        )
    }
}

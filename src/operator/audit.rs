//! Records of grants that ended without a release by their holder. Each incident gets a line of the
//! audit log and an Event, regardless of which process wrote it.
//!
//! The source is the incident in the lock's status, which is part of the write that ended the
//! grant. The line is written first, then the Event. A crash in between leaves an incident without
//! an Event, and the next replica records it again. The name of an Event is derived from its
//! content, so a repetition finds it.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::protocol::ids::Resource;
use crate::protocol::incident::{Incident, IncidentKind};
use crate::protocol::lock::Lock;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::{Moment, WallTime};
use crate::store::cluster::{Event, Regarding};
use crate::store::fleet::{Object, ObjectRef};
use crate::store::namespaces::{Binding, UninjectedPod};

use super::view::LockObservation;

/// The format of a line of the audit log.
pub(super) const SCHEMA: &str = "leasehold.dev/audit/v1";

/// How many characters of a lock's name are in the names of its Events, whose maximum is 253.
const NAME_PART: usize = 200;

/// A record to write.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AuditRecord {
    /// The line of the audit log; `None` if only an Event is written.
    pub(super) line: Option<Value>,
    /// The Event.
    pub(super) event: Event,
}

/// The object that a record is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// Its namespace and name.
    pub(super) object_ref: &'a ObjectRef,
    /// Its uid.
    pub(super) uid: &'a Arc<str>,
}

impl<'a> Target<'a> {
    fn of<T>(object: &'a Object<T>) -> Self {
        Self {
            object_ref: &object.object_ref,
            uid: &object.uid,
        }
    }
}

/// Returns the records of a lock's status for an operator that has been active since
/// `active_since`.
pub(super) fn records_of<'a>(
    object_ref: &'a ObjectRef,
    observation: &'a LockObservation,
    active_since: Moment,
) -> impl Iterator<Item = AuditRecord> + 'a {
    let uid = &observation.uid;
    let of = Target { object_ref, uid };
    let incidents = observation.incidents.iter();
    let records = incidents.flat_map(move |incidents| {
        let resource = &incidents.resource;
        let to_record = incidents.to_record(active_since);
        to_record.map(move |incident| AuditRecord {
            line: Some(line(of, resource, incident)),
            event: incident_event(of, incident),
        })
    });
    let locks = observation.lock.iter();
    let long_hold = locks.filter_map(|lock| long_held_record(lock));
    records.chain(long_hold)
}

/// Returns a line of the audit log.
pub(super) fn line(of: Target<'_>, resource: &Resource, incident: &Incident) -> Value {
    let action = match incident.kind {
        IncidentKind::Expired => "expire",
        IncidentKind::PodEnded => "reclaim",
        IncidentKind::ForceReleased => "force-release",
        IncidentKind::ReleasedOnRequest => "release-on-request",
    };
    json!({
        "schema": SCHEMA,
        "id": &*event_name(of.object_ref, &incident_identity(of, incident)),
        "createdAt": time_text(incident.at),
        "action": action,
        "namespace": &*of.object_ref.namespace,
        "lock": &*of.object_ref.name,
        "resource": resource.as_str(),
        "leaseId": incident.grant.as_ref().map(ToString::to_string),
        "fencingToken": incident.token.get(),
        "ownerId": incident.owner.as_str(),
        "pod": &*incident.pod,
        "actorId": &*incident.actor,
        "reason": &*incident.reason,
    })
}

fn incident_event(of: Target<'_>, incident: &Incident) -> Event {
    let (reason, action, is_warning) = match incident.kind {
        IncidentKind::Expired => ("HolderExpired", "Reclaim", true),
        IncidentKind::PodEnded => ("HolderPodEnded", "Reclaim", false),
        IncidentKind::ForceReleased => ("ForceReleased", "ForceRelease", true),
        IncidentKind::ReleasedOnRequest => ("ReleasedOnRequest", "Release", false),
    };
    Event {
        pod: Some((incident.pod.clone(), None)),
        is_warning,
        reason,
        action,
        message: format!(
            "the grant of {} in pod {} with token {} was ended by {}: {}",
            incident.owner, incident.pod, incident.token, incident.actor, incident.reason
        ),
        ..event_regarding(of, &incident_identity(of, incident), incident.at)
    }
}

fn long_held_record(placed: &Object<Lock>) -> Option<AuditRecord> {
    let lock = &placed.stored.value;
    let (since, grant) = lock.long_held.zip(lock.grant.as_ref())?;
    let pod = &grant.holder.pod;
    let event = Event {
        pod: Some((pod.name.clone(), Some(pod.uid.clone()))),
        is_warning: true,
        reason: "LongHeld",
        action: "Mark",
        message: format!(
            "{} in pod {} has held the lock since {}",
            grant.holder.owner,
            pod.name,
            time_text(grant.acquired_at)
        ),
        ..event_regarding(
            Target::of(placed),
            &format!("long-held {}", grant.id),
            since,
        )
    };
    Some(AuditRecord { line: None, event })
}

/// Returns the record of a release request for a grant that does not hold the lock, which has no
/// effect.
pub(super) fn ignored_request(
    placed: &Object<Lock>,
    request: &ReleaseRequest,
    now: WallTime,
) -> AuditRecord {
    let what = format!("ignored {} {}", request.lease, request.reason);
    let event = Event {
        is_warning: true,
        reason: "ReleaseRequestIgnored",
        action: "Ignore",
        message: format!(
            "{} requested the release of lease {:?}, which does not hold the lock; the request was \
             ignored. The current grant is in status.lease.id",
            request.actor, request.lease
        ),
        ..event_regarding(Target::of(placed), &what, now)
    };
    AuditRecord { line: None, event }
}

/// Returns the record of a lock object that cannot be read.
pub(super) fn unreadable(
    object_ref: &ObjectRef,
    uid: &Arc<str>,
    why: &str,
    now: WallTime,
) -> AuditRecord {
    // One Event for each object, however often it is edited into other invalid states.
    let event = Event {
        is_warning: true,
        reason: "Unreadable",
        action: "Ignore",
        message: format!(
            "the lock is not granted, released or reclaimed, because the object is invalid: {why}. \
             Fix it, or delete it once nothing uses it; a free one is deleted after its retention \
             time"
        ),
        ..event_regarding(
            Target { object_ref, uid },
            &format!("unreadable {uid}"),
            now,
        )
    };
    AuditRecord { line: None, event }
}

/// Returns the record of a binding with the operator's name that another user created in a labelled
/// namespace.
pub(super) fn foreign_binding(found: &Object<Binding>, now: WallTime) -> AuditRecord {
    let event = Event {
        regarding: Regarding::Binding,
        is_warning: true,
        reason: "ForeignBinding",
        action: "Ignore",
        message: "this RoleBinding was not created by the operator and is left unchanged, so it \
                  decides which service accounts may run a sidecar in this namespace. Delete it to \
                  let the operator create its own"
            .to_owned(),
        ..event_regarding(Target::of(found), &format!("foreign {}", found.uid), now)
    };
    AuditRecord { line: None, event }
}

/// Returns the record of a pod that requests a sidecar and has none.
pub(super) fn not_injected(pod: &Object<UninjectedPod>, now: WallTime) -> AuditRecord {
    let event = Event {
        regarding: Regarding::Pod,
        is_warning: true,
        reason: "NotInjected",
        action: "Look",
        message:
            "this pod requests Leasehold's sidecar with its label leasehold.dev/inject and has \
                  none: it was created before it or its namespace was labelled, or while the API \
                  server did not call the webhook leasehold-injector. Delete it, so that its \
                  controller recreates it; if the new pod has none either, check the webhook \
                  (kubectl get mutatingwebhookconfiguration leasehold-injector)"
                .to_owned(),
        ..event_regarding(Target::of(pod), &format!("not-injected {}", pod.uid), now)
    };
    AuditRecord { line: None, event }
}

/// Returns an Event regarding an object: a lock, unless the caller sets another kind. Its reason,
/// action and message are empty.
fn event_regarding(of: Target<'_>, what: &str, at: WallTime) -> Event {
    Event {
        name: event_name(of.object_ref, what),
        regarding: Regarding::Lock,
        object_ref: of.object_ref.clone(),
        uid: of.uid.clone(),
        pod: None,
        is_warning: false,
        reason: "",
        action: "",
        message: String::new(),
        at,
    }
}

/// Returns what distinguishes an incident from all others. A lock may be recreated under the same
/// name.
fn incident_identity(of: Target<'_>, incident: &Incident) -> String {
    let (uid, kind) = (of.uid, incident.kind.name());
    format!("{uid} {kind} {} {}", incident.token, incident.at.0)
}

fn event_name(object_ref: &ObjectRef, what: &str) -> Arc<str> {
    let cut = object_ref.name.char_indices().nth(NAME_PART);
    let name = &object_ref.name[..cut.map_or(object_ref.name.len(), |(at, _)| at)];
    let hash = Sha256::digest(format!("{object_ref} {what}"));
    let mut text = format!("{}.", name.trim_end_matches(['-', '.']));
    for byte in hash.iter().take(8) {
        // Writing to a string cannot fail.
        let _never = write!(text, "{byte:02x}");
    }
    text.into()
}

fn time_text(at: WallTime) -> String {
    let at = jiff::Timestamp::from_microsecond(at.0).unwrap_or_default();
    format!("{at:.6}")
}

#[cfg(test)]
mod tests;

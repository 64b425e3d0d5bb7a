//! What is told of the ends of grants that their holders did not ask for: a line of the audit log
//! and a note on the lock for each incident, whoever wrote it.
//!
//! The record is the incident in the lock's status; it was written in the same write that ended
//! the grant. From there it is told: the line first, then the note. So whoever dies in between
//! leaves an incident without a note, and the next one tells it again, rather than never. Notes
//! have names made from what they tell, so that telling again finds them there.

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

use super::view::KeptLock;

/// The format of a line.
pub const SCHEMA: &str = "leasehold.dev/audit/v1";

/// How much of a lock's name is in the name of its notes, whose longest is 253.
const NAME_PART: usize = 200;

/// Something to tell.
#[derive(Clone, Debug, PartialEq)]
pub struct News {
    /// The line of the audit log, if it belongs there.
    pub line: Option<Value>,
    /// The note on the lock.
    pub note: Event,
}

/// The lock that a record is about.
#[derive(Clone, Copy, Debug)]
pub struct OfLock<'a> {
    /// Where it is.
    pub object_ref: &'a ObjectRef,
    /// The object's own id.
    pub uid: &'a Arc<str>,
}

impl<'a> OfLock<'a> {
    fn placed(placed: &'a Object<Lock>) -> Self {
        Self {
            object_ref: &placed.object_ref,
            uid: &placed.uid,
        }
    }
}

/// What a lock's status has to tell, each with a name of its own, by an operator that has been the
/// active one since then.
pub fn news_of<'a>(
    object_ref: &'a ObjectRef,
    kept: &'a KeptLock,
    active_since: Moment,
) -> impl Iterator<Item = News> + 'a {
    let uid = kept.uid();
    let of = OfLock { object_ref, uid };
    let record = kept.record().into_iter();
    let incidents = record.flat_map(move |record| {
        let resource = &record.resource;
        let incidents = record.to_tell(active_since);
        incidents.map(move |incident| News {
            line: Some(line(of, resource, incident)),
            note: note_of_incident(of, incident),
        })
    });
    let full = kept.full().into_iter();
    let long_hold = full.filter_map(|seen| note_of_long_hold(&seen.lock));
    incidents.chain(long_hold)
}

/// A line of the audit log.
#[must_use]
pub fn line(of: OfLock<'_>, resource: &Resource, incident: &Incident) -> Value {
    let action = match incident.kind {
        IncidentKind::Expired => "expire",
        IncidentKind::PodEnded => "reclaim",
        IncidentKind::ForceReleased => "force-release",
        IncidentKind::ReleasedOnRequest => "release-on-request",
    };
    json!({
        "schema": SCHEMA,
        "id": &*note_name(of.object_ref, &what(of, incident)),
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

fn note_of_incident(of: OfLock<'_>, incident: &Incident) -> Event {
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
        ..note(of, &what(of, incident), incident.at)
    }
}

fn note_of_long_hold(placed: &Object<Lock>) -> Option<News> {
    let lock = &placed.stored.value;
    let (since, grant) = lock.long_held.zip(lock.grant.as_ref())?;
    let pod = &grant.holder.pod;
    let note = Event {
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
        ..note(
            OfLock::placed(placed),
            &format!("long-held {}", grant.id),
            since,
        )
    };
    Some(News { line: None, note })
}

/// A request to release that is about a grant which does not hold the lock: nothing is done.
#[must_use]
pub fn ignored_request(placed: &Object<Lock>, request: &ReleaseRequest, now: WallTime) -> News {
    let what = format!("ignored {} {}", request.lease, request.reason);
    let note = Event {
        is_warning: true,
        reason: "ReleaseRequestIgnored",
        action: "Ignore",
        message: format!(
            "{} requested the release of lease {:?}, which does not hold the lock; the request was \
             ignored. The current grant is in status.lease.id",
            request.actor, request.lease
        ),
        ..note(OfLock::placed(placed), &what, now)
    };
    News { line: None, note }
}

/// An object that makes no sense.
#[must_use]
pub fn unreadable(object_ref: &ObjectRef, uid: &Arc<str>, why: &str, now: WallTime) -> News {
    // One for each object, however often somebody edits it into other nonsense.
    let name = note_name(object_ref, &format!("unreadable {uid}"));
    let note = Event {
        name,
        regarding: Regarding::Lock,
        object_ref: object_ref.clone(),
        uid: uid.clone(),
        pod: None,
        is_warning: true,
        reason: "Unreadable",
        action: "Ignore",
        message: format!(
            "the lock is not granted, released or reclaimed, because the object is invalid: {why}. \
             Fix it, or delete it once nothing uses it; a free one is deleted after its retention \
             time"
        ),
        at: now,
    };
    News { line: None, note }
}

/// A binding of the one name that is ours, which somebody else made in a labelled namespace.
#[must_use]
pub fn foreign_binding(found: &Object<Binding>, now: WallTime) -> News {
    let object_ref = &found.object_ref;
    let note = Event {
        name: note_name(object_ref, &format!("foreign {}", found.uid)),
        regarding: Regarding::Binding,
        object_ref: object_ref.clone(),
        uid: found.uid.clone(),
        pod: None,
        is_warning: true,
        reason: "ForeignBinding",
        action: "Ignore",
        message: "this RoleBinding was not created by the operator and is left unchanged, so it \
                  decides which service accounts may run a sidecar in this namespace. Delete it to \
                  let the operator create its own"
            .to_owned(),
        at: now,
    };
    News { line: None, note }
}

/// A pod that asks for a sidecar and has none.
#[must_use]
pub fn not_injected(pod: &Object<UninjectedPod>, now: WallTime) -> News {
    let object_ref = &pod.object_ref;
    let note = Event {
        name: note_name(object_ref, &format!("not-injected {}", pod.uid)),
        regarding: Regarding::Pod,
        object_ref: object_ref.clone(),
        uid: pod.uid.clone(),
        pod: None,
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
        at: now,
    };
    News { line: None, note }
}

fn note(of: OfLock<'_>, what: &str, at: WallTime) -> Event {
    Event {
        name: note_name(of.object_ref, what),
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

/// What tells one incident from all others. The lock may be made anew under the same name.
fn what(of: OfLock<'_>, incident: &Incident) -> String {
    let (uid, kind) = (of.uid, incident.kind.name());
    format!("{uid} {kind} {} {}", incident.token, incident.at.0)
}

fn note_name(object_ref: &ObjectRef, what: &str) -> Arc<str> {
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

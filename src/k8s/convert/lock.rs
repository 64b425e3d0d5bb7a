//! Converts locks.

mod completed;
mod conditions;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Fields, as_read, bounded, count, fields_mut, is_deleted, optional, overlay, required,
    session_ttl, set_at, stored, time_text, truncate, ttl_seconds, version_of, wall_time,
};
use crate::crd::REASON_MAX;
use crate::crd::lock::{self as wire, Holder, IncidentRecord, LeaseRecord, WaiterRecord};
use crate::k8s::errors::one_line;
use crate::protocol::ids::Resource;
use crate::protocol::incident::{INCIDENTS_MAX, Incident, IncidentKind};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::settings::{ReleaseMode, ReleaseRequest, Settings};
use crate::protocol::token::Token;
use crate::store::fleet::UnreadableFreeLock;
use crate::store::{StoreError, Stored};
use completed::{completed, write_completed};
use conditions::{long_held, write_long_held};

const HOLDER: &[&str] = &[
    "ownerId",
    "pod",
    "podUid",
    "node",
    "session",
    "sessionTtlSeconds",
    "metadata",
];
const LEASE: &[&str] = &["id", "acquiredAt", "kept"];
const WAITER: &[&str] = &[
    "leaseId",
    "ownerId",
    "pod",
    "podUid",
    "session",
    "sessionTtlSeconds",
    "queuedAt",
    "preferred",
];

/// Reads a lock.
///
/// # Errors
/// `Unreadable` with the name of the lock and the invalid field.
pub fn read(object: Value) -> Result<Stored<Lock>, StoreError> {
    let Value::Object(object) = object else {
        return Err(StoreError::Unreadable(
            "a lock that is no JSON object".to_owned(),
        ));
    };
    let value = lock(&object).map_err(|error| named(&object, error))?;
    stored(object, value)
}

/// Returns what is known of an unreadable lock that is certainly free. That is certain if its token
/// can be read, and its status has only fields of a free lock. The queue may be an empty list.
#[must_use]
pub fn read_free_lock(object: &Value) -> Option<UnreadableFreeLock> {
    const OF_FREE: &[&str] = &["token", "transitions", "incidents", "conditions"];

    let token = match &object["status"] {
        Value::Null => 0,
        Value::Object(status) => {
            let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            let is_free = status.iter().all(|(name, value)| {
                OF_FREE.contains(&name.as_str()) || (name == "waiters" && is_empty(value))
            });
            status.get("token").filter(|_| is_free)?.as_u64()?
        }
        _ => return None,
    };
    let retain = object["spec"]["retainSeconds"].as_u64();
    Some(UnreadableFreeLock {
        version: version_of(object).ok()?,
        token: Token::from_raw(token),
        retain: retain.map(Duration::from_secs),
        is_deleted: is_deleted(object),
        set_at: set_at(object),
    })
}

fn named(object: &Fields, error: StoreError) -> StoreError {
    let name = object
        .get("metadata")
        .and_then(|metadata| metadata["name"].as_str());
    match error {
        StoreError::Unreadable(what) => {
            let name = name.unwrap_or_default();
            StoreError::Unreadable(one_line(&format!("lock {name:?}: {what}")))
        }
        other => other,
    }
}

fn lock(object: &Fields) -> Result<Lock, StoreError> {
    let spec: Fields = required(object, "lock", "spec")?;
    let resource: String = required(&spec, "spec", "resource")?;
    let resource = Resource::parse(&resource)
        .map_err(|invalid| StoreError::Unreadable(format!("spec.resource: {invalid}")))?;
    let settings = Settings {
        is_being_deleted: is_being_deleted(object),
        ..settings(&spec)
    };
    let Some(status) = optional::<Fields>(object, "lock", "status")? else {
        return Ok(Lock {
            settings,
            ..Lock::unheld(resource)
        });
    };
    let token: i64 = required(&status, "status", "token")?;
    let token = u64::try_from(token)
        .map_err(|_| StoreError::Unreadable(format!("status.token is negative ({token})")))?;
    let grant = grant(&status)?;
    let waiters = waiters(&status)?;
    if grant.is_none() && !waiters.is_empty() {
        return Err(StoreError::Unreadable(
            "status.waiters has entries and status.holder is missing".to_owned(),
        ));
    }
    Ok(Lock {
        resource,
        grant,
        token: Token::from_raw(token),
        waiters,
        incidents: incident_values(&status)
            .iter()
            .filter_map(incident)
            .collect(),
        completed: completed(&status),
        transitions: count(optional(&status, "status", "transitions")?.unwrap_or_default()),
        long_held: long_held(&status),
        settings,
    })
}

/// An unreadable setting counts as absent: no grant depends on it.
fn settings(spec: &Fields) -> Settings {
    let seconds = |name| {
        let value = spec.get(name).and_then(Value::as_u64)?;
        Some(Duration::from_secs(value))
    };
    let request = optional::<wire::ReleaseRequest>(spec, "spec", "releaseRequest");
    Settings {
        retain: seconds("retainSeconds"),
        long_held: seconds("longHeldSeconds"),
        release_request: request
            .ok()
            .flatten()
            .map(|request| Arc::new(request.into())),
        is_being_deleted: false,
    }
}

fn is_being_deleted(object: &Fields) -> bool {
    let metadata = object.get("metadata");
    metadata.is_some_and(|metadata| !metadata["deletionTimestamp"].is_null())
}

impl From<wire::ReleaseRequest> for ReleaseRequest {
    fn from(request: wire::ReleaseRequest) -> Self {
        Self {
            lease: request.lease_id.into(),
            mode: match request.mode {
                wire::ReleaseMode::Ask => ReleaseMode::Ask,
                wire::ReleaseMode::Force => ReleaseMode::Force,
            },
            reason: request.reason.into(),
            actor: request.actor.into(),
        }
    }
}

fn grant(status: &Fields) -> Result<Option<Grant>, StoreError> {
    let holder = optional::<Holder>(status, "status", "holder")?;
    let lease = optional::<LeaseRecord>(status, "status", "lease")?;
    match (holder, lease) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(StoreError::Unreadable(
            "status.holder is there and status.lease is missing".to_owned(),
        )),
        (None, Some(_)) => Err(StoreError::Unreadable(
            "status.lease is there and status.holder is missing".to_owned(),
        )),
        (Some(holder), Some(lease)) => Ok(Some(Grant {
            id: lease.id.into(),
            holder: Claimant {
                owner: holder.owner_id.into(),
                pod: PodRef {
                    name: holder.pod.into(),
                    uid: holder.pod_uid.into(),
                    node: holder.node.map(Into::into),
                },
                session: holder.session.into(),
                session_ttl: session_ttl(holder.session_ttl_seconds),
            },
            metadata: holder.metadata,
            acquired_at: wall_time(&lease.acquired_at),
            kept: lease.kept,
        })),
    }
}

fn waiters(status: &Fields) -> Result<Queue, StoreError> {
    let records: Vec<WaiterRecord> = optional(status, "status", "waiters")?.unwrap_or_default();
    let waiters = records.into_iter().map(|record| Waiter {
        grant: record.lease_id.into(),
        claimant: Claimant {
            owner: record.owner_id.into(),
            pod: PodRef {
                name: record.pod.into(),
                uid: record.pod_uid.into(),
                node: None,
            },
            session: record.session.into(),
            session_ttl: session_ttl(record.session_ttl_seconds),
        },
        queued_at: wall_time(&record.queued_at),
        preferred: record.preferred,
    });
    Ok(Queue::from_entries(waiters.collect()))
}

fn incident_values(status: &Fields) -> &[Value] {
    status
        .get("incidents")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// Reads an incident; `None` for a kind that this version does not know. The record itself survives
/// all writes.
fn incident(value: &Value) -> Option<Incident> {
    use serde::Deserialize;

    let record = IncidentRecord::deserialize(value).ok()?;
    Some(Incident {
        at: wall_time(&record.at),
        kind: IncidentKind::from_name(&record.kind)?,
        grant: record.lease_id.map(Into::into),
        token: Token::from_raw(u64::try_from(record.token).ok()?),
        owner: record.owner_id.into(),
        pod: record.pod.into(),
        actor: record.actor.into(),
        reason: record.reason.into(),
    })
}

/// Returns the object that changes the lock to `next`, if it is still at `current`'s version.
///
/// # Errors
/// `Invalid` if `current` was not read by this adapter, or `next` guards another resource.
pub fn write(current: &Stored<Lock>, next: &Lock) -> Result<Value, StoreError> {
    let mut object = as_read(current)?;
    // Parsed from the object as it was read: the protocol may have changed `current.value`.
    let before = &lock(&object)?;
    if before.resource != next.resource {
        return Err(StoreError::Invalid(
            "a lock's resource never changes".to_owned(),
        ));
    }
    let status = fields_mut(&mut object, "status");
    write_grant(status, before, next)?;
    write_waiters(status, before, next)?;
    write_incidents(status, before, next)?;
    write_completed(status, before, next)?;
    write_long_held(status, before, next)?;
    status.insert("token".to_owned(), bounded(next.token.get()).into());
    status.insert("transitions".to_owned(), bounded(next.transitions).into());
    Ok(Value::Object(object))
}

/// Returns whether the lock as read has a list that a waiter can be appended to.
///
/// # Errors
/// `Invalid` if `current` was not read by this adapter.
pub fn has_queue(current: &Stored<Lock>) -> Result<bool, StoreError> {
    let object = as_read(current)?;
    let status = object.get("status");
    Ok(status.is_some_and(|status| status["waiters"].is_array()))
}

/// Returns the JSON patch (RFC 6902) that appends a waiter to the queue of a held lock.
///
/// # Errors
/// `Invalid` if the waiter cannot be written, or if `current` was not read from an API server.
pub fn patch_to_join(current: &Stored<Lock>, waiter: &Waiter) -> Result<Value, StoreError> {
    let entry = overlay(None, WAITER, &WaiterRecord::from(waiter))?;
    let object = as_read(current)?;
    let uid = object
        .get("metadata")
        .and_then(|metadata| metadata["uid"].as_str());
    let uid = uid.ok_or_else(|| StoreError::Invalid("the lock has no metadata.uid".to_owned()))?;
    Ok(json!([
        // The object may have been recreated for another resource. The resource itself cannot be tested: the API server
        // compares the bytes of the JSON, and encodes `<`, `>` and `&` as escapes.
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status/waiters/-", "value": entry},
    ]))
}

fn write_grant(status: &mut Fields, before: &Lock, next: &Lock) -> Result<(), StoreError> {
    if before.grant == next.grant {
        return Ok(());
    }
    let holder = status.remove("holder");
    let lease = status.remove("lease");
    let Some(grant) = &next.grant else {
        return Ok(());
    };
    let is_same = before.names_grant(&grant.id);
    let holder = holder.as_ref().filter(|_| is_same);
    let lease = lease.as_ref().filter(|_| is_same);
    status.insert(
        "holder".to_owned(),
        overlay(holder, HOLDER, &Holder::from(grant))?,
    );
    status.insert(
        "lease".to_owned(),
        overlay(lease, LEASE, &LeaseRecord::from(grant))?,
    );
    Ok(())
}

/// Each grant begins with a list, even an empty one, so that the first waiter can be appended, too.
fn write_waiters(status: &mut Fields, before: &Lock, next: &Lock) -> Result<(), StoreError> {
    let grant_of = |lock: &Lock| lock.grant.as_ref().map(|grant| grant.id.clone());
    if before.waiters == next.waiters && grant_of(before) == grant_of(next) {
        return Ok(());
    }
    let as_read = match status.remove("waiters") {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    if next.grant.is_none() && next.waiters.is_empty() {
        return Ok(());
    }
    let entries = next.waiters.entries().iter().map(|waiter| {
        // Every entry was read, so both lists have the same indexes.
        let index = before
            .waiters
            .entries()
            .iter()
            .position(|old| old.grant == waiter.grant);
        match index.and_then(|index| Some((as_read.get(index)?, index))) {
            Some((entry, index)) if before.waiters.entries()[index] == *waiter => Ok(entry.clone()),
            found => overlay(
                found.map(|(entry, _)| entry),
                WAITER,
                &WaiterRecord::from(waiter),
            ),
        }
    });
    status.insert(
        "waiters".to_owned(),
        entries.collect::<Result<Vec<_>, _>>()?.into(),
    );
    Ok(())
}

/// Keeps the existing records, also those that this version cannot read, and appends new ones.
fn write_incidents(status: &mut Fields, before: &Lock, next: &Lock) -> Result<(), StoreError> {
    if before.incidents == next.incidents {
        return Ok(());
    }
    let mut records: Vec<Value> = incident_values(status)
        .iter()
        .filter(|value| incident(value).is_none_or(|known| next.incidents.contains(&known)))
        .cloned()
        .collect();
    for new in next
        .incidents
        .iter()
        .filter(|incident| !before.incidents.contains(incident))
    {
        records.push(overlay(None, INCIDENT, &IncidentRecord::from(new))?);
    }
    records.drain(..records.len().saturating_sub(INCIDENTS_MAX));
    status.insert("incidents".to_owned(), records.into());
    Ok(())
}

const INCIDENT: &[&str] = &[
    "at", "kind", "leaseId", "token", "ownerId", "pod", "actor", "reason",
];

impl From<&Grant> for Holder {
    fn from(grant: &Grant) -> Self {
        let claimant = &grant.holder;
        Self {
            owner_id: claimant.owner.to_string(),
            pod: claimant.pod.name.to_string(),
            pod_uid: claimant.pod.uid.to_string(),
            node: claimant.pod.node.as_deref().map(str::to_owned),
            session: claimant.session.to_string(),
            session_ttl_seconds: ttl_seconds(claimant.session_ttl),
            metadata: grant.metadata.clone(),
        }
    }
}

impl From<&Grant> for LeaseRecord {
    fn from(grant: &Grant) -> Self {
        Self {
            id: grant.id.to_string(),
            acquired_at: time_text(grant.acquired_at),
            kept: grant.kept,
        }
    }
}

impl From<&Waiter> for WaiterRecord {
    fn from(waiter: &Waiter) -> Self {
        let claimant = &waiter.claimant;
        Self {
            lease_id: waiter.grant.to_string(),
            owner_id: claimant.owner.to_string(),
            pod: claimant.pod.name.to_string(),
            pod_uid: claimant.pod.uid.to_string(),
            session: claimant.session.to_string(),
            session_ttl_seconds: ttl_seconds(claimant.session_ttl),
            queued_at: time_text(waiter.queued_at),
            preferred: waiter.preferred,
        }
    }
}

impl From<&Incident> for IncidentRecord {
    fn from(incident: &Incident) -> Self {
        Self {
            at: time_text(incident.at),
            kind: incident.kind.name().to_owned(),
            lease_id: incident.grant.as_ref().map(ToString::to_string),
            token: bounded(incident.token.get()),
            owner_id: incident.owner.to_string(),
            pod: incident.pod.to_string(),
            actor: truncate(&incident.actor, 512),
            reason: truncate(&incident.reason, REASON_MAX),
        }
    }
}

#[cfg(test)]
mod tests;

//! The document of a lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Unknown, unreadable};
use crate::protocol::completed::{COMPLETED_MAX, Completed, Completion, CompletionKey};
use crate::protocol::ids::Resource;
use crate::protocol::incident::{INCIDENTS_MAX, Incident, IncidentKind};
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::queue::{Queue, Waiter};
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::settings::{ReleaseMode, ReleaseRequest, Settings};
use crate::protocol::time::{SessionTtl, WallTime};
use crate::protocol::token::Token;
use crate::store::StoreError;

/// A lock. Times are microseconds since 1970.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::store::embedded) struct LockRecord {
    resource: String,
    /// The uid of the object; a recreated one has another. `None` in a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    grant: Option<GrantRecord>,
    token: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    waiters: Vec<WaiterRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    incidents: Vec<IncidentRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    completed: Vec<CompletionRecord>,
    #[serde(default)]
    transitions: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    long_held: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retain_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    long_held_seconds: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    release_request: Option<ReleaseRequestRecord>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GrantRecord {
    id: String,
    holder: ClaimantRecord,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    acquired_at: i64,
    #[serde(default)]
    kept: bool,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimantRecord {
    owner_id: String,
    pod: String,
    pod_uid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    session: String,
    session_ttl_seconds: u64,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WaiterRecord {
    lease_id: String,
    claimant: ClaimantRecord,
    queued_at: i64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    preferred: bool,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IncidentRecord {
    at: i64,
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease_id: Option<String>,
    token: u64,
    owner_id: String,
    pod: String,
    actor: String,
    reason: String,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CompletionRecord {
    key: String,
    at: i64,
    token: u64,
    owner_id: String,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseRequestRecord {
    lease_id: String,
    force: bool,
    reason: String,
    actor: String,
    #[serde(flatten)]
    unknown: Unknown,
}

impl LockRecord {
    /// Returns the document of a lock that was never held.
    pub(in crate::store::embedded) fn unheld(resource: &Resource, uid: Option<&str>) -> Self {
        Self {
            resource: resource.to_string(),
            uid: uid.map(str::to_owned),
            grant: None,
            token: Token::NONE.get(),
            waiters: Vec::new(),
            incidents: Vec::new(),
            completed: Vec::new(),
            transitions: 0,
            long_held: None,
            retain_seconds: None,
            long_held_seconds: None,
            release_request: None,
            unknown: Unknown::new(),
        }
    }

    /// Returns the uid of the object, if it has one.
    pub(in crate::store::embedded) fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Reads the lock.
    ///
    /// # Errors
    /// `Unreadable` if a field is invalid that decisions depend on.
    pub(in crate::store::embedded) fn lock(&self) -> Result<Lock, StoreError> {
        let resource = Resource::parse(&self.resource)
            .map_err(|invalid| unreadable(&self.resource, &invalid))?;
        if self.grant.is_none() && !self.waiters.is_empty() {
            return Err(unreadable(&self.resource, &"it has waiters, but no holder"));
        }
        let waiters = self.waiters.iter().map(WaiterRecord::waiter);
        let completed = self
            .completed
            .iter()
            .filter_map(CompletionRecord::completion);
        Ok(Lock {
            resource,
            grant: self.grant.as_ref().map(GrantRecord::grant),
            token: Token::from_raw(self.token),
            waiters: Queue::from_entries(waiters.collect()),
            incidents: self
                .incidents
                .iter()
                .filter_map(IncidentRecord::incident)
                .collect(),
            completed: Completed::from_entries(completed.collect()),
            transitions: self.transitions,
            long_held: self.long_held.map(WallTime),
            settings: self.settings(),
        })
    }

    fn settings(&self) -> Settings {
        let request = self.release_request.as_ref();
        Settings {
            retain: self.retain_seconds.map(Duration::from_secs),
            long_held: self.long_held_seconds.map(Duration::from_secs),
            release_request: request.map(|request| Arc::new(request.request())),
            // A deleted object is removed at once here.
            is_being_deleted: false,
        }
    }

    /// Returns the document with other settings.
    pub(in crate::store::embedded) fn with_settings(self, settings: &Settings) -> Self {
        let request = settings.release_request.as_ref();
        Self {
            retain_seconds: settings.retain.map(|retain| retain.as_secs()),
            long_held_seconds: settings.long_held.map(|long_held| long_held.as_secs()),
            release_request: request.map(|request| ReleaseRequestRecord::new(request)),
            ..self
        }
    }

    /// Returns the sessions that the lock names, even if the document is not readable as a lock.
    pub(in crate::store::embedded) fn sessions(&self) -> impl Iterator<Item = &str> {
        let holder = self.grant.iter().map(|grant| &grant.holder);
        let waiters = self.waiters.iter().map(|waiter| &waiter.claimant);
        let claimants = holder.chain(waiters);
        claimants.map(|claimant| claimant.session.as_str())
    }

    /// Returns whether the lock remembers completed work.
    pub(in crate::store::embedded) fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Returns whether the lock itself has unknown fields.
    pub(in crate::store::embedded) fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Returns the document of `next`, with the unknown fields of this one.
    pub(in crate::store::embedded) fn updated(&self, next: &Lock) -> Self {
        let grant = next.grant.as_ref().map(|grant| {
            let before = self.grant.as_ref();
            let same = before.filter(|before| before.id == grant.id.as_str());
            GrantRecord::new(grant, same)
        });
        let waiters = next.waiters.entries().iter().map(|waiter| {
            let mut before = self.waiters.iter();
            let same = before.find(|before| before.lease_id == waiter.grant.as_str());
            WaiterRecord::new(waiter, same)
        });
        Self {
            resource: self.resource.clone(),
            uid: self.uid.clone(),
            grant,
            token: next.token.get(),
            waiters: waiters.collect(),
            incidents: self.updated_incidents(&next.incidents),
            completed: self.updated_completed(&next.completed),
            transitions: next.transitions,
            long_held: next.long_held.map(|since| since.0),
            retain_seconds: self.retain_seconds,
            long_held_seconds: self.long_held_seconds,
            release_request: self.release_request.clone(),
            unknown: self.unknown.clone(),
        }
    }

    /// Keeps the existing records, also those that this version cannot read, and appends new ones.
    fn updated_incidents(&self, next: &[Incident]) -> Vec<IncidentRecord> {
        let was_there: Vec<_> = self
            .incidents
            .iter()
            .filter_map(IncidentRecord::incident)
            .collect();
        let kept = self.incidents.iter().filter(|record| {
            let known = record.incident();
            known.is_none_or(|incident| next.contains(&incident))
        });
        let new = next
            .iter()
            .filter(|incident| !was_there.contains(incident))
            .map(IncidentRecord::new);
        let mut records: Vec<_> = kept.cloned().chain(new).collect();
        records.drain(..records.len().saturating_sub(INCIDENTS_MAX));
        records
    }

    /// Keeps the existing records, also those that this version cannot read, and appends new ones.
    fn updated_completed(&self, next: &Completed) -> Vec<CompletionRecord> {
        let is_new = |completion: &&Completion| {
            let mut known = self.completed.iter();
            known.all(|record| record.key != completion.key.as_str())
        };
        let new = next.entries().iter().filter(is_new);
        let new = new.map(CompletionRecord::new);
        let mut records: Vec<_> = self.completed.iter().cloned().chain(new).collect();
        records.drain(..records.len().saturating_sub(COMPLETED_MAX));
        records
    }
}

impl GrantRecord {
    fn new(grant: &Grant, same: Option<&Self>) -> Self {
        Self {
            id: grant.id.to_string(),
            holder: ClaimantRecord::new(&grant.holder, same.map(|same| &same.holder)),
            metadata: grant.metadata.clone(),
            acquired_at: grant.acquired_at.0,
            kept: grant.kept,
            unknown: same.map(|same| same.unknown.clone()).unwrap_or_default(),
        }
    }

    fn grant(&self) -> Grant {
        Grant {
            id: self.id.as_str().into(),
            holder: self.holder.claimant(),
            metadata: self.metadata.clone(),
            acquired_at: WallTime(self.acquired_at),
            kept: self.kept,
        }
    }
}

impl ClaimantRecord {
    fn new(claimant: &Claimant, same: Option<&Self>) -> Self {
        Self {
            owner_id: claimant.owner.to_string(),
            pod: claimant.pod.name.to_string(),
            pod_uid: claimant.pod.uid.to_string(),
            node: claimant.pod.node.as_deref().map(str::to_owned),
            session: claimant.session.to_string(),
            session_ttl_seconds: claimant.session_ttl.as_secs(),
            unknown: same.map(|same| same.unknown.clone()).unwrap_or_default(),
        }
    }

    fn claimant(&self) -> Claimant {
        Claimant {
            owner: self.owner_id.as_str().into(),
            pod: PodRef {
                name: self.pod.as_str().into(),
                uid: self.pod_uid.as_str().into(),
                node: self.node.as_deref().map(Into::into),
            },
            session: self.session.as_str().into(),
            session_ttl: SessionTtl::clamped(self.session_ttl_seconds),
        }
    }
}

impl WaiterRecord {
    fn new(waiter: &Waiter, same: Option<&Self>) -> Self {
        Self {
            lease_id: waiter.grant.to_string(),
            claimant: ClaimantRecord::new(&waiter.claimant, same.map(|same| &same.claimant)),
            queued_at: waiter.queued_at.0,
            preferred: waiter.preferred,
            unknown: same.map(|same| same.unknown.clone()).unwrap_or_default(),
        }
    }

    fn waiter(&self) -> Waiter {
        Waiter {
            grant: self.lease_id.as_str().into(),
            claimant: self.claimant.claimant(),
            queued_at: WallTime(self.queued_at),
            preferred: self.preferred,
        }
    }
}

impl IncidentRecord {
    fn new(incident: &Incident) -> Self {
        Self {
            at: incident.at.0,
            kind: incident.kind.name().to_owned(),
            lease_id: incident.grant.as_ref().map(ToString::to_string),
            token: incident.token.get(),
            owner_id: incident.owner.to_string(),
            pod: incident.pod.to_string(),
            actor: incident.actor.to_string(),
            reason: incident.reason.to_string(),
            unknown: Unknown::new(),
        }
    }

    /// Returns `None` for a kind that this version does not know.
    fn incident(&self) -> Option<Incident> {
        Some(Incident {
            at: WallTime(self.at),
            kind: IncidentKind::from_name(&self.kind)?,
            grant: self.lease_id.as_deref().map(Into::into),
            token: Token::from_raw(self.token),
            owner: self.owner_id.as_str().into(),
            pod: self.pod.as_str().into(),
            actor: self.actor.as_str().into(),
            reason: self.reason.as_str().into(),
        })
    }
}

impl CompletionRecord {
    fn new(completion: &Completion) -> Self {
        Self {
            key: completion.key.to_string(),
            at: completion.at.0,
            token: completion.token.get(),
            owner_id: completion.owner.to_string(),
            unknown: Unknown::new(),
        }
    }

    /// Returns `None` for a key that is not valid in this version.
    fn completion(&self) -> Option<Completion> {
        Some(Completion {
            key: CompletionKey::parse(&self.key).ok()?,
            at: WallTime(self.at),
            token: Token::from_raw(self.token),
            owner: self.owner_id.as_str().into(),
        })
    }
}

impl ReleaseRequestRecord {
    fn new(request: &ReleaseRequest) -> Self {
        Self {
            lease_id: request.lease.to_string(),
            force: request.mode == ReleaseMode::Force,
            reason: request.reason.to_string(),
            actor: request.actor.to_string(),
            unknown: Unknown::new(),
        }
    }

    fn request(&self) -> ReleaseRequest {
        ReleaseRequest {
            lease: self.lease_id.as_str().into(),
            mode: if self.force {
                ReleaseMode::Force
            } else {
                ReleaseMode::Ask
            },
            reason: self.reason.as_str().into(),
            actor: self.actor.as_str().into(),
        }
    }
}

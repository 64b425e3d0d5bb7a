//! The JSON of requests and responses: camelCase, without unknown fields.
//!
//! It does not validate the values of fields; `checks` does.

mod fencing;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Number;
use utoipa::ToSchema;

use crate::agent::{HolderView, LeaseView, LockPage, LockView};
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::WallTime;
use crate::protocol::token::Token;
pub(super) use fencing::{
    RefusalBody, ReportedDto, VerifiedBatchDto, VerifiedDto, VerifiedTokenDto, VerifyBatchBody,
    VerifyBody,
};

/// The reason of a release request by a person.
pub(super) const PERSON_ASKED: &str = "person_asked";

/// A request for a lock.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = AcquireRequest)]
pub(super) struct AcquireBody {
    /// What to lock: printable text of at most 512 bytes.
    #[schema(
        min_length = 1,
        max_length = 512,
        example = "tenant_123:billing-close:2026-04"
    )]
    pub(super) resource: String,
    /// The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
    #[schema(min_length = 1, max_length = 256, example = "worker-7")]
    pub(super) owner_id: Option<String>,
    /// After how many seconds without a renewal the agent releases the lock.
    #[schema(value_type = u32, minimum = 1, maximum = 86_400, example = 30)]
    pub(super) ttl_seconds: Number,
    /// How long to wait in the queue while the lock is held; 0: one attempt. Set the client's own
    /// timeout a few seconds higher. A caller that disconnects is removed from the queue; with a
    /// requestId its queue entry is kept for 10 seconds.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 240, default = 0)]
    pub(super) wait_seconds: Option<Number>,
    /// For how many seconds the pod keeps the lock after this lease: acquiring it again in that time is
    /// local, without a write. Another pod that requests it gets it immediately. 0: not kept.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 3_600, default = 0)]
    pub(super) keep_seconds: Option<Number>,
    /// Informational key-value pairs: at most 16 entries of printable text, with keys of at most 63 and
    /// values of at most 256 bytes.
    #[serde(default, deserialize_with = "unique_entries")]
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// An idempotency key, 1 to 128 printable ASCII characters; it counts together with `resource` and
    /// `ownerId`. A repeated request returns the same lease, or 410 `lease_lost` if that has ended (for 10
    /// minutes after its end): a late repetition acquires nothing.
    #[schema(min_length = 1, max_length = 128)]
    pub(super) request_id: Option<String>,
}

/// A lock for as long as a connection.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = HoldRequest)]
pub(super) struct HoldBody {
    /// What to lock: printable text of at most 512 bytes.
    #[schema(
        min_length = 1,
        max_length = 512,
        example = "tenant_123:billing-close:2026-04"
    )]
    pub(super) resource: String,
    /// The caller's name, informational: printable text of at most 256 bytes; default: the pod's name.
    #[schema(min_length = 1, max_length = 256, example = "worker-7")]
    pub(super) owner_id: Option<String>,
    /// How many seconds after the grant the lease ends in any case.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 604_800,
        default = 86_400)]
    pub(super) max_hold_seconds: Option<Number>,
    /// How long to wait in the queue while the lock is held; 0: one attempt; default: without a limit.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 604_800)]
    pub(super) wait_seconds: Option<Number>,
    /// As in acquire.
    #[schema(value_type = Option<u32>, minimum = 0, maximum = 3_600, default = 0)]
    pub(super) keep_seconds: Option<Number>,
    /// As in acquire.
    #[serde(default, deserialize_with = "unique_entries")]
    pub(super) metadata: Option<BTreeMap<String, String>>,
}

/// The lead of an election for as long as a connection.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = CandidacyRequest)]
pub(super) struct CandidacyBody {
    /// The candidate's name, informational: printable text of at most 256 bytes; default: the pod's name.
    #[schema(min_length = 1, max_length = 256, example = "worker-7")]
    pub(super) owner_id: Option<String>,
    /// How many seconds after its start the term ends in any case.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 604_800,
        default = 86_400)]
    pub(super) max_hold_seconds: Option<Number>,
    /// As in acquire.
    #[serde(default, deserialize_with = "unique_entries")]
    pub(super) metadata: Option<BTreeMap<String, String>>,
    /// Whether this candidate is queued before all candidates that are not preferred: it gets the lead
    /// at the next term. A current leader is not interrupted. Of several candidates in one pod, the
    /// first one decides. A full queue stays full.
    #[schema(default = false)]
    pub(super) preferred: Option<bool>,
}

/// Rejects duplicate keys, of which a map would silently keep the last.
fn unique_entries<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object whose values are strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, _>()? {
                if entries.contains_key(&key) {
                    return Err(Error::custom(format!("duplicate key {key:?}")));
                }
                entries.insert(key, value);
            }
            Ok(Some(entries))
        }
    }

    from.deserialize_any(Entries)
}

/// A new TTL for the lease.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = RenewRequest)]
pub(super) struct RenewBody {
    /// As in acquire; default: unchanged.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 86_400)]
    pub(super) ttl_seconds: Option<Number>,
}

/// The query of a list of locks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    pub(super) prefix: String,
    /// The original text, so that an invalid number gets the API's own error.
    pub(super) limit: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// A lease.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lease)]
pub(super) struct LeaseDto {
    /// The locked resource.
    #[schema(example = "tenant_123:billing-close:2026-04")]
    resource: String,
    /// The owner's name.
    #[schema(example = "worker-7")]
    owner_id: String,
    /// Identifies the lease in renew and release.
    #[schema(example = "0f8a4c6e-5b1d-4c52-9d0a-7a3d9c1be0aa.0")]
    lease_id: String,
    /// Larger than every earlier token of this resource. Send it with every write to the guarded
    /// resource, which must reject smaller tokens.
    #[schema(example = 1_842_000)]
    fencing_token: u64,
    /// `validForMs` as a wall-clock time, informational.
    #[schema(format = DateTime, example = "2026-04-01T00:00:14.25Z")]
    expires_at: String,
    /// For how many milliseconds the app may act, counted from when it sent this request.
    #[schema(example = 14_250)]
    valid_for_ms: u64,
    /// After how many milliseconds to renew, counted from when the app sent this request.
    #[schema(example = 4_750)]
    renew_after_ms: u64,
    /// A person requested the release of this lease; the app decides. Absent without a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    release_requested: Option<ReleaseRequestDto>,
}

/// A request to release the lease.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ReleaseRequested)]
pub(super) struct ReleaseRequestDto {
    /// Always `person_asked`, for now.
    #[schema(example = "person_asked")]
    reason: &'static str,
    /// The person who requested it.
    #[schema(example = "alice@example.com")]
    actor: String,
    /// The reason that the person gave.
    #[schema(example = "maintenance of the ledger")]
    message: String,
}

/// An acquired lock.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Acquired)]
pub(super) struct AcquiredDto {
    /// Always true.
    acquired: bool,
    #[serde(flatten)]
    lease: LeaseDto,
    /// Whether this repeats the response to an earlier request with the same `requestId`.
    replayed: bool,
    /// The keys under which guarded work has succeeded, oldest first; see completeWork.
    #[schema(max_items = 32, example = json!(["2026-04-01"]))]
    completed: Vec<String>,
}

/// Work that has succeeded.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = CompleteRequest)]
pub(super) struct CompleteBody {
    /// The name of the work: 1 to 128 printable ASCII characters.
    #[schema(min_length = 1, max_length = 128, example = "2026-04-01")]
    pub(super) key: String,
}

/// A release that the store has not confirmed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ReleasePending)]
pub(super) struct ReleasePendingDto {
    /// The lease, which has ended.
    lease_id: String,
    /// Always `pending`.
    #[schema(example = "pending")]
    release: &'static str,
    /// What happens next.
    detail: &'static str,
}

/// The holder of a lock.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Holder)]
pub(super) struct HolderDto {
    /// The name that the app gave.
    #[schema(example = "worker-3")]
    owner_id: String,
    /// The holder's pod.
    #[schema(example = "billing-6d5f-x2x9k")]
    pod: String,
    /// The first token of its grant.
    #[schema(example = 1_842_000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<u64>,
    /// When the lock was granted, by the clock of the holder's pod.
    #[schema(format = DateTime, example = "2026-04-01T00:00:00Z")]
    held_since: String,
    /// The metadata that the app gave.
    metadata: BTreeMap<String, String>,
}

/// A lock.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Lock)]
pub(super) struct LockDto {
    /// The guarded resource.
    resource: String,
    /// The holder; absent if the lock is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    holder: Option<HolderDto>,
    /// The first token of the current or last grant; absent if it was never granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    fencing_token: Option<u64>,
    /// The number of waiters.
    queue_length: usize,
    /// The number of grants so far.
    transitions: u64,
}

/// One page of the namespace's locks.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LockList)]
pub(super) struct LocksDto {
    /// The locks, in the store's order. A page may be empty although more follow.
    locks: Vec<LockDto>,
    /// Send it as `continue` for the next page; absent on the last page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
    /// Lock objects that this version cannot read, each with the reason.
    unreadable: Vec<String>,
}

impl From<&LeaseView> for LeaseDto {
    fn from(lease: &LeaseView) -> Self {
        Self {
            resource: lease.resource.to_string(),
            owner_id: lease.owner.to_string(),
            lease_id: lease.lease.to_string(),
            fencing_token: lease.token.get(),
            expires_at: time_text(lease.expires_at),
            valid_for_ms: whole_ms(lease.valid_for),
            renew_after_ms: whole_ms(lease.renew_after),
            release_requested: lease.asked.as_deref().map(ReleaseRequestDto::from),
        }
    }
}

impl From<&ReleaseRequest> for ReleaseRequestDto {
    fn from(request: &ReleaseRequest) -> Self {
        Self {
            reason: PERSON_ASKED,
            actor: request.actor.to_string(),
            message: request.reason.to_string(),
        }
    }
}

impl AcquiredDto {
    pub(super) fn new(lease: &LeaseView, replayed: bool) -> Self {
        let completed = lease.completed.entries().iter();
        Self {
            acquired: true,
            lease: lease.into(),
            replayed,
            completed: completed.map(|done| done.key.to_string()).collect(),
        }
    }
}

impl ReleasePendingDto {
    pub(super) fn new(lease_id: String) -> Self {
        Self {
            lease_id,
            release: "pending",
            detail: "the lease has ended; the store has not confirmed the release yet, and the agent \
                     retries until it has (its log names the error). A lead that was returned to \
                     other callers is released when their validForMs have passed",
        }
    }
}

impl From<&HolderView> for HolderDto {
    fn from(holder: &HolderView) -> Self {
        Self {
            owner_id: holder.owner.to_string(),
            pod: holder.pod.clone(),
            fencing_token: token_number(holder.token),
            held_since: time_text(holder.acquired_at),
            metadata: holder.metadata.clone(),
        }
    }
}

impl From<&LockView> for LockDto {
    fn from(lock: &LockView) -> Self {
        Self {
            resource: lock.resource.to_string(),
            holder: lock.holder.as_ref().map(HolderDto::from),
            fencing_token: token_number(lock.token),
            queue_length: lock.queue_length,
            transitions: lock.transitions,
        }
    }
}

impl From<LockPage> for LocksDto {
    fn from(page: LockPage) -> Self {
        Self {
            locks: page.locks.iter().map(LockDto::from).collect(),
            next: page.next,
            unreadable: page.unreadable,
        }
    }
}

/// Returns a wall-clock time as RFC 3339 in UTC. A time out of range (of another version, or
/// edited) is returned as its number of microseconds since 1970.
pub(super) fn time_text(time: WallTime) -> String {
    jiff::Timestamp::from_microsecond(time.0)
        .map_or_else(|_| format!("{} µs", time.0), |time| time.to_string())
}

pub(super) fn token_number(token: Token) -> Option<u64> {
    (token != Token::NONE).then(|| token.get())
}

/// Returns milliseconds, rounded down: an app must never rely on a lease longer than the agent.
pub(super) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_rounded_down_to_milliseconds() {
        assert_eq!(whole_ms(Duration::from_micros(1_999)), 1);
        assert_eq!(whole_ms(Duration::MAX), u64::MAX);
    }

    #[test]
    fn times_are_rfc_3339_in_utc() {
        assert_eq!(time_text(WallTime(1_500_000)), "1970-01-01T00:00:01.5Z");
        assert_eq!(time_text(WallTime(i64::MAX)), "9223372036854775807 µs");
    }
}

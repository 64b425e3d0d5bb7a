//! What travels between an app and its sidecar. A field that an answer lacks has its default.
//!
//! Generated from docs/openapi.json by `make generate`: do not edit it.
#![expect(clippy::struct_field_names, reason = "the names are those of the API")]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an answer means for the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Another caller has the lock.
    Held,
    /// The lease is over.
    Lost,
    /// The same request may succeed soon.
    Passing,
    /// Locks are unavailable, and not only for moments.
    Lasting,
    /// The request, or the installation, must be corrected.
    Refused,
}

impl Outcome {
    /// Returns the outcome of a problem's code. The status decides for a code that this version does
    /// not know.
    pub(crate) fn of(code: &str, status: u16) -> Self {
        let known = OUTCOMES.iter().find(|(name, _)| *name == code);
        known.map_or_else(
            || match status {
                408 | 429 | 500.. => Self::Passing,
                _ => Self::Refused,
            },
            |(_, outcome)| *outcome,
        )
    }
}

const OUTCOMES: [(&str, Outcome); 34] = [
    ("body_too_large", Outcome::Refused),
    ("election_invalid", Outcome::Refused),
    ("election_unknown", Outcome::Refused),
    ("forbidden", Outcome::Refused),
    ("host_not_allowed", Outcome::Refused),
    ("internal", Outcome::Refused),
    ("invalid_request", Outcome::Refused),
    ("lease_lost", Outcome::Lost),
    ("lease_unknown", Outcome::Lost),
    ("lock_held", Outcome::Held),
    ("method_not_allowed", Outcome::Refused),
    ("name_collision", Outcome::Refused),
    ("not_found", Outcome::Refused),
    ("not_installed", Outcome::Lasting),
    ("object_refused", Outcome::Refused),
    ("object_unreadable", Outcome::Refused),
    ("origin_refused", Outcome::Refused),
    ("quota_exceeded", Outcome::Refused),
    ("request_id_reused", Outcome::Refused),
    ("request_timeout", Outcome::Passing),
    ("resource_invalid", Outcome::Refused),
    ("resuming", Outcome::Passing),
    ("session_lost", Outcome::Passing),
    ("shutting_down", Outcome::Lasting),
    ("stale_token", Outcome::Refused),
    ("store_unavailable", Outcome::Passing),
    ("store_went_back", Outcome::Lasting),
    ("token_current", Outcome::Refused),
    ("token_exhausted", Outcome::Refused),
    ("too_many_leases", Outcome::Passing),
    ("too_many_streams", Outcome::Passing),
    ("too_many_waiting", Outcome::Passing),
    ("ttl_out_of_range", Outcome::Refused),
    ("unknown_token", Outcome::Refused),
];

/// A request for a lock.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AcquireRequest {
    /// For how many seconds the pod keeps the lock after this lease: acquiring it again in that
    /// time is local, without a write. Another pod that requests it gets it immediately. 0: not
    /// kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_seconds: Option<u64>,
    /// Informational key-value pairs: at most 16 entries of printable text, with keys of at most 63
    /// and values of at most 256 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// The caller's name, informational: printable text of at most 256 bytes; default: the pod's
    /// name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_id: Option<String>,
    /// An idempotency key, 1 to 128 printable ASCII characters; it counts together with `resource`
    /// and `ownerId`. A repeated request returns the same lease, or 410 `lease_lost` if that has
    /// ended (for 10 minutes after its end): a late repetition acquires nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request_id: Option<String>,
    /// What to lock: printable text of at most 512 bytes.
    pub(crate) resource: String,
    /// After how many seconds without a renewal the agent releases the lock.
    pub(crate) ttl_seconds: u64,
    /// How long to wait in the queue while the lock is held; 0: one attempt. Set the client's own
    /// timeout a few seconds higher. A caller that disconnects is removed from the queue; with a
    /// requestId its queue entry is kept for 10 seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait_seconds: Option<u64>,
}

/// The lead of an election for as long as a connection.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CandidacyRequest {
    /// How many seconds after its start the term ends in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_hold_seconds: Option<u64>,
    /// As in acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// The candidate's name, informational: printable text of at most 256 bytes; default: the pod's
    /// name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_id: Option<String>,
    /// Whether this candidate is queued before all candidates that are not preferred: it gets the
    /// lead at the next term. A current leader is not interrupted. Of several candidates in one
    /// pod, the first one decides. A full queue stays full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preferred: Option<bool>,
}

/// Work that has succeeded.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CompleteRequest {
    /// The name of the work: 1 to 128 printable ASCII characters.
    pub(crate) key: String,
}

/// A lock for as long as a connection.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HoldRequest {
    /// As in acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keep_seconds: Option<u64>,
    /// How many seconds after the grant the lease ends in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_hold_seconds: Option<u64>,
    /// As in acquire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// The caller's name, informational: printable text of at most 256 bytes; default: the pod's
    /// name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner_id: Option<String>,
    /// What to lock: printable text of at most 512 bytes.
    pub(crate) resource: String,
    /// How long to wait in the queue while the lock is held; 0: one attempt; default: without a
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wait_seconds: Option<u64>,
}

/// An acquired lock.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Acquired {
    /// `validForMs` as a wall-clock time, informational.
    pub(crate) expires_at: String,
    /// Larger than every earlier token of this resource. Send it with every write to the guarded
    /// resource, which must reject smaller tokens.
    pub(crate) fencing_token: u64,
    /// Identifies the lease in renew and release.
    pub(crate) lease_id: String,
    /// The owner's name.
    pub(crate) owner_id: String,
    /// A person requested the release of this lease; the app decides. Absent without a request.
    pub(crate) release_requested: Option<ReleaseRequested>,
    /// After how many milliseconds to renew, counted from when the app sent this request.
    pub(crate) renew_after_ms: u64,
    /// The locked resource.
    pub(crate) resource: String,
    /// For how many milliseconds the app may act, counted from when it sent this request.
    pub(crate) valid_for_ms: u64,
    /// Always true.
    pub(crate) acquired: bool,
    /// The keys under which guarded work has succeeded, oldest first; see completeWork.
    pub(crate) completed: Vec<String>,
    /// Whether this repeats the response to an earlier request with the same `requestId`.
    pub(crate) replayed: bool,
}

/// The lease is still valid.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct HeartbeatEvent {
    /// The same as a wall-clock time, informational.
    pub(crate) expires_at: String,
    /// Its fencing token.
    pub(crate) fencing_token: u64,
    /// The lease.
    pub(crate) lease_id: String,
    /// For how many milliseconds the app may act, counted from when it sent the request that opened
    /// this stream. It grows from event to event, so an event that is read late is still correct.
    pub(crate) valid_for_ms: u64,
}

/// The holder of a lock.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Holder {
    /// The first token of its grant.
    pub(crate) fencing_token: Option<u64>,
    /// When the lock was granted, by the clock of the holder's pod.
    pub(crate) held_since: String,
    /// The metadata that the app gave.
    pub(crate) metadata: BTreeMap<String, String>,
    /// The name that the app gave.
    pub(crate) owner_id: String,
    /// The holder's pod.
    pub(crate) pod: String,
}

/// A lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Lease {
    /// `validForMs` as a wall-clock time, informational.
    pub(crate) expires_at: String,
    /// Larger than every earlier token of this resource. Send it with every write to the guarded
    /// resource, which must reject smaller tokens.
    pub(crate) fencing_token: u64,
    /// Identifies the lease in renew and release.
    pub(crate) lease_id: String,
    /// The owner's name.
    pub(crate) owner_id: String,
    /// A person requested the release of this lease; the app decides. Absent without a request.
    pub(crate) release_requested: Option<ReleaseRequested>,
    /// After how many milliseconds to renew, counted from when the app sent this request.
    pub(crate) renew_after_ms: u64,
    /// The locked resource.
    pub(crate) resource: String,
    /// For how many milliseconds the app may act, counted from when it sent this request.
    pub(crate) valid_for_ms: u64,
}

/// The lease has ended. The last event.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct LostEvent {
    /// The same as text.
    pub(crate) detail: String,
    /// The lease.
    pub(crate) lease_id: String,
    /// The reason, as in 410 `lease_lost`; `max_hold` if `maxHoldSeconds` have passed.
    pub(crate) reason: String,
}

/// A request to release the lease.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReleaseRequested {
    /// The person who requested it.
    pub(crate) actor: String,
    /// The reason that the person gave.
    pub(crate) message: String,
    /// Always `person_asked`, for now.
    pub(crate) reason: String,
}

/// The app should finish and release the lock.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ReleaseRequestedEvent {
    /// The same as a wall-clock time, informational.
    pub(crate) expires_at: String,
    /// Its fencing token.
    pub(crate) fencing_token: u64,
    /// The lease.
    pub(crate) lease_id: String,
    /// For how many milliseconds the app may act, counted from when it sent the request that opened
    /// this stream. It grows from event to event, so an event that is read late is still correct.
    pub(crate) valid_for_ms: u64,
    /// The person, for `person_asked`.
    pub(crate) actor: Option<String>,
    /// The reason that the person gave.
    pub(crate) message: Option<String>,
    /// `agent_stopping`: the agent is stopping, and `validForMs` does not grow any more.
    /// `max_hold`: `maxHoldSeconds` have nearly passed. `person_asked`: a person requested it, and
    /// the app decides. New reasons may be added.
    pub(crate) reason: String,
}

//! Converts the agent's errors into problems, each with a sentence that says what to do.
//!
//! The store's message is passed on if it names what is missing. It is never parsed for a decision,
//! only to name the missing permission.

use super::error::{Code, Problem};
use super::held::Refusal;
use crate::agent::{
    AcquireError, CompleteError, EVENT_PAUSE, ElectionError, EventOutcome, EventsError, HoldError,
    LeaseError, QueryError, ReportError, TooManyStreams,
};
use crate::protocol::lease::Loss;
use crate::protocol::token::Token;
use crate::store::StoreError;

impl From<AcquireError> for Problem {
    fn from(error: AcquireError) -> Self {
        let words = error.to_string();
        match error {
            AcquireError::TooManyLeases { limit } => Self::new(
                Code::TooManyLeases,
                format!("{words}; release leases that are no longer needed, then retry"),
            )
            .with("limit", limit),
            AcquireError::TooManyWaiting { limit } => Self::new(
                Code::TooManyWaiting,
                format!(
                    "{words}; retry later without waitSeconds, or let one caller take the lock for \
                     several tasks"
                ),
            )
            .with("limit", limit),
            AcquireError::TooManyStreams(error) => error.into(),
            AcquireError::RequestIdReused => Self::new(
                Code::RequestIdReused,
                format!("{words}; send a new requestId, or repeat the request unchanged"),
            ),
            AcquireError::RequestEnded { lease, why } => Self::new(
                Code::LeaseLost,
                format!("{words}: {why}; use a new requestId to take the lock again"),
            )
            .with("leaseId", lease.to_string())
            .with("reason", reason(why)),
            AcquireError::Resuming => Self::new(
                Code::Resuming,
                format!("{words}; nothing was acquired, retry after Retry-After"),
            ),
            AcquireError::ShuttingDown => Self::new(
                Code::ShuttingDown,
                format!("{words}; acquire from another pod, or after this one has restarted"),
            ),
            AcquireError::TokenExhausted(_) => Self::new(Code::TokenExhausted, words),
            AcquireError::StoreWentBack(_) => Self::new(Code::StoreWentBack, words),
            AcquireError::QueuedByAnotherPod { .. } => Self::new(Code::LockHeld, words),
            AcquireError::GrantEnded => unavailable(&words),
            AcquireError::SessionLost => Self::new(
                Code::SessionLost,
                format!("{words}; nothing was acquired, retry"),
            ),
            AcquireError::ReportedEnded { .. } => Self::new(
                Code::SessionLost,
                format!("{words}; see `kubectl get pod --output yaml`, or use another pod"),
            ),
            AcquireError::Store(error) => error.into(),
        }
    }
}

/// Returns the problem of a hold that ended without a lease, of a lock in a namespace.
pub(super) fn hold_ended(error: HoldError, namespace: Option<&str>) -> Problem {
    match error {
        HoldError::Held {
            resource,
            held,
            wait,
            at,
        } => Refusal {
            resource: &resource,
            held: &held,
            waited: wait,
            now: at,
            namespace,
        }
        .problem(),
        HoldError::Acquire(error) => error.into(),
    }
}

impl From<TooManyStreams> for Problem {
    fn from(error: TooManyStreams) -> Self {
        Self::new(
            Code::TooManyStreams,
            format!(
                "{error}; close unused streams, or use acquire and renew, which keep no \
                 connection open"
            ),
        )
        .with("limit", error.limit)
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Self {
        match error {
            EventsError::Lease(error) => error.into(),
            EventsError::TooManyStreams(error) => error.into(),
        }
    }
}

impl From<ElectionError> for Problem {
    fn from(error: ElectionError) -> Self {
        let words = error.to_string();
        match error {
            ElectionError::Unknown(name) => Self::new(
                Code::ElectionUnknown,
                format!(
                    "{words}; start the sidecars of its candidates with --elect {name}, or send \
                     POST /v1/elections/{name}/candidacy"
                ),
            )
            .with("resource", name.resource().to_string()),
            ElectionError::Query(error) => error.into(),
            ElectionError::TooManyStreams(error) => error.into(),
        }
    }
}

impl From<CompleteError> for Problem {
    fn from(error: CompleteError) -> Self {
        match error {
            CompleteError::Lease(error) => error.into(),
            CompleteError::Store(error)
                if error.is_transient() || error == StoreError::Conflict =>
            {
                Self::new(
                    Code::StoreUnavailable,
                    format!("{error}; the key may not be recorded, repeat after Retry-After"),
                )
            }
            CompleteError::Store(error) => error.into(),
        }
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Store(error) => error.into(),
            QueryError::StoreWentBack(error) => Self::new(Code::StoreWentBack, error.to_string()),
        }
    }
}

impl From<ReportError> for Problem {
    fn from(error: ReportError) -> Self {
        match error {
            ReportError::Current => Self::new(
                Code::TokenCurrent,
                "this token belongs to the current grant, and no later lease of it is known, so nothing was counted: \
                 send the newest token that the guarded resource has seen as latestFencingToken, and check that it \
                 compares only tokens of this lock",
            ),
            ReportError::Unknown { latest } => Self::new(
                Code::UnknownToken,
                "this token was not granted for this resource, or the lock object was deleted since, so nothing was \
                 counted; check that resource and token belong together",
            )
            .with("latestFencingToken", latest.get()),
            ReportError::Query(error) => error.into(),
        }
    }
}

/// Returns why a report has no Event; `None` if it has one.
pub(super) fn missing_event(event: &EventOutcome) -> Option<String> {
    let why = match event {
        EventOutcome::Exists => return None,
        EventOutcome::Limited => format!(
            "the last attempt to write one was less than {} s ago",
            EVENT_PAUSE.as_secs()
        ),
        EventOutcome::NoCluster => "this agent uses no cluster".to_owned(),
        EventOutcome::Failed(error @ StoreError::Denied(_)) => {
            format!("{error}; set the value sidecar.refusalEvents of the chart")
        }
        EventOutcome::Failed(error) => error.to_string(),
    };
    Some(format!("the report was counted, without an Event: {why}"))
}

impl From<LeaseError> for Problem {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Unknown => Self::new(
                Code::LeaseUnknown,
                "lease not found: this agent did not grant it, or it ended more than 10 minutes ago; \
                 treat the lock as lost and acquire it again",
            ),
            LeaseError::Resuming => Self::new(
                Code::Resuming,
                format!(
                    "{error}; act only until the validForMs of an earlier response, and retry after \
                     Retry-After"
                ),
            ),
            LeaseError::Released => Self::new(
                Code::LeaseLost,
                "the lease was released by its app; acquire the lock again before you act",
            )
            .with("reason", reason(error)),
            LeaseError::Lost(loss) => Self::new(
                Code::LeaseLost,
                format!(
                    "{}; stop the guarded work and acquire the lock again",
                    loss_detail(loss)
                ),
            )
            .with("reason", reason(error)),
        }
    }
}

/// Returns how a lease ended, as a machine-readable value.
const fn reason(error: LeaseError) -> &'static str {
    match error {
        LeaseError::Unknown => "unknown",
        LeaseError::Resuming => "resuming",
        LeaseError::Released => "released",
        LeaseError::Lost(loss) => loss.as_str(),
    }
}

pub(super) const fn loss_detail(loss: Loss) -> &'static str {
    match loss {
        Loss::SessionExpired => {
            "the lease was lost: the agent could not renew its session with the API server in time"
        }
        Loss::SessionRevoked => "the lease was lost: the agent's session was revoked",
        Loss::GrantGone => "the lease was lost: the lock was taken over, deleted or edited",
        Loss::ForceReleased => {
            "the lease was lost: it was ended by a force release; the lock's status.incidents name the \
             actor and the reason"
        }
        Loss::StoreRestored => {
            "the lease was lost: the API server's store was restored from a backup, which may not \
             contain it"
        }
        Loss::AgentStopping => "the lease was lost: the agent is stopping and released the lock",
        Loss::AgentRestarted => "the lease was lost: the agent restarted and could not resume it",
        Loss::MaxHold => "the lease ended: its maxHoldSeconds have passed",
        Loss::AppSilent => "the lease was lost: it was not renewed within its own ttlSeconds",
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Unauthenticated(words) => Self::new(Code::Forbidden, words),
            StoreError::Denied(words) | StoreError::DeniedByPolicy(words) => forbidden(&words),
            StoreError::QuotaExceeded(words) => Self::new(
                Code::QuotaExceeded,
                format!(
                    "the API server answered: {words}; raise the namespace's ResourceQuota or delete \
                     unused locks"
                ),
            ),
            StoreError::Collision { name, found } => Self::new(
                Code::NameCollision,
                format!(
                    "the lock object {name} guards another resource, {found:?}; delete that \
                     object if it was created by hand, or use another resource"
                ),
            )
            .with("object", name)
            .with("guards", found),
            StoreError::ContinueTokenExpired(words) => Self::new(
                Code::InvalidRequest,
                format!(
                    "the continue token expired (the API server answered: {words}); list again \
                     without continue"
                ),
            ),
            StoreError::Unreadable(_) => Self::new(
                Code::ObjectUnreadable,
                format!(
                    "{message}; inspect it with `kubectl get dlock -o yaml`, then fix or delete it"
                ),
            ),
            StoreError::Invalid(_) => Self::new(
                Code::ObjectRefused,
                format!(
                    "{message}; check that the installed CRDs are at least as new as this agent \
                     (`leasehold crd | kubectl apply --server-side -f -`)"
                ),
            ),
            StoreError::NotInstalled(words) => Self::new(Code::NotInstalled, words),
            StoreError::NotFound(words) => {
                unavailable(&format!("the API server answered: {words}"))
            }
            StoreError::Conflict => {
                unavailable("conflict: other clients write this lock at the same time")
            }
            StoreError::Unavailable(_)
            | StoreError::Ambiguous(_)
            | StoreError::WatchExpired(_)
            | StoreError::QueueFull => unavailable(&message),
        }
    }
}

/// Whatever the outcome in the store, the agent releases what it may have acquired.
fn unavailable(why: &str) -> Problem {
    Problem::new(
        Code::StoreUnavailable,
        format!("{why}; nothing was acquired, retry after Retry-After"),
    )
}

fn forbidden(words: &str) -> Problem {
    let problem = |remedy: &str| {
        let detail = format!("the API server answered: {words}; {remedy}");
        Problem::new(Code::Forbidden, detail)
    };
    match missing_right(words) {
        Some(right) => problem(
            "bind this ServiceAccount or user to the ClusterRole leasehold-sidecar with a RoleBinding in \
             that namespace",
        )
        .with("missingRight", right),
        None => problem("if this does not name a fix, contact the cluster administrator"),
    }
}

/// Returns the permission that RBAC's message names: `… cannot create resource "distributedlocks"
/// in API group "leasehold.dev" in the namespace …`. The message of an admission policy has none.
fn missing_right(words: &str) -> Option<String> {
    let (verb, rest) = words.split_once(" cannot ")?.1.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once('"')?;
    let group = rest
        .split_once("API group \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("", |(group, _)| group);
    Some(match group {
        "" => format!("{verb} {resource}"),
        group => format!("{verb} {resource} in {group}"),
    })
}

/// Returns the problem for an earlier token, or for a free lock.
pub(super) fn stale_token(latest: Token) -> Problem {
    not_current(
        Code::StaleToken,
        "the lock is free or was granted again; reject the write that carries this token",
        latest,
    )
}

/// Returns the problem for a token that was never granted.
pub(super) fn unknown_token(latest: Token) -> Problem {
    not_current(
        Code::UnknownToken,
        "this token was not granted for this resource; check that resource and token belong \
         together, and reject the write that carries it",
        latest,
    )
}

fn not_current(code: Code, words: &str, latest: Token) -> Problem {
    Problem::new(code, words)
        .with("current", false)
        .with("latestFencingToken", latest.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_right_is_taken_from_the_rbac_message() {
        let words = "distributedlocks.leasehold.dev is forbidden: User \"u\" cannot create \
                     resource \"distributedlocks\" in API group \"leasehold.dev\" in the \
                     namespace \"team-a\"";
        let right = "create distributedlocks in leasehold.dev";
        assert_eq!(missing_right(words).as_deref(), Some(right));
        assert!(
            forbidden(words).document()["detail"]
                .as_str()
                .unwrap()
                .contains(words)
        );
    }

    #[test]
    fn message_of_a_policy_is_passed_on_unchanged() {
        let words = "ValidatingAdmissionPolicy 'leasehold-identity' denied request: not your pod";
        assert_eq!(missing_right(words), None);
        assert!(
            forbidden(words).document()["detail"]
                .as_str()
                .unwrap()
                .contains(words)
        );
    }

    #[test]
    fn an_unclear_answer_is_an_outage_to_the_app() {
        for error in [
            StoreError::Ambiguous("no answer within 900 ms".into()),
            StoreError::Unavailable("connection refused".into()),
            StoreError::Conflict,
        ] {
            assert_eq!(Problem::from(error).code(), Code::StoreUnavailable);
        }
    }
}

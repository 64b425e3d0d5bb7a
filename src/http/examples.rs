//! Examples of all problems, created by the same code as the real ones.

use std::time::Duration;

use serde_json::Value;

use super::error::{Code, Problem};
use super::held::Refusal;
use super::{body, checks, explain, guard, internal};
use crate::agent::{
    AcquireError, ElectionError, HeldView, HolderView, LeaseError, ReportError, Silence,
    TooManyStreams, WaiterView,
};
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{OwnerId, Resource};
use crate::protocol::lease::Loss;
use crate::protocol::time::{Moment, WallTime};
use crate::protocol::token::{MAX_BASE, Revision, StoreWentBack, Token, TokenExhausted};
use crate::store::StoreError;

/// 2026-04-01T00:00:00Z.
const SINCE: WallTime = WallTime(1_775_001_600_000_000);

/// Returns an example of every problem document: one of each code, and one of each way to lose a lease.
#[must_use]
pub fn all() -> Vec<Value> {
    let lost = |loss| Problem::from(LeaseError::Lost(loss));
    let of_codes = Code::ALL.into_iter().map(of);
    let of_losses = Loss::ALL.into_iter().map(lost);
    of_codes
        .chain(of_losses)
        .map(|problem| problem.document())
        .collect()
}

/// Returns an example of a problem with this code.
pub(super) fn of(code: Code) -> Problem {
    request_example(code)
        .or_else(|| lease_example(code))
        .unwrap_or_else(|| store_example(code))
}

fn request_example(code: Code) -> Option<Problem> {
    Some(match code {
        Code::InvalidRequest => Problem::new(
            code,
            "in the body: missing field `ttlSeconds` at line 1 column 17; see /openapi.json",
        ),
        Code::ResourceInvalid => match Resource::parse("") {
            Ok(_) => return None,
            Err(error) => Problem::new(code, error.to_string()),
        },
        Code::ElectionInvalid => checks::election("Billing Worker").err()?,
        Code::TtlOutOfRange => checks::ttl(&0.into()).err()?,
        Code::HostNotAllowed => guard::host_not_allowed(),
        Code::OriginRefused => guard::origin_refused(),
        Code::NotFound => super::path_not_found("/v1/lock"),
        Code::MethodNotAllowed => super::disallowed_method(),
        Code::RequestTimeout => body::body_timeout(),
        Code::BodyTooLarge => body::body_too_large(),
        Code::Internal => internal(),
        _ => return None,
    })
}

fn lease_example(code: Code) -> Option<Problem> {
    Some(match code {
        Code::LockHeld => lock_held()?,
        Code::LeaseUnknown => LeaseError::Unknown.into(),
        Code::LeaseLost => LeaseError::Lost(Loss::SessionExpired).into(),
        Code::ElectionUnknown => {
            let name = ElectionName::parse("billing-worker").ok()?;
            ElectionError::Unknown(name).into()
        }
        Code::StaleToken => explain::stale_token(Token::from_raw(1_842_000)),
        Code::UnknownToken => explain::unknown_token(Token::from_raw(1_842_000)),
        Code::TokenCurrent => ReportError::Current.into(),
        Code::RequestIdReused => AcquireError::RequestIdReused.into(),
        Code::TooManyWaiting => AcquireError::TooManyWaiting { limit: 512 }.into(),
        Code::TooManyStreams => TooManyStreams { limit: 512 }.into(),
        Code::TooManyLeases => AcquireError::TooManyLeases { limit: 10_000 }.into(),
        Code::SessionLost => AcquireError::SessionLost.into(),
        Code::Resuming => LeaseError::Resuming.into(),
        Code::ShuttingDown => AcquireError::ShuttingDown.into(),
        _ => return None,
    })
}

fn store_example(code: Code) -> Problem {
    let error = match code {
        Code::Forbidden => StoreError::Denied(
            "distributedlocks.leasehold.dev is forbidden: User \
             \"system:serviceaccount:team-a:billing\" cannot create resource \
             \"distributedlocks\" in API group \"leasehold.dev\" in the namespace \"team-a\""
                .into(),
        ),
        Code::QuotaExceeded => StoreError::QuotaExceeded(
            "exceeded quota: locks, requested: count/distributedlocks.leasehold.dev=1, used: \
             count/distributedlocks.leasehold.dev=100, limited: \
             count/distributedlocks.leasehold.dev=100"
                .into(),
        ),
        Code::NameCollision => StoreError::Collision {
            name: "billing-close".into(),
            found: "billing/close".into(),
        },
        Code::ObjectUnreadable => StoreError::Unreadable("status.token is not a number".into()),
        Code::ObjectRefused => {
            StoreError::Invalid("status.holder.ownerId: Too long: may not be more than 256".into())
        }
        Code::TokenExhausted => {
            let needed = u128::from(MAX_BASE) + 1;
            let by_last_token = false;
            return AcquireError::from(TokenExhausted {
                needed,
                by_last_token,
            })
            .into();
        }
        Code::NotInstalled => StoreError::NotInstalled(
            "the namespace team-a does not exist; create it (`kubectl create namespace team-a`), or \
             give the --namespace of the locks"
                .into(),
        ),
        Code::StoreWentBack => {
            let (seen, listed) = (Revision(24_400), Revision(24_289));
            return AcquireError::from(StoreWentBack { seen, listed }).into();
        }
        _ => StoreError::Unavailable("connection refused".into()),
    };
    error.into()
}

/// A try of a caller in another pod, while one waits.
fn lock_held() -> Option<Problem> {
    let resource = Resource::parse("tenant_123:billing-close:2026-04").ok()?;
    let refusal = Refusal {
        resource: &resource,
        held: &held(),
        waited: Duration::ZERO,
        now: NOW,
        namespace: Some("team-a"),
    };
    Some(refusal.problem())
}

/// The time of the examples, by the clock of the agent.
pub(super) const NOW: Moment = Moment::since_boot(Duration::from_secs(106));

/// Returns a lock that a caller does not get.
pub(super) fn held() -> HeldView {
    let seconds = |seconds| Moment::since_boot(Duration::from_secs(seconds));
    HeldView {
        holder: holder(),
        queue_length: 1,
        position: None,
        ahead: vec![WaiterView {
            owner: OwnerId::from("worker-4"),
            pod: "billing-6d5f-k8s2p".into(),
            queued_at: WallTime(SINCE.0 + 60_000_000),
        }],
        silence: Some(Silence {
            since: seconds(100),
            until: seconds(115),
        }),
        hint: None,
    }
}

fn holder() -> HolderView {
    HolderView {
        owner: OwnerId::from("worker-3"),
        pod: "billing-6d5f-x2x9k".into(),
        token: Token::from_raw(1_842_000),
        acquired_at: SINCE,
        kept: false,
        metadata: [("job".into(), "close-2026-04".into())].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_example() {
        for code in Code::ALL {
            assert_eq!(of(code).code(), code);
        }
    }
}

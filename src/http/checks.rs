//! Validates the fields of requests. Every refusal names the field, its bound and what to do.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Number;

use super::dto::{AcquireBody, CandidacyBody, HoldBody, ListQuery, RefusalBody, VerifyBody};
use super::error::{Code, Problem};
use crate::agent::{AcquireRequest, Life};
use crate::protocol::completed::CompletionKey;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::{
    METADATA_KEY_MAX_BYTES, METADATA_MAX_ENTRIES, METADATA_VALUE_MAX_BYTES, OWNER_ID_MAX_BYTES,
    OwnerId, RESOURCE_MAX_BYTES, Resource, is_blank, is_printable,
};
use crate::protocol::token::Token;
use crate::store::cluster::{GUARD_MAX_BYTES, RefusedWrite};

const TTL_MAX_SECONDS: u64 = 86_400;
const WAIT_MAX_SECONDS: u64 = 240;
const KEEP_MAX_SECONDS: u64 = 3_600;
const MAX_HOLD_DEFAULT: Duration = Duration::from_secs(86_400);
/// For how long a hold waits, and for how long it holds, at most.
const HOLD_MAX_SECONDS: u64 = 604_800;
const REQUEST_ID_MAX_BYTES: usize = 128;
const LIST_LIMIT_DEFAULT: u32 = 100;
const LIST_LIMIT_MAX: u32 = 500;
const TOKENS_MAX: usize = 100;

/// Returns a valid request for a lock. `pod` is the default owner.
pub(super) fn acquire(body: AcquireBody, pod: &str) -> Result<AcquireRequest, Problem> {
    Ok(AcquireRequest {
        resource: resource(&body.resource)?,
        owner: owner(body.owner_id.as_deref().unwrap_or(pod))?,
        life: Life::Ttl(ttl(&body.ttl_seconds)?),
        wait: wait(body.wait_seconds.as_ref())?,
        keep: keep(body.keep_seconds.as_ref())?,
        metadata: metadata(body.metadata.unwrap_or_default())?,
        preferred: false,
        request_id: body.request_id.map(request_id).transpose()?,
    })
}

/// Returns a valid request for a lock that a connection holds.
pub(super) fn hold(body: HoldBody, pod: &str) -> Result<AcquireRequest, Problem> {
    Ok(AcquireRequest {
        resource: resource(&body.resource)?,
        owner: owner(body.owner_id.as_deref().unwrap_or(pod))?,
        life: Life::Connection {
            max_hold: max_hold(body.max_hold_seconds.as_ref())?,
        },
        wait: hold_wait(body.wait_seconds.as_ref())?,
        keep: keep(body.keep_seconds.as_ref())?,
        metadata: metadata(body.metadata.unwrap_or_default())?,
        preferred: false,
        request_id: None,
    })
}

/// Returns a valid request for the lead of an election, as long as a connection.
pub(super) fn candidacy(
    election: &ElectionName,
    body: CandidacyBody,
    pod: &str,
) -> Result<AcquireRequest, Problem> {
    let hold_body = HoldBody {
        resource: election.resource().to_string(),
        owner_id: body.owner_id,
        max_hold_seconds: body.max_hold_seconds,
        wait_seconds: None,
        keep_seconds: None,
        metadata: body.metadata,
    };
    Ok(AcquireRequest {
        preferred: body.preferred.unwrap_or_default(),
        ..hold(hold_body, pod)?
    })
}

/// Returns the name of an election.
pub(super) fn election(text: &str) -> Result<ElectionName, Problem> {
    ElectionName::parse(text).map_err(|error| {
        let detail = format!("{error}; this one is {text:?}");
        Problem::new(Code::ElectionInvalid, detail)
    })
}

/// Returns a resource.
pub(super) fn resource(text: &str) -> Result<Resource, Problem> {
    Resource::parse(text).map_err(|error| Problem::new(Code::ResourceInvalid, error.to_string()))
}

/// Returns the name of some work.
pub(super) fn completion_key(text: &str) -> Result<CompletionKey, Problem> {
    CompletionKey::parse(text).map_err(|error| invalid(error.to_string()))
}

/// Returns a fencing token, bounded by the `int64` of the OpenAPI description. Real tokens are far
/// smaller.
pub(super) fn token(number: &Number) -> Result<Token, Problem> {
    whole_token(number).ok_or_else(|| {
        invalid(format!(
            "fencingToken is {number}; send the fencingToken of the lease"
        ))
    })
}

fn whole_token(number: &Number) -> Option<Token> {
    let token = whole(number).filter(|token| i64::try_from(*token).is_ok());
    token.map(Token::from_raw)
}

/// Returns the report of a refused write.
pub(super) fn refusal(body: RefusalBody) -> Result<RefusedWrite, Problem> {
    let latest = body.latest_fencing_token.as_ref().map(|number| {
        whole_token(number).ok_or_else(|| {
            invalid(format!(
                "latestFencingToken is {number}; send the newest token that the guarded resource has seen, or omit it"
            ))
        })
    });
    Ok(RefusedWrite {
        resource: resource(&body.resource)?,
        token: token(&body.fencing_token)?,
        latest: latest.transpose()?,
        guard: body.guard.map(guard).transpose()?,
    })
}

fn guard(text: String) -> Result<Arc<str>, Problem> {
    if text.len() <= GUARD_MAX_BYTES && is_printable(&text) && !is_blank(&text) {
        return Ok(text.into());
    }
    Err(invalid(format!(
        "guard must be 1 to {GUARD_MAX_BYTES} bytes of printable, visible text without control characters; change it \
         or omit it"
    )))
}

/// Returns the resources and tokens of a batch.
pub(super) fn tokens(batch: &[VerifyBody]) -> Result<Vec<(Resource, Token)>, Problem> {
    if !(1..=TOKENS_MAX).contains(&batch.len()) {
        return Err(invalid(format!(
            "tokens has {} entries; send 1 to {TOKENS_MAX}",
            batch.len()
        )));
    }
    let entries = batch.iter().enumerate().map(|(index, entry)| {
        let checked = resource(&entry.resource)
            .and_then(|resource| Ok((resource, token(&entry.fencing_token)?)));
        checked.map_err(|problem| problem.of(&format!("tokens[{index}]")))
    });
    entries.collect()
}

/// Returns a whole number, also if a client writes it as `30.0`.
fn whole(number: &Number) -> Option<u64> {
    let rounded = || number.as_f64()?.to_string().parse().ok();
    number.as_u64().or_else(rounded)
}

/// Returns the TTL of a lease.
pub(super) fn ttl(seconds: &Number) -> Result<Duration, Problem> {
    match whole(seconds) {
        Some(whole @ 1..=TTL_MAX_SECONDS) => Ok(Duration::from_secs(whole)),
        _ => Err(Problem::new(
            Code::TtlOutOfRange,
            format!(
                "ttlSeconds is {seconds}; send a whole number of seconds from 1 to \
                 {TTL_MAX_SECONDS}, and renew while the work continues"
            ),
        )
        .with("minimum", 1)
        .with("maximum", TTL_MAX_SECONDS)),
    }
}

/// Returns how long to wait in the queue; default: 0.
fn wait(seconds: Option<&Number>) -> Result<Duration, Problem> {
    let advice = "and send the request again to wait longer";
    seconds.map_or(Ok(Duration::ZERO), |seconds| {
        duration("waitSeconds", seconds, 0..=WAIT_MAX_SECONDS, advice)
    })
}

/// Returns how long a hold waits in the queue; default: without a limit.
fn hold_wait(seconds: Option<&Number>) -> Result<Duration, Problem> {
    let advice = "or omit it to wait without a limit";
    seconds.map_or(Ok(Duration::MAX), |seconds| {
        duration("waitSeconds", seconds, 0..=HOLD_MAX_SECONDS, advice)
    })
}

/// Returns how long a connection holds the lock at most; default: a day.
fn max_hold(seconds: Option<&Number>) -> Result<Duration, Problem> {
    let advice = "after which the lease ends in any case";
    seconds.map_or(Ok(MAX_HOLD_DEFAULT), |seconds| {
        duration("maxHoldSeconds", seconds, 1..=HOLD_MAX_SECONDS, advice)
    })
}

/// Returns how long to keep the grant after the lease; default: 0.
fn keep(seconds: Option<&Number>) -> Result<Duration, Problem> {
    let advice = "for which the pod keeps the lock after its release";
    seconds.map_or(Ok(Duration::ZERO), |seconds| {
        duration("keepSeconds", seconds, 0..=KEEP_MAX_SECONDS, advice)
    })
}

/// Returns a number of seconds within its bounds.
fn duration(
    field: &str,
    seconds: &Number,
    bounds: RangeInclusive<u64>,
    advice: &str,
) -> Result<Duration, Problem> {
    match whole(seconds).filter(|whole| bounds.contains(whole)) {
        Some(whole) => Ok(Duration::from_secs(whole)),
        None => Err(invalid(format!(
            "{field} is {seconds}; send a whole number of seconds from {} to {}, {advice}",
            bounds.start(),
            bounds.end()
        ))),
    }
}

fn owner(text: &str) -> Result<OwnerId, Problem> {
    if text.len() <= OWNER_ID_MAX_BYTES && is_printable(text) && !is_blank(text) {
        return Ok(OwnerId::from(text));
    }
    Err(invalid(format!(
        "ownerId must be 1 to {OWNER_ID_MAX_BYTES} bytes of printable, visible text without \
         control characters; change it or omit it"
    )))
}

fn request_id(text: String) -> Result<String, Problem> {
    let printable = text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    if (1..=REQUEST_ID_MAX_BYTES).contains(&text.len()) && printable {
        return Ok(text);
    }
    Err(invalid(format!(
        "requestId must be 1 to {REQUEST_ID_MAX_BYTES} printable ASCII characters, such as \
         a UUID"
    )))
}

fn metadata(entries: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Problem> {
    if entries.len() > METADATA_MAX_ENTRIES {
        return Err(invalid(format!(
            "metadata has {} entries; send at most {METADATA_MAX_ENTRIES}",
            entries.len()
        )));
    }
    if let Some(key) = entries
        .keys()
        .find(|key| key.is_empty() || key.len() > METADATA_KEY_MAX_BYTES)
    {
        return Err(invalid(format!(
            "the metadata key {key:?} has {} bytes; use 1 to {METADATA_KEY_MAX_BYTES}",
            key.len()
        )));
    }
    if let Some((key, value)) = entries
        .iter()
        .find(|(_, value)| value.len() > METADATA_VALUE_MAX_BYTES)
    {
        return Err(invalid(format!(
            "the metadata value of {key:?} has {} bytes; use at most {METADATA_VALUE_MAX_BYTES}",
            value.len()
        )));
    }
    // Users read them in terminals, which interpret control characters.
    if let Some((key, _)) = entries
        .iter()
        .find(|(key, value)| !is_printable(key) || !is_printable(value))
    {
        return Err(invalid(format!(
            "the metadata entry {key:?} has control characters; use printable text (no tabs or \
             line breaks)"
        )));
    }
    Ok(entries)
}

/// Returns the page size of a list.
pub(super) fn list_limit(query: &ListQuery) -> Result<u32, Problem> {
    if query.prefix.len() > RESOURCE_MAX_BYTES {
        return Err(invalid(format!(
            "prefix has {} bytes; no resource has more than {RESOURCE_MAX_BYTES}",
            query.prefix.len()
        )));
    }
    let Some(text) = &query.limit else {
        return Ok(LIST_LIMIT_DEFAULT);
    };
    match text.parse() {
        Ok(limit @ 1..=LIST_LIMIT_MAX) => Ok(limit),
        _ => Err(invalid(format!(
            "limit is {text:?}; send a number from 1 to {LIST_LIMIT_MAX} and go on with `continue`"
        ))),
    }
}

fn invalid(detail: String) -> Problem {
    Problem::new(Code::InvalidRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(change: &Value) -> Result<AcquireRequest, Code> {
        let mut body = json!({"resource": "r", "ttlSeconds": 30});
        let changes = change.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(changes);
        acquire(serde_json::from_value(body).unwrap(), "pod-a").map_err(|problem| problem.code())
    }

    #[test]
    fn owner_id_defaults_to_the_pod_name() {
        let request = check(&json!({})).unwrap();
        assert_eq!(request.owner.as_str(), "pod-a");
        assert_eq!(request.life, Life::Ttl(Duration::from_secs(30)));
    }

    #[test]
    fn hold_lasts_a_day_by_default_and_a_week_at_most() {
        let check = |seconds: Value| {
            let body = json!({"resource": "r", "maxHoldSeconds": seconds});
            let request = hold(serde_json::from_value(body).unwrap(), "pod-a");
            request.map(|r| r.life).map_err(|problem| problem.code())
        };
        let for_seconds = |seconds| Life::Connection {
            max_hold: Duration::from_secs(seconds),
        };
        assert_eq!(check(Value::Null), Ok(for_seconds(86_400)));
        assert_eq!(check(json!(1)), Ok(for_seconds(1)));
        assert_eq!(check(json!(604_800)), Ok(for_seconds(604_800)));
        let kept = json!({"resource": "r", "keepSeconds": 3_601});
        let kept = hold(serde_json::from_value(kept).unwrap(), "pod-a");
        assert_eq!(kept.unwrap_err().code(), Code::InvalidRequest);
        for refused in [json!(0), json!(604_801), json!(-1), json!(1.5)] {
            assert_eq!(
                check(refused.clone()),
                Err(Code::InvalidRequest),
                "{refused}"
            );
        }
    }

    #[test]
    fn hold_waits_without_a_limit_by_default_and_a_week_at_most() {
        let check = |seconds: Value| {
            let body = json!({"resource": "r", "waitSeconds": seconds});
            let request = hold(serde_json::from_value(body).unwrap(), "pod-a");
            request.map(|r| r.wait).map_err(|problem| problem.code())
        };
        assert_eq!(check(Value::Null), Ok(Duration::MAX));
        assert_eq!(check(json!(0)), Ok(Duration::ZERO));
        assert_eq!(check(json!(604_800)), Ok(Duration::from_secs(604_800)));
        for refused in [json!(604_801), json!(-1), json!(1.5)] {
            let code = check(refused.clone());
            assert_eq!(code, Err(Code::InvalidRequest), "{refused}");
        }
    }

    #[test]
    fn the_bounds_themselves_are_allowed() {
        let allowed = [
            json!({"ttlSeconds": 1}),
            json!({"ttlSeconds": 86_400}),
            json!({"ttlSeconds": 30.0}),
            json!({"waitSeconds": null, "metadata": null}),
            json!({"waitSeconds": 0}),
            json!({"waitSeconds": 240}),
            json!({"keepSeconds": 0}),
            json!({"keepSeconds": 3_600}),
            json!({"ownerId": "x".repeat(256)}),
            json!({"requestId": "x".repeat(128)}),
            json!({"metadata": {"k".repeat(63): "v".repeat(256)}}),
            json!({"metadata": {"k": ""}}),
            json!({"ownerId": "日本 worker é"}),
        ];
        for change in allowed {
            assert!(check(&change).is_ok(), "{change}");
        }
    }

    #[test]
    fn values_out_of_bounds_are_refused_with_their_code() {
        let many: BTreeMap<_, _> = (0..17).map(|n| (n.to_string(), "")).collect();
        let refused = [
            (json!({"resource": ""}), Code::ResourceInvalid),
            (json!({"resource": "a\nb"}), Code::ResourceInvalid),
            (json!({"ttlSeconds": 0}), Code::TtlOutOfRange),
            (json!({"ttlSeconds": -1}), Code::TtlOutOfRange),
            (json!({"ttlSeconds": 1.5}), Code::TtlOutOfRange),
            (json!({"ttlSeconds": 86_401}), Code::TtlOutOfRange),
            (json!({"waitSeconds": 241}), Code::InvalidRequest),
            (json!({"waitSeconds": -1}), Code::InvalidRequest),
            (json!({"keepSeconds": 3_601}), Code::InvalidRequest),
            (json!({"keepSeconds": -1}), Code::InvalidRequest),
            (json!({"keepSeconds": 0.5}), Code::InvalidRequest),
            (json!({"ownerId": ""}), Code::InvalidRequest),
            (json!({"ownerId": "x".repeat(257)}), Code::InvalidRequest),
            (json!({"ownerId": "a\tb"}), Code::InvalidRequest),
            (json!({"ownerId": "a\u{202e}b"}), Code::InvalidRequest),
            (json!({"ownerId": "\u{3164}\u{ad} "}), Code::InvalidRequest),
            (json!({"requestId": ""}), Code::InvalidRequest),
            (json!({"requestId": "é"}), Code::InvalidRequest),
            (json!({"requestId": "x".repeat(129)}), Code::InvalidRequest),
            (json!({"metadata": many}), Code::InvalidRequest),
            (json!({"metadata": {"": "v"}}), Code::InvalidRequest),
            (
                json!({"metadata": {"k": "a\u{1b}[2Jb"}}),
                Code::InvalidRequest,
            ),
            (json!({"metadata": {"a\nb": "v"}}), Code::InvalidRequest),
            (
                json!({"metadata": {"k".repeat(64): "v"}}),
                Code::InvalidRequest,
            ),
            (
                json!({"metadata": {"k": "v".repeat(257)}}),
                Code::InvalidRequest,
            ),
        ];
        for (change, code) in refused {
            assert_eq!(check(&change), Err(code), "{change}");
        }
    }
}

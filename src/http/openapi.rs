//! The OpenAPI 3.1 description, generated from the handlers and the problem codes.
//!
//! It is committed as docs/openapi.json, and a test fails on drift.

mod patterns;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use serde_json::json;
use utoipa::openapi::example::Example;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::header::Header;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, Object, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{
    Content, KnownFormat, PathItem, Ref, RefOr, Response as ApiResponse, SchemaFormat,
};
use utoipa::{Modify, OpenApi};

use super::error::{Code, PROBLEM_JSON};
use super::{elections, events, examples, fencing, locks};
use patterns::Patterns;

/// The codes of every call.
const COMMON_CODES: [Code; 3] = [Code::HostNotAllowed, Code::OriginRefused, Code::Internal];
/// The codes of calls with a body.
const BODY_CODES: [Code; 3] = [
    Code::InvalidRequest,
    Code::RequestTimeout,
    Code::BodyTooLarge,
];
/// The codes of calls with a lease.
const LEASE_CODES: [Code; 3] = [Code::LeaseUnknown, Code::LeaseLost, Code::Resuming];
/// The further codes of a completion.
const COMPLETE_CODES: [Code; 6] = [
    Code::Forbidden,
    Code::NameCollision,
    Code::ObjectUnreadable,
    Code::ObjectRefused,
    Code::StoreUnavailable,
    Code::NotInstalled,
];
/// The codes of calls that read the store.
const STORE_CODES: [Code; 6] = [
    Code::InvalidRequest,
    Code::Forbidden,
    Code::ObjectUnreadable,
    Code::StoreUnavailable,
    Code::StoreWentBack,
    Code::NotInstalled,
];
/// The further codes of acquire.
const ACQUIRE_CODES: [Code; 14] = [
    Code::ResourceInvalid,
    Code::TtlOutOfRange,
    Code::QuotaExceeded,
    Code::LockHeld,
    Code::NameCollision,
    Code::LeaseLost,
    Code::RequestIdReused,
    Code::TooManyLeases,
    Code::TooManyWaiting,
    Code::TokenExhausted,
    Code::ObjectRefused,
    Code::SessionLost,
    Code::Resuming,
    Code::ShuttingDown,
];
/// The further codes of hold and candidacy, before the stream starts.
const HOLD_CODES: [Code; 11] = [
    Code::ResourceInvalid,
    Code::QuotaExceeded,
    Code::NameCollision,
    Code::TooManyLeases,
    Code::TooManyWaiting,
    Code::TooManyStreams,
    Code::TokenExhausted,
    Code::ObjectRefused,
    Code::SessionLost,
    Code::Resuming,
    Code::ShuttingDown,
];
/// The further codes of elections.
const ELECTION_CODES: [Code; 3] = [
    Code::ElectionInvalid,
    Code::ElectionUnknown,
    Code::NameCollision,
];
/// The further codes of a token check.
const VERIFY_CODES: [Code; 4] = [
    Code::ResourceInvalid,
    Code::NameCollision,
    Code::StaleToken,
    Code::UnknownToken,
];
/// The further codes of a report of a refused write.
const REFUSAL_CODES: [Code; 4] = [
    Code::ResourceInvalid,
    Code::NameCollision,
    Code::UnknownToken,
    Code::TokenCurrent,
];
/// The further codes of a check of several tokens, which has a result for each token.
const BATCH_CODES: [Code; 2] = [Code::ResourceInvalid, Code::NameCollision];

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Leasehold",
        description = "Locks with fencing tokens, for the apps of one pod. Every refusal is an \
                       RFC 9457 problem document with a stable `code`; an unknown path gives \
                       `not_found`, a wrong method `method_not_allowed`. Only \
                       requests that are not valid HTTP are answered without a document: 400 \
                       (malformed), 414 or 431 (the URL or the headers are too large), with an \
                       empty body and a closed connection. A refused request does not change \
                       the store.",
    ),
    servers((url = "http://localhost:7373", description = "The sidecar of the pod")),
    tags(
        (name = "locks", description = "Locks and leases"),
        (name = "elections", description = "Leader elections"),
        (name = "fencing", description = "Fencing tokens"),
        (name = "meta", description = "The API itself"),
    ),
    paths(
        locks::acquire, events::hold, events::lease_events, locks::renew, locks::complete, locks::get, locks::release,
        locks::list,
        elections::get, elections::events, elections::candidacy, fencing::verify, fencing::verify_batch,
        fencing::report,
        openapi_json,
    ),
    modifiers(&Problems, &Patterns),
)]
struct Description;

/// Returns the description as it is served and committed: indented JSON.
///
/// # Panics
/// Never: strings and numbers can always be encoded.
#[must_use]
pub fn document() -> String {
    let mut text = Description::openapi()
        .to_pretty_json()
        .expect("a description made of strings and numbers must be JSON");
    text.push('\n');
    text
}

/// This description
#[utoipa::path(
    get, operation_id = "getOpenApi", path = "/openapi.json", tag = "meta",
    responses((status = 200, description = "OpenAPI 3.1", body = Object,
        content_type = "application/json")),
)]
pub(super) async fn openapi_json() -> Response {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| document().into());
    ([(CONTENT_TYPE, "application/json")], DOCUMENT.clone()).into_response()
}

/// Adds the problems of each call.
struct Problems;

impl Modify for Problems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        components
            .schemas
            .insert("Problem".into(), RefOr::T(problem_schema().into()));
        for (path, item) in &mut openapi.paths.paths {
            for operation in operations(item) {
                add_problems(operation, &codes_of(path, operation.request_body.is_some()));
            }
        }
    }
}

/// Returns the calls of a path.
fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let reads = [&mut item.get, &mut item.head];
    let writes = [
        &mut item.post,
        &mut item.put,
        &mut item.patch,
        &mut item.delete,
    ];
    reads.into_iter().chain(writes).flatten()
}

fn codes_of(path: &str, has_body: bool) -> Vec<Code> {
    let own: &[&[Code]] = match path {
        "/v1/locks/acquire" => &[&STORE_CODES, &ACQUIRE_CODES],
        "/v1/locks/hold" => &[&STORE_CODES, &HOLD_CODES, &[Code::LockHeld]],
        "/v1/elections/{name}" => &[&STORE_CODES, &ELECTION_CODES],
        "/v1/elections/{name}/events" => &[&STORE_CODES, &ELECTION_CODES, &[Code::TooManyStreams]],
        "/v1/elections/{name}/candidacy" => &[&STORE_CODES, &HOLD_CODES, &[Code::ElectionInvalid]],
        "/v1/locks/{leaseId}/events" => {
            &[&LEASE_CODES, &[Code::InvalidRequest, Code::TooManyStreams]]
        }
        "/v1/locks/{leaseId}/renew" => &[&LEASE_CODES, &[Code::TtlOutOfRange]],
        "/v1/locks/{leaseId}/complete" => &[&LEASE_CODES, &COMPLETE_CODES],
        "/v1/locks/{leaseId}" => &[&LEASE_CODES, &[Code::InvalidRequest]],
        "/v1/locks" => &[&STORE_CODES],
        "/v1/fencing/verify" => &[&STORE_CODES, &VERIFY_CODES],
        "/v1/fencing/verify-batch" => &[&STORE_CODES, &BATCH_CODES],
        "/v1/fencing/refusals" => &[&STORE_CODES, &REFUSAL_CODES],
        _ => &[],
    };
    let body: &[Code] = if has_body { &BODY_CODES } else { &[] };
    let may: Vec<_> = own
        .iter()
        .copied()
        .chain([body, &COMMON_CODES])
        .flatten()
        .collect();
    Code::ALL
        .into_iter()
        .filter(|code| may.contains(&code))
        .collect()
}

fn add_problems(operation: &mut Operation, codes: &[Code]) {
    let mut by_status = BTreeMap::<StatusCode, Vec<Code>>::new();
    for code in codes {
        by_status
            .entry(code.meaning().status)
            .or_default()
            .push(*code);
    }
    for (status, codes) in by_status {
        let response = RefOr::T(problem_response(&codes));
        operation
            .responses
            .responses
            .insert(status.as_str().into(), response);
    }
}

fn problem_response(codes: &[Code]) -> ApiResponse {
    let titles: Vec<_> = codes.iter().map(|code| code.meaning().title).collect();
    let examples = codes.iter().map(|code| {
        let meaning = code.meaning();
        let example = Example::builder()
            .summary(meaning.title)
            .value(Some(examples::of(*code).document()));
        (meaning.name, example.build())
    });
    let content = Content::builder()
        .schema(Some(Ref::from_schema_name("Problem")))
        .examples_from_iter(examples)
        .build();
    let response = ApiResponse::builder()
        .description(titles.join("; or: "))
        .content(PROBLEM_JSON, content);
    let retried = codes
        .iter()
        .any(|code| code.meaning().retry_after_seconds.is_some());
    if !retried {
        return response.build();
    }
    let mut retry_after = Header::new(Object::with_type(Type::Integer));
    retry_after.description = Some("Seconds; present if the same request may succeed later".into());
    response.header("Retry-After", retry_after).build()
}

fn problem_schema() -> Object {
    let text = |description: &str| {
        ObjectBuilder::new()
            .schema_type(SchemaType::new(Type::String))
            .description(Some(description))
    };
    let names = Code::ALL.map(|code| code.meaning().name);
    let outcomes: BTreeMap<_, _> = Code::ALL
        .map(|code| (code.meaning().name, code.meaning().outcome))
        .into();
    let code = text("The stable error code. New codes may be added.")
        .enum_values(Some(names))
        .extensions(Some(
            Extensions::builder()
                .add("x-outcomes", json!(outcomes))
                .build(),
        ));
    let status = ObjectBuilder::new()
        .schema_type(SchemaType::new(Type::Integer))
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int32)))
        .description(Some("The HTTP status"));
    ObjectBuilder::new()
        .description(Some("Why a request was refused (RFC 9457)"))
        .property("type", text("`urn:leasehold:problem:` and the code"))
        .property("title", text("What the code means"))
        .property("status", status)
        .property("detail", text("What failed, and what to do"))
        .property("code", code)
        .required("type")
        .required("title")
        .required("status")
        .required("detail")
        .required("code")
        .additional_properties(Some(AdditionalProperties::FreeForm(true)))
        .examples([json!(examples::of(Code::LeaseUnknown).document())])
        .build()
}

//! Reads request bodies and parameters: bounded in size and time, with errors that name the
//! problem.

use std::time::Duration;

use axum::Json;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use futures::StreamExt;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use serde::de::DeserializeOwned;

use super::error::{Code, Problem};
use crate::protocol::ids::LeaseId;

/// The maximum size of a body.
pub(super) const BODY_MAX_BYTES: usize = 16 * 1024;
/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body.
pub(super) struct JsonBody<T>(pub(super) T);

/// A JSON body, or no body.
pub(super) struct OptionalJsonBody<T>(pub(super) T);

/// The lease that the path names.
pub(super) struct LeaseInPath(pub(super) LeaseId);

/// The query parameters.
pub(super) struct Parameters<T>(pub(super) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body).await?;
        parse(&parts.headers, &bytes).map(Self)
    }
}

impl<S: Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        parse(&parts.headers, &bytes).map(Self)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for LeaseInPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(lease) = path.map_err(|rejection| {
            Problem::new(
                Code::InvalidRequest,
                format!(
                    "{}; send the leaseId that acquire returned",
                    rejection.body_text()
                ),
            )
        })?;
        Ok(Self(LeaseId::from(lease)))
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(rejection) => Err(Problem::new(
                Code::InvalidRequest,
                format!("in the query: {}; see /openapi.json", cause_of(&rejection)),
            )),
        }
    }
}

async fn read(body: Body) -> Result<Vec<u8>, Problem> {
    match tokio::time::timeout(BODY_TIMEOUT, read_bounded(body)).await {
        Ok(read) => read,
        Err(_elapsed) => Err(body_timeout()),
    }
}

pub(super) fn body_timeout() -> Problem {
    Problem::new(
        Code::RequestTimeout,
        format!(
            "the body did not arrive within {} s; send it without delay",
            BODY_TIMEOUT.as_secs()
        ),
    )
}

async fn read_bounded(body: Body) -> Result<Vec<u8>, Problem> {
    if body.size_hint().lower() > BODY_MAX_BYTES as u64 {
        return Err(body_too_large());
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            Problem::new(
                Code::InvalidRequest,
                format!("the body ended early: {error}; send it again"),
            )
        })?;
        if bytes.len() + chunk.len() > BODY_MAX_BYTES {
            return Err(body_too_large());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

pub(super) fn body_too_large() -> Problem {
    Problem::new(
        Code::BodyTooLarge,
        format!("a body has at most {BODY_MAX_BYTES} bytes; send less metadata"),
    )
    .with("limitBytes", BODY_MAX_BYTES)
}

fn parse<T: DeserializeOwned>(headers: &HeaderMap, bytes: &[u8]) -> Result<T, Problem> {
    if !headers.get(CONTENT_TYPE).is_some_and(is_json) {
        return Err(Problem::new(
            Code::InvalidRequest,
            "the body must be JSON; add the header `Content-Type: application/json`",
        ));
    }
    // serde would accept an array and fill the fields in order, which no client can know.
    if let Some(what) = json_type_name(bytes) {
        return Err(Problem::new(
            Code::InvalidRequest,
            format!("the body is {what}; send a JSON object, see /openapi.json"),
        ));
    }
    match Json::<T>::from_bytes(bytes) {
        Ok(Json(value)) => Ok(value),
        Err(JsonRejection::JsonDataError(error)) => Err(Problem::new(
            Code::InvalidRequest,
            format!("in the body: {}; see /openapi.json", cause_of(&error)),
        )),
        Err(error) => Err(Problem::new(
            Code::InvalidRequest,
            format!("the body is not JSON: {}; fix it", cause_of(&error)),
        )),
    }
}

/// Returns the type of a JSON text that is not an object, by its first character.
fn json_type_name(bytes: &[u8]) -> Option<&'static str> {
    match bytes.trim_ascii_start().first()? {
        b'[' => Some("an array"),
        b'"' => Some("a string"),
        b'-' | b'0'..=b'9' => Some("a number"),
        b't' | b'f' => Some("a boolean"),
        b'n' => Some("null"),
        _ => None,
    }
}

fn is_json(content_type: &HeaderValue) -> bool {
    let media_type = content_type
        .to_str()
        .ok()
        .and_then(|text| text.split(';').next())
        .unwrap_or_default()
        .trim();
    media_type.eq_ignore_ascii_case("application/json")
}

/// Returns the innermost error, which names the field; the outer ones only say that parsing failed.
fn cause_of(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

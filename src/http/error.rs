//! Problem documents (RFC 9457): every refusal has a stable code, and one match maps the code to
//! its HTTP status and title.
//!
//! It does not write the `detail`: the code that refuses says there what to do.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

/// The media type of a problem document.
pub(super) const PROBLEM_JSON: &str = "application/problem+json";

/// The code of a refusal. The names are part of the API and never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidRequest,
    ResourceInvalid,
    ElectionInvalid,
    TtlOutOfRange,
    HostNotAllowed,
    OriginRefused,
    Forbidden,
    QuotaExceeded,
    NotFound,
    LeaseUnknown,
    ElectionUnknown,
    MethodNotAllowed,
    RequestTimeout,
    LockHeld,
    NameCollision,
    StaleToken,
    UnknownToken,
    TokenCurrent,
    LeaseLost,
    BodyTooLarge,
    RequestIdReused,
    TooManyLeases,
    TooManyWaiting,
    TooManyStreams,
    Internal,
    TokenExhausted,
    ObjectUnreadable,
    ObjectRefused,
    StoreUnavailable,
    StoreWentBack,
    NotInstalled,
    SessionLost,
    Resuming,
    ShuttingDown,
}

/// The constant properties of a code.
pub(super) struct Meaning {
    /// The HTTP status.
    pub(super) status: StatusCode,
    /// The code in the API.
    pub(super) name: &'static str,
    /// A short description.
    pub(super) title: &'static str,
    /// What it means for the app.
    pub(super) outcome: Outcome,
    /// After how many seconds the same request may succeed; `None` if waiting does not help.
    pub(super) retry_after_seconds: Option<u64>,
}

/// What a code means for the app: the kind of error that a client library makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
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

impl Code {
    /// All codes, ordered by status.
    pub(super) const ALL: [Self; 34] = [
        Self::InvalidRequest,
        Self::ResourceInvalid,
        Self::ElectionInvalid,
        Self::TtlOutOfRange,
        Self::HostNotAllowed,
        Self::OriginRefused,
        Self::Forbidden,
        Self::QuotaExceeded,
        Self::NotFound,
        Self::LeaseUnknown,
        Self::ElectionUnknown,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::LockHeld,
        Self::NameCollision,
        Self::StaleToken,
        Self::UnknownToken,
        Self::TokenCurrent,
        Self::LeaseLost,
        Self::BodyTooLarge,
        Self::RequestIdReused,
        Self::TooManyLeases,
        Self::TooManyWaiting,
        Self::TooManyStreams,
        Self::Internal,
        Self::TokenExhausted,
        Self::ObjectUnreadable,
        Self::ObjectRefused,
        Self::StoreUnavailable,
        Self::StoreWentBack,
        Self::NotInstalled,
        Self::SessionLost,
        Self::Resuming,
        Self::ShuttingDown,
    ];

    /// Returns the constant properties.
    pub(super) fn meaning(self) -> Meaning {
        let (status, name, title) = self.row();
        let outcome = self.outcome(status);
        let passes_by_itself = outcome == Outcome::Passing && status == 503;
        Meaning {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            name,
            title,
            outcome,
            retry_after_seconds: passes_by_itself.then_some(1),
        }
    }

    /// Returns what the status says, or an exception. Clients treat unknown codes by the status.
    const fn outcome(self, status: u16) -> Outcome {
        match (self, status) {
            (Self::LockHeld, _) => Outcome::Held,
            (Self::LeaseUnknown | Self::LeaseLost, _) => Outcome::Lost,
            (Self::StoreWentBack | Self::NotInstalled | Self::ShuttingDown, _) => Outcome::Lasting,
            (
                Self::Internal
                | Self::TokenExhausted
                | Self::ObjectUnreadable
                | Self::ObjectRefused,
                _,
            ) => Outcome::Refused,
            (_, 408 | 429 | 500..) => Outcome::Passing,
            _ => Outcome::Refused,
        }
    }

    /// Maps a code to its status, name and title.
    const fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request", "Invalid request"),
            Self::ResourceInvalid => (400, "resource_invalid", "Invalid resource"),
            Self::ElectionInvalid => (400, "election_invalid", "Invalid election name"),
            Self::TtlOutOfRange => (400, "ttl_out_of_range", "TTL out of range"),
            Self::HostNotAllowed => (403, "host_not_allowed", "Host header not allowed"),
            Self::OriginRefused => (
                403,
                "origin_refused",
                "Requests from web pages are rejected",
            ),
            Self::Forbidden => (403, "forbidden", "Forbidden by the API server"),
            Self::QuotaExceeded => (403, "quota_exceeded", "Namespace quota exceeded"),
            Self::NotFound => (404, "not_found", "Path not found"),
            Self::LeaseUnknown => (404, "lease_unknown", "Lease not found"),
            Self::ElectionUnknown => (404, "election_unknown", "Election not found"),
            Self::MethodNotAllowed => (405, "method_not_allowed", "Method not allowed"),
            Self::RequestTimeout => (408, "request_timeout", "Request body timed out"),
            Self::LockHeld => (409, "lock_held", "Lock is held"),
            Self::NameCollision => (409, "name_collision", "Lock object guards another resource"),
            Self::StaleToken => (409, "stale_token", "Fencing token is stale"),
            Self::UnknownToken => (409, "unknown_token", "Fencing token is unknown"),
            Self::TokenCurrent => (409, "token_current", "Fencing token is current"),
            Self::LeaseLost => (410, "lease_lost", "Lease has ended"),
            Self::BodyTooLarge => (413, "body_too_large", "Request body too large"),
            Self::RequestIdReused => (422, "request_id_reused", "requestId already used"),
            Self::TooManyWaiting => (429, "too_many_waiting", "Too many waiting callers"),
            Self::TooManyStreams => (429, "too_many_streams", "Too many open streams"),
            Self::TooManyLeases => (429, "too_many_leases", "Too many leases"),
            Self::Internal => (500, "internal", "Internal error"),
            Self::TokenExhausted => (500, "token_exhausted", "Fencing tokens exhausted"),
            Self::ObjectUnreadable => (502, "object_unreadable", "Stored object is invalid"),
            Self::ObjectRefused => (502, "object_refused", "Store rejected the object"),
            Self::StoreUnavailable => (503, "store_unavailable", "Store unavailable"),
            Self::StoreWentBack => (503, "store_went_back", "Store lost writes"),
            Self::NotInstalled => (503, "not_installed", "Namespace or CRDs missing"),
            Self::SessionLost => (503, "session_lost", "Agent session ended"),
            Self::Resuming => (503, "resuming", "Agent is resuming"),
            Self::ShuttingDown => (503, "shutting_down", "Agent is shutting down"),
        }
    }
}

/// A refusal.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    code: Code,
    detail: String,
    fields: Map<String, Value>,
}

impl Problem {
    /// Creates a refusal. `detail` says what to do.
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            fields: Map::new(),
        }
    }

    /// Adds a machine-readable field.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    /// Names the part of the request that is refused: `tokens[3]`.
    pub(super) fn of(mut self, part: &str) -> Self {
        self.detail = format!("{part}: {}", self.detail);
        self
    }

    /// Returns the code.
    #[cfg(test)]
    pub(super) const fn code(&self) -> Code {
        self.code
    }

    /// Returns the document for the client.
    pub(super) fn document(&self) -> Value {
        let meaning = self.code.meaning();
        let mut document = json!({
            "type": format!("urn:leasehold:problem:{}", meaning.name),
            "title": meaning.title,
            "status": meaning.status.as_u16(),
            "detail": self.detail,
            "code": meaning.name,
        });
        if let Some(members) = document.as_object_mut() {
            members.extend(self.fields.clone());
        }
        document
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let meaning = self.code.meaning();
        if meaning.status.is_server_error() {
            tracing::warn!(code = meaning.name, detail = %self.detail, "request failed");
        }
        let mut response = (meaning.status, Json(self.document())).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(seconds) = meaning.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_has_a_unique_name_and_an_error_status() {
        let names: BTreeSet<_> = Code::ALL.iter().map(|code| code.meaning().name).collect();
        assert_eq!(names.len(), Code::ALL.len());
        let statuses: Vec<_> = Code::ALL.iter().map(|code| code.meaning().status).collect();
        assert!(statuses.is_sorted());
        assert!(
            statuses
                .iter()
                .all(|s| s.is_client_error() || s.is_server_error())
        );
    }

    #[test]
    fn a_problem_is_a_document_with_its_fields_and_retry_hint() {
        let problem = Problem::new(Code::StoreUnavailable, "try again").with("attempts", 3);
        assert_eq!(problem.document()["attempts"], 3);
        assert_eq!(problem.document()["status"], 503);
        let response = problem.into_response();
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}

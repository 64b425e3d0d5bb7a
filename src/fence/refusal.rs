//! Why the fence does not forward a request: problem documents (RFC 9457) with stable codes.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::json;

use crate::protocol::ids::Resource;
use crate::protocol::token::Token;

/// The header with the code.
const CODE: HeaderName = HeaderName::from_static("x-fencing-code");

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: Code,
    /// What is wrong, and what to do.
    pub(super) detail: String,
    /// The newest token, if a newer one is the reason.
    pub(super) latest: Option<Token>,
}

/// The code of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidRequest,
    TokenInvalid,
    ResourceInvalid,
    MethodNotAllowed,
    RequestTimeout,
    StaleToken,
    UnknownToken,
    BodyTooLarge,
    TokenRequired,
    ResourceRequired,
    UpgradeRefused,
    RequestIncomplete,
    ServiceUnreachable,
    ServiceFailed,
    TooManyRequests,
    TooManyResources,
    Unsettled,
    LockUnavailable,
    StateUnavailable,
    ServiceTimeout,
    Cut,
    ShuttingDown,
    NotLeading,
}

impl Code {
    /// All codes, ordered by status.
    pub(super) const ALL: [Self; 23] = [
        Self::InvalidRequest,
        Self::TokenInvalid,
        Self::ResourceInvalid,
        Self::UpgradeRefused,
        Self::RequestIncomplete,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::StaleToken,
        Self::UnknownToken,
        Self::BodyTooLarge,
        Self::TokenRequired,
        Self::ResourceRequired,
        Self::ServiceUnreachable,
        Self::ServiceFailed,
        Self::TooManyRequests,
        Self::TooManyResources,
        Self::Unsettled,
        Self::LockUnavailable,
        Self::StateUnavailable,
        Self::ShuttingDown,
        Self::NotLeading,
        Self::ServiceTimeout,
        Self::Cut,
    ];

    /// Returns the status, the name and the title.
    pub(super) const fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::InvalidRequest => (400, "invalid_request", "The request is not valid"),
            Self::TokenInvalid => (400, "token_invalid", "The fencing token is not valid"),
            Self::ResourceInvalid => (400, "resource_invalid", "The resource is not valid"),
            Self::UpgradeRefused => (400, "upgrade_refused", "The upgrade is not possible"),
            Self::RequestIncomplete => (400, "request_incomplete", "The request is incomplete"),
            Self::MethodNotAllowed => (405, "method_not_allowed", "The method is not allowed"),
            Self::RequestTimeout => (408, "request_timeout", "The request took too long"),
            Self::StaleToken => (412, "stale_token", "The fencing token is stale"),
            Self::UnknownToken => (412, "unknown_token", "The lock granted no such token"),
            Self::BodyTooLarge => (413, "body_too_large", "The body is too large"),
            Self::TokenRequired => (428, "token_required", "A fencing token is required"),
            Self::ResourceRequired => (428, "resource_required", "A resource is required"),
            Self::ServiceUnreachable => (502, "service_unreachable", "The service is unreachable"),
            Self::ServiceFailed => (502, "service_failed", "The service sent no valid response"),
            Self::TooManyRequests => (503, "too_many_requests", "Too many requests"),
            Self::TooManyResources => (503, "too_many_resources", "Too many resources"),
            Self::Unsettled => (503, "unsettled", "Older requests may still be running"),
            Self::LockUnavailable => (503, "lock_unavailable", "The lock cannot be read"),
            Self::StateUnavailable => (503, "state_unavailable", "The token cannot be recorded"),
            Self::ServiceTimeout => (
                504,
                "service_timeout",
                "The service did not respond in time",
            ),
            Self::Cut => (504, "cut", "A newer token ended the request"),
            Self::ShuttingDown => (503, "shutting_down", "The fence is shutting down"),
            Self::NotLeading => (503, "not_leading", "Another fence may lead"),
        }
    }

    /// Returns the code in the API.
    pub(super) const fn name(self) -> &'static str {
        self.row().1
    }
}

impl Refusal {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            latest: None,
        }
    }

    /// A newer token was recorded.
    pub(super) fn stale(resource: &Resource, token: Token, latest: Token) -> Self {
        let detail = format!(
            "{resource} has the newer fencing token {latest}, so {token} is of an earlier lease: stop this work"
        );
        Self {
            latest: Some(latest),
            ..Self::new(Code::StaleToken, detail)
        }
    }

    /// The lease of a token that is new to the fence has ended.
    pub(super) fn ended(resource: &Resource, token: Token, latest: Token) -> Self {
        let detail = format!(
            "the lease of {token} has ended, and the lock {resource} is at {latest}: stop this work"
        );
        Self {
            latest: Some(latest),
            ..Self::new(Code::StaleToken, detail)
        }
    }

    /// The lock granted no such token.
    pub(super) fn unknown(resource: &Resource, token: Token, latest: Token) -> Self {
        let detail = format!(
            "the lock {resource} did not grant {token}, it is at {latest}: send the token of this lock, of the \
             namespace of the fence"
        );
        Self {
            latest: Some(latest),
            ..Self::new(Code::UnknownToken, detail)
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.row().0).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Returns the problem document.
    pub(super) fn response(&self) -> Response<Full<Bytes>> {
        let (status, code, title) = self.code.row();
        let mut document = json!({
            "type": format!("urn:leasehold:problem:{code}"),
            "title": title,
            "status": status,
            "code": code,
            "detail": self.detail,
        });
        if let Some(latest) = self.latest {
            document["latestFencingToken"] = latest.get().into();
        }
        let mut response = Response::new(Full::from(document.to_string()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        let problem = HeaderValue::from_static("application/problem+json");
        headers.insert(CONTENT_TYPE, problem);
        // nginx drops the document.
        headers.insert(CODE, HeaderValue::from_static(code));
        if status == 503 && self.code != Code::TooManyResources {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

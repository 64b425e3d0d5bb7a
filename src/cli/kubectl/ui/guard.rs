//! Restricts the page to the browser tab that has opened the link.
//!
//! Every program of this machine reaches the port, and every web page can have a browser send requests to it. So each
//! request for data carries a token. The page receives it once, for the secret in the link's fragment, which a browser sends
//! to no server. No other page can send that header, and no other port receives it, unlike a cookie. A foreign `Host` is
//! DNS rebinding.

use std::sync::Mutex;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderMap, HeaderValue, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, StatusCode};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use uuid::Uuid;

use super::routes::Problem;

/// Nothing but the page's own files and requests. No inline script runs, whatever a tenant calls its lock.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

/// The link and the token of the page.
pub(super) struct Access {
    hosts: [String; 2],
    /// `None` once it was used.
    secret: Mutex<Option<String>>,
    token: String,
}

impl Access {
    /// Returns those of the page on a port.
    pub(super) fn new(port: u16) -> Self {
        Self {
            hosts: ["127.0.0.1", "localhost"].map(|host| match port {
                // Browsers leave out the port of the scheme.
                80 => host.to_owned(),
                port => format!("{host}:{port}"),
            }),
            secret: Mutex::new(Some(secret())),
            token: secret(),
        }
    }

    /// Returns the secret of the link; empty once it was used.
    pub(super) fn secret(&self) -> String {
        let secret = self.secret.lock();
        let secret = secret.unwrap_or_else(std::sync::PoisonError::into_inner);
        secret.clone().unwrap_or_default()
    }

    /// Exchanges the secret for the token, once.
    pub(super) fn enter(&self, secret: &str) -> Result<&str, Problem> {
        let mut expected = self
            .secret
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*expected {
            None => Err(unauthorized("this link was used already")),
            Some(right) if is_same(right, secret) => {
                *expected = None;
                Ok(&self.token)
            }
            Some(_) => Err(unauthorized(
                "this link is not the one that was printed last",
            )),
        }
    }

    fn check(&self, request: &Request) -> Result<(), Problem> {
        let headers = request.headers();
        let host = text(headers, &HOST).unwrap_or_default();
        let is_own = self.hosts.iter().any(|own| own == host);
        let origin = text(headers, &ORIGIN);
        let is_foreign = origin.is_some_and(|origin| origin.strip_prefix("http://") != Some(host));
        if !is_own || is_foreign {
            return Err(Problem::new(
                StatusCode::FORBIDDEN,
                "only the page itself, opened under http://127.0.0.1, may send requests",
            ));
        }
        let path = request.uri().path();
        if !path.starts_with("/api/") || path == "/api/enter" {
            return Ok(());
        }
        let token = text(headers, &AUTHORIZATION);
        let token = token.and_then(|text| text.strip_prefix("Bearer "));
        if token.is_some_and(|token| is_same(&self.token, token)) {
            return Ok(());
        }
        Err(unauthorized("this browser tab has not opened the link"))
    }
}

/// Rejects requests that are not the page's own, and adds the headers that restrict the page.
pub(super) async fn require_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = match access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    for (name, value) in HEADERS {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}

fn unauthorized(why: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        format!("{why}; run `kubectl leasehold ui` again, and open the new link"),
    )
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Returns 122 random bits of the operating system.
fn secret() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Compares by hashes: how long it takes says nothing about the expected text.
fn is_same(expected: &str, given: &str) -> bool {
    Sha256::digest(expected) == Sha256::digest(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(access: &Access, path: &str, headers: &[(HeaderName, &str)]) -> u16 {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(axum::body::Body::empty()).unwrap();
        match access.check(&request) {
            Ok(()) => 200,
            Err(problem) => problem.into_response().status().as_u16(),
        }
    }

    #[test]
    fn link_works_once_and_only_with_its_secret() {
        let access = Access::new(7500);
        let secret = access.secret();
        assert!(access.enter("").is_err() && access.enter("x").is_err());
        assert!(access.enter(&secret).is_ok());
        assert!(access.enter(&secret).is_err() && access.enter("").is_err());
    }

    #[test]
    fn data_is_only_for_the_token_and_the_own_host() {
        let access = Access::new(7500);
        let bearer = format!("Bearer {}", access.token);
        let own = (HOST, "127.0.0.1:7500");
        let path = "/api/locks";
        assert_eq!(
            check(&access, path, &[own.clone(), (AUTHORIZATION, &bearer)]),
            200
        );
        for wrong in ["", "Bearer ", "Bearer x", access.token.as_str()] {
            assert_eq!(
                check(&access, path, &[own.clone(), (AUTHORIZATION, wrong)]),
                401
            );
        }
        for host in ["127.0.0.1", "127.0.0.1:7501", "rebound.example:7500", ""] {
            let foreign = (HOST, host);
            assert_eq!(
                check(&access, path, &[foreign, (AUTHORIZATION, &bearer)]),
                403
            );
        }
        assert_eq!(check(&access, "/", &[(HOST, "evil.example")]), 403);
        let origin = (ORIGIN, "http://localhost:8080");
        assert_eq!(check(&access, "/api/enter", &[own.clone(), origin]), 403);
        assert_eq!(check(&access, "/api/enter", &[own]), 200);
    }
}

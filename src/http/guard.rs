//! Restricts the API to programs in the same pod, and rejects web pages.
//!
//! The API has no password, because only processes of the pod reach localhost. A browser is the
//! exception: any page may send requests to localhost, and with DNS rebinding under a name of its
//! own. Therefore the Host must be a local name, and requests with a browser's headers are
//! rejected. No page can reach a Unix socket, and its clients send any Host. There only those
//! headers are checked, which a proxy might pass on.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, ORIGIN};
use http::uri::Authority;

use super::Api;
use super::error::{Code, Problem};

const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Marks requests over a Unix socket. Clients cannot set it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverUnixSocket;

/// Rejects requests from outside the pod.
pub(super) async fn require_local(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Response {
    match check(&request, &api.allowed_hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(request: &Request, allowed: &[String]) -> Result<(), Problem> {
    let is_unix_socket = request.extensions().get::<OverUnixSocket>().is_some();
    if !is_unix_socket && !has_local_host(request, allowed) {
        return Err(host_not_allowed());
    }
    let fetched_by = request.headers().get("sec-fetch-site");
    let is_from_page = fetched_by.is_some_and(|site| site != "none" && site != "same-origin");
    if is_from_page || request.headers().contains_key(ORIGIN) {
        return Err(origin_refused());
    }
    Ok(())
}

/// Returns whether the Host header and, in a request with a full URL, its authority are local.
fn has_local_host(request: &Request, allowed: &[String]) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let named = host.to_str().is_ok_and(|host| is_allowed(host, allowed));
    let addressed = request.uri().authority();
    named && addressed.is_none_or(|authority| is_allowed(authority.as_str(), allowed))
}

fn is_allowed(host: &str, allowed: &[String]) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let name = authority.host();
    // Without user information, the authority starts with the name.
    let is_port = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    let is_plain = host
        .strip_prefix(name)
        .is_some_and(|rest| rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port));
    let known = LOCAL.into_iter().chain(allowed.iter().map(String::as_str));
    is_plain && known.into_iter().any(|one| one.eq_ignore_ascii_case(name))
}

pub(super) fn host_not_allowed() -> Problem {
    Problem::new(
        Code::HostNotAllowed,
        "the Host header must be localhost, 127.0.0.1 or [::1]; use one of these in the URL, or \
         start the sidecar with --allow-host",
    )
}

pub(super) fn origin_refused() -> Problem {
    Problem::new(
        Code::OriginRefused,
        "the request comes from a web page (it has an Origin or Sec-Fetch-Site header); call this \
         API from the app's own process",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_host_is_allowed_with_any_port() {
        for host in [
            "localhost",
            "LOCALHOST:7373",
            "127.0.0.1:80",
            "[::1]:7373",
            "[::1]",
        ] {
            assert!(is_allowed(host, &[]), "{host}");
        }
        assert!(is_allowed("lock.internal:1", &["lock.internal".into()]));
    }

    #[test]
    fn foreign_host_is_refused_in_every_spelling() {
        let foreign = [
            "",
            "evil.example",
            "localhost.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "127.0.0.1.nip.io",
            "0.0.0.0",
            "[::]",
            "127.0.0.1/x",
            "localhost:[]",
            "localhost:80[",
            "localhost:x",
        ];
        for host in foreign {
            assert!(!is_allowed(host, &[]), "{host}");
        }
    }
}

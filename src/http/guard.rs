//! Who may speak to this API: programs in the same pod, and no web page.
//!
//! The API has no password, because whoever reaches localhost is in the pod. A browser is the
//! exception: any page may send requests to localhost, and with DNS rebinding it may do so under
//! a name of its own. Therefore the Host must be a local name, and what a browser adds to a
//! page's requests is refused. No page can reach a Unix socket, where clients write what they like as
//! the Host; so there it says nothing, and only what a proxy might pass on of a page's is refused.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{HOST, ORIGIN};
use http::uri::Authority;

use super::Api;
use super::error::{Code, Problem};

const LOCAL: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Marks the requests that came over a Unix socket; nothing that a client sends makes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverUnixSocket;

/// Refuses what does not come from the pod.
pub(super) async fn only_local(State(api): State<Api>, request: Request, next: Next) -> Response {
    match check(&request, &api.allowed_hosts) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn check(request: &Request, allowed: &[String]) -> Result<(), Problem> {
    let is_on_a_socket = request.extensions().get::<OverUnixSocket>().is_some();
    if !is_on_a_socket && !is_for_a_local_host(request, allowed) {
        return Err(host_not_allowed());
    }
    let fetched_by = request.headers().get("sec-fetch-site");
    let from_a_page = fetched_by.is_some_and(|site| site != "none" && site != "same-origin");
    if from_a_page || request.headers().contains_key(ORIGIN) {
        return Err(origin_refused());
    }
    Ok(())
}

/// Both the Host header and, where a client sent a whole URL, its authority must be local.
fn is_for_a_local_host(request: &Request, allowed: &[String]) -> bool {
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
    // Without a user, the name is what it begins with.
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

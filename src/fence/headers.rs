//! What changes in the head of a message between a client and the service (RFC 9110, section 7.6).

use std::net::IpAddr;

use http::header::{
    ALT_SVC, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::uri::Authority;
use http::{Method, Request, Version};

use super::refusal::{Code, Refusal};
use super::rules::{self, RESOURCE, TOKEN};

/// What belongs to one connection.
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("http2-settings"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The only protocol that a connection may change to. Every other one would be a tunnel through the fence.
const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Returns the clients that the proxy before this one names. A client may have written earlier headers itself.
pub(super) fn forwarded_for(headers: &HeaderMap) -> Option<&HeaderValue> {
    headers.get_all(FORWARDED_FOR).iter().next_back()
}

/// Returns whether the request asks for a WebSocket.
pub(super) fn asks_for_websocket(headers: &HeaderMap) -> bool {
    let asked = headers.get(UPGRADE).map(HeaderValue::as_bytes);
    asked.is_some_and(|asked| asked.eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
        && connection_options(headers).any(|option| option == UPGRADE)
}

/// Checks what the service could understand in another way than the fence, and returns the host that the client asks.
///
/// # Errors
/// A [`Refusal`].
pub(super) fn check<B>(request: &Request<B>) -> Result<Option<HeaderValue>, Refusal> {
    if [Method::CONNECT, Method::TRACE].contains(request.method()) {
        let detail = format!("{} is not forwarded", request.method());
        return Err(Refusal::new(Code::MethodNotAllowed, detail));
    }
    let invalid = |detail: &str| Err(Refusal::new(Code::InvalidRequest, detail));
    if !request.uri().path().starts_with('/') {
        return invalid("the target has no path; send one that begins with /");
    }
    // hyper accepts other lists that end in "chunked" (RFC 9112, section 6.1).
    let codings: Vec<_> = request
        .headers()
        .get_all(TRANSFER_ENCODING)
        .iter()
        .collect();
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !codings.is_empty() && !matches!(codings[..], [coding] if is_chunked(coding)) {
        return invalid("the header Transfer-Encoding must be chunked");
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let (named, target) = (hosts.next(), request.uri().authority());
    if hosts.next().is_some() {
        return invalid("the header Host is repeated");
    }
    if let Some(named) = named
        && !named.is_empty()
    {
        let parsed = Authority::try_from(named.as_bytes());
        if parsed.is_err() || named.as_bytes().contains(&b'@') {
            return invalid("the header Host is not valid");
        }
    }
    // In HTTP/1.1 the target wins (RFC 9112, section 3.2.2). In HTTP/2 both must agree (RFC 9113, section 8.3.1).
    let host = match (target, named) {
        (Some(target), named) => {
            let same = named.is_none_or(|named| named.as_bytes() == target.as_str().as_bytes());
            if request.version() == Version::HTTP_2 && !same {
                return invalid("the header Host differs from :authority");
            }
            HeaderValue::from_str(target.as_str()).ok()
        }
        (None, Some(named)) => Some(named.clone()),
        (None, None) if request.version() >= Version::HTTP_11 => {
            return invalid("the header Host is missing");
        }
        (None, None) => None,
    };
    Ok(host)
}

/// Changes the headers of a request for the service.
pub(super) fn prepare(
    headers: &mut HeaderMap,
    host: Option<&HeaderValue>,
    peer: IpAddr,
    version: Version,
) {
    let accepts_trailers = headers
        .get_all(TE)
        .iter()
        .any(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    let tunnel = asks_for_websocket(headers);
    remove_hop_by_hop(headers);
    // The body is framed again, except an empty one, of which hyper sends no length.
    let is_empty = headers
        .get(CONTENT_LENGTH)
        .is_some_and(|length| length == "0");
    if !is_empty {
        headers.remove(CONTENT_LENGTH);
    }
    // The fence has sent 100 itself (RFC 9110, section 10.1.1).
    headers.remove(EXPECT);
    remove_aliases(headers);
    join_cookies(headers);
    if accepts_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if tunnel {
        headers.insert(UPGRADE, WEBSOCKET);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    append(headers, FORWARDED_FOR, &peer.to_canonical().to_string());
    headers
        .entry(FORWARDED_PROTO)
        .or_insert(HeaderValue::from_static("http"));
    if let Some(host) = host {
        headers
            .entry(FORWARDED_HOST)
            .or_insert_with(|| host.clone());
        headers.insert(HOST, host.clone());
    }
    let via = if version == Version::HTTP_2 {
        "2"
    } else {
        "1.1"
    };
    append(headers, VIA, &format!("{via} leasehold-fence"));
}

/// Removes from the trailers of a request what the rules read as headers: a service may do so, too.
pub(super) fn prepare_trailers(trailers: &mut HeaderMap) {
    let read: Vec<_> = trailers
        .keys()
        .filter(|name| rules::is_judged(name))
        .cloned()
        .collect();
    remove(trailers, &read);
}

/// Announces a body of unknown length to an HTTP/1.1 service. Without it hyper sends no body of a GET or HEAD.
pub(super) fn announce_chunks(headers: &mut HeaderMap) {
    headers.insert(TRANSFER_ENCODING, CHUNKED);
}

/// Changes the headers of a response for the client.
pub(super) fn prepare_response(headers: &mut HeaderMap, is_tunnel: bool) {
    // A body in chunks has no length.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let upgrade = headers.get(UPGRADE).cloned().filter(|_| is_tunnel);
    remove_hop_by_hop(headers);
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    }
    // It would lead clients around the fence.
    headers.remove(ALT_SVC);
}

/// Returns whether a service by CGI or WSGI may take a header for another one: many servers cannot tell `_` from `-`, and
/// lighttpd no two characters that are neither letters nor digits.
pub(super) fn reads_as(name: &HeaderName, other: &HeaderName) -> bool {
    let (name, other) = (name.as_str().bytes(), other.as_str().bytes());
    name.len() == other.len()
        && name
            .zip(other)
            .all(|(byte, own)| byte == own || (own == b'-' && !byte.is_ascii_alphanumeric()))
}

/// Removes what such a service could take for the headers that the fence compares.
fn remove_aliases(headers: &mut HeaderMap) {
    let is_alias = |name: &&HeaderName| {
        let own = [TOKEN, RESOURCE];
        !own.contains(name) && own.iter().any(|own| reads_as(name, own))
    };
    let aliases: Vec<_> = headers.keys().filter(is_alias).cloned().collect();
    remove(headers, &aliases);
}

fn remove(headers: &mut HeaderMap, names: &[HeaderName]) {
    for name in names {
        headers.remove(name);
    }
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // A client must not remove what a fence behind this one compares.
    let named: Vec<_> = connection_options(headers)
        .filter(|name| *name != TOKEN && *name != RESOURCE && *name != HOST)
        .collect();
    remove(headers, &named);
    remove(headers, &HOP_BY_HOP);
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
}

/// HTTP/2 divides a cookie, and HTTP/1.1 has one (RFC 9113, section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let crumbs: Vec<_> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if crumbs.len() > 1
        && let Ok(cookie) = HeaderValue::from_bytes(&crumbs.join(&b"; "[..]))
    {
        headers.insert(COOKIE, cookie);
    }
}

fn append(headers: &mut HeaderMap, name: HeaderName, added: &str) {
    let before = headers
        .get_all(&name)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let all: Vec<_> = before.chain([added]).collect();
    if let Ok(value) = HeaderValue::from_str(&all.join(", ")) {
        headers.insert(name, value);
    }
}

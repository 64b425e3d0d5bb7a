//! Exchanges one request that passed with the service.

use std::future::pending;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri, request};
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tower::ServiceExt as _;
use tower::util::MapResponse;

use super::body::{Progress, Received, RequestBody};
use super::gate::Pass;
use super::headers;
use super::refusal::{Code, Refusal};
use super::tunnel::Tunnel;
use super::{CONNECTION_WINDOW, KEEP_ALIVE, STREAM_WINDOW};
use crate::clock::Clock;

/// The buffer of a connection to the service, including the head of a response. It fills if a client reads slowly.
const BUFFER_MAX_BYTES: usize = 32 * 1024;

/// The service behind the fence.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its host and port.
    pub authority: Authority,
    /// Whether it speaks HTTP/2 without TLS. Otherwise HTTP/1.1.
    pub is_http2: bool,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long nothing may move before its response begins.
    pub timeout: Duration,
    /// How long the kernel sends what the service does not acknowledge.
    pub unacknowledged: Duration,
    /// How long an idle connection is kept.
    pub idle: Duration,
    /// The maximum length of the body of a request.
    pub body_max_bytes: u64,
}

/// Forwards requests to the service.
pub(super) struct Forwarder {
    clock: Arc<dyn Clock>,
    upstream: Upstream,
    client: Client<Connector, RequestBody>,
}

type Connection = TokioIo<TcpStream>;
type Connector = MapResponse<HttpConnector, fn(Connection) -> Connection>;

/// A response of the service.
pub(super) struct Forwarded {
    pub(super) response: Response<Received>,
    pub(super) pass: Option<Arc<Pass>>,
    pub(super) progress: Arc<Progress>,
    /// If it changes to a WebSocket.
    pub(super) tunnel: Option<Tunnel>,
}

impl Forwarder {
    pub(super) fn new(clock: Arc<dyn Clock>, upstream: Upstream) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // A service that is gone does not end a response that has begun, or a WebSocket.
        connector.set_keepalive(Some(KEEP_ALIVE));
        connector.set_connect_timeout(Some(upstream.connect_timeout));
        // hyper does not notice that a request was cut while the service does not read its body.
        #[cfg(target_os = "linux")]
        connector.set_tcp_user_timeout(Some(upstream.unacknowledged));
        // It repeats a request only if it has sent no byte of it.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(upstream.idle)
            .http2_only(upstream.is_http2)
            .http1_max_buf_size(BUFFER_MAX_BYTES)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_send_buf_size(STREAM_WINDOW as usize)
            .build(connector.map_response(discard_unsent as fn(_) -> _));
        Self {
            clock,
            upstream,
            client,
        }
    }

    /// Checks what can be seen without sending anything.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub(super) fn check(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        if request.body().size_hint().lower() > self.upstream.body_max_bytes {
            return Err(self.too_large(""));
        }
        if self.upstream.is_http2 && headers::asks_for_websocket(request.headers()) {
            let detail = "a WebSocket needs a service that speaks HTTP/1.1";
            return Err(Refusal::new(Code::UpgradeRefused, detail));
        }
        Ok(())
    }

    /// Exchanges a request with the service.
    ///
    /// # Errors
    /// A [`Refusal`].
    pub(super) async fn forward(
        &self,
        request: Request<Incoming>,
        host: Option<HeaderValue>,
        peer: SocketAddr,
        pass: Option<Arc<Pass>>,
        permit: Option<Arc<OwnedSemaphorePermit>>,
    ) -> Result<Forwarded, Refusal> {
        let (mut head, body) = request.into_parts();
        let wants_tunnel = headers::asks_for_websocket(&head.headers);
        let client = wants_tunnel.then(|| head.extensions.remove()).flatten();
        headers::prepare(&mut head.headers, host.as_ref(), peer.ip(), head.version);
        if self.upstream.is_http2 {
            // The target has its authority, and both must agree (RFC 9113, section 8.3.1).
            head.headers.remove(HOST);
        }
        if !self.upstream.is_http2 && !body.is_end_stream() && body.size_hint().exact().is_none() {
            headers::announce_chunks(&mut head.headers);
        }
        let holds_head = self.upstream.is_http2 && pass.is_some();
        if holds_head && body.is_end_stream() {
            // The stream does not end with its head.
            head.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        let target = self.target(&head);
        let progress = Arc::new(Progress::new(self.clock.clone()));
        let body = RequestBody::new(
            Received::new(body, head.version),
            self.upstream.body_max_bytes,
            progress.clone(),
            pass.clone(),
            permit,
            holds_head,
        );
        let mut sent = Request::new(body);
        *sent.method_mut() = head.method;
        *sent.uri_mut() = target;
        *sent.headers_mut() = head.headers;
        let mut response = tokio::select! {
            biased;
            () = was_cut(pass.as_deref()) => return Err(cut()),
            response = self.client.request(sent) => response
                .map_err(|error| self.failed(&error, &progress, pass.as_deref()))?,
            () = progress.stalled(self.upstream.timeout) => return Err(self.stalled(&progress)),
        };
        let is_tunnel = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let tunnel = is_tunnel
            .then(|| Tunnel::new(client, &mut response))
            .transpose()?;
        let version = mem::take(response.version_mut());
        headers::prepare_response(response.headers_mut(), is_tunnel);
        Ok(Forwarded {
            response: response.map(|body| Received::new(body, version)),
            pass,
            progress,
            tunnel,
        })
    }

    fn target(&self, head: &request::Parts) -> Uri {
        let path = head.uri.path_and_query().cloned();
        let mut target = Uri::default().into_parts();
        target.scheme = Some(Scheme::HTTP);
        target.authority = Some(self.upstream.authority.clone());
        target.path_and_query = path.or_else(|| Some(PathAndQuery::from_static("/")));
        Uri::from_parts(target).unwrap_or_default()
    }

    fn failed(
        &self,
        error: &hyper_util::client::legacy::Error,
        progress: &Progress,
        pass: Option<&Pass>,
    ) -> Refusal {
        if error.is_connect() {
            // It received nothing.
            if let Some(pass) = pass {
                pass.answered();
            }
            let detail = format!(
                "{} cannot be reached; nothing was sent",
                self.upstream.authority
            );
            tracing::warn!(error = %chain(error), "connecting to the service failed");
            return Refusal::new(Code::ServiceUnreachable, detail);
        }
        // The cut of the body ends the exchange, too.
        if pass.is_some_and(|pass| pass.cut().is_cancelled()) {
            return cut();
        }
        if progress.is_too_large() {
            return self.too_large("; a part was sent, and the outcome is unknown");
        }
        if progress.is_broken() {
            let detail = "the body ended early or is invalid; the outcome is unknown";
            return Refusal::new(Code::RequestIncomplete, detail);
        }
        tracing::warn!(error = %chain(error), "service failed");
        let detail =
            "the service closed the connection, or its response is invalid; the outcome is unknown";
        Refusal::new(Code::ServiceFailed, detail)
    }

    fn stalled(&self, progress: &Progress) -> Refusal {
        let seconds = self.upstream.timeout.as_secs();
        if progress.waits_for_client() {
            let detail =
                format!("no part of the body arrived for {seconds} s; the outcome is unknown");
            return Refusal::new(Code::RequestTimeout, detail);
        }
        let detail = format!("the service did not respond for {seconds} s; the outcome is unknown");
        Refusal::new(Code::ServiceTimeout, detail)
    }

    fn too_large(&self, outcome: &str) -> Refusal {
        let detail = format!(
            "the body is longer than {} bytes; raise --max-body-bytes{outcome}",
            self.upstream.body_max_bytes
        );
        Refusal::new(Code::BodyTooLarge, detail)
    }
}

/// The kernel would continue to send what it has of a request after the connection was closed, or the process killed.
fn discard_unsent(connection: Connection) -> Connection {
    if let Err(error) = connection.inner().set_zero_linger() {
        tracing::warn!(%error, "setting a socket option failed");
    }
    connection
}

fn cut() -> Refusal {
    let detail = "a newer token, or the end of this fence's lease, ended this request; the outcome is unknown: verify \
                  your lease before you repeat it";
    Refusal::new(Code::Cut, detail)
}

async fn was_cut(pass: Option<&Pass>) {
    match pass {
        Some(pass) => pass.until_cut(pass.cut()).await,
        None => pending().await,
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

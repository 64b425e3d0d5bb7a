//! One request and its response, for the metrics and the access log: counted from its arrival until the last byte.

use std::net::SocketAddr;
use std::sync::Arc;

use http::header::HeaderValue;
use http::{Method, Request, StatusCode, Uri};
use tokio::sync::OwnedSemaphorePermit;

use super::headers;
use super::metrics::{ABANDONED, ABANDONED_UNSENT, Metrics};
use super::refusal::Refusal;
use super::server::Activity;
use crate::clock::Clock;
use crate::protocol::ids::Resource;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;

/// How many bytes of the names of clients are logged.
const FORWARDED_FOR_MAX: usize = 256;

/// Which requests are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Those that were not forwarded.
    Refused,
    /// All.
    All,
}

/// An exchange, until it is dropped.
pub(super) struct Exchange {
    metrics: Arc<Metrics>,
    line: Line,
    log: AccessLog,
    permit: Option<Arc<OwnedSemaphorePermit>>,
    _activity: Option<Arc<Activity>>,
}

/// A line of the access log.
struct Line {
    clock: Arc<dyn Clock>,
    started: Moment,
    peer: SocketAddr,
    method: Method,
    uri: Uri,
    /// Whom the proxy in front of the fence names as its client.
    forwarded_for: Option<HeaderValue>,
    guarded: Option<(Resource, Token)>,
    status: Option<StatusCode>,
    refusal: Option<Refusal>,
    /// Whether the service may have received it.
    is_sent: bool,
    bytes: usize,
}

impl Exchange {
    pub(super) fn begin<B>(
        metrics: Arc<Metrics>,
        clock: &Arc<dyn Clock>,
        log: AccessLog,
        peer: SocketAddr,
        request: &Request<B>,
        (permit, activity): (Option<Arc<OwnedSemaphorePermit>>, Option<Arc<Activity>>),
    ) -> Self {
        metrics.running().inc();
        let line = Line {
            clock: clock.clone(),
            started: clock.now(),
            peer,
            method: request.method().clone(),
            uri: request.uri().clone(),
            forwarded_for: headers::forwarded_for(request.headers()).cloned(),
            guarded: None,
            status: None,
            refusal: None,
            is_sent: false,
            bytes: 0,
        };
        Self {
            metrics,
            line,
            log,
            permit,
            _activity: activity,
        }
    }

    pub(super) fn guarded(&mut self, resource: &Resource, token: Token) {
        self.line.guarded = Some((resource.clone(), token));
    }

    /// The service may receive it from now on. Returns its permit, for the body, which hyper may keep for longer.
    pub(super) fn sending(&mut self) -> Option<Arc<OwnedSemaphorePermit>> {
        self.line.is_sent = true;
        self.permit.clone()
    }

    pub(super) fn forwarded(&mut self, status: StatusCode, is_fenced: bool) {
        let result = if is_fenced { "fenced" } else { "open" };
        self.metrics.result(result);
        self.line.status = Some(status);
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.metrics.result(refusal.code.name());
        self.line.status = Some(refusal.status());
        self.line.refusal = Some(refusal.clone());
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.line.bytes += bytes;
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.metrics.running().dec();
        let line = &self.line;
        let is_abandoned = line.status.is_none();
        if is_abandoned {
            self.metrics.result(line.abandoned());
        }
        // Newer tokens wait after an abandoned write, and the log says why.
        let is_notable = line.refusal.is_some() || (is_abandoned && line.guarded.is_some());
        if self.log == AccessLog::All || is_notable {
            line.log();
        }
    }
}

impl Line {
    fn code(&self) -> Option<&'static str> {
        match &self.refusal {
            Some(refusal) => Some(refusal.code.name()),
            None => self.status.is_none().then_some(self.abandoned()),
        }
    }

    const fn abandoned(&self) -> &'static str {
        if self.is_sent {
            ABANDONED
        } else {
            ABANDONED_UNSENT
        }
    }

    fn log(&self) {
        let took = self.clock.now().since(self.started);
        tracing::info!(
            client = %self.peer.ip().to_canonical(),
            forwardedFor = self.forwarded_for.as_ref().map(shortened),
            method = %self.method,
            // Without the query, which may have secrets.
            urlPath = self.uri.path(),
            resource = self.guarded.as_ref().map(|(resource, _)| resource.as_str()),
            fencingToken = self.guarded.as_ref().map(|(_, token)| token.get()),
            status = self.status.map(|status| status.as_u16()),
            code = self.code(),
            detail = self.refusal.as_ref().map(|refusal| refusal.detail.as_str()),
            bytes = self.bytes, micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            "request"
        );
    }
}

/// Returns the first bytes of a header, which its sender may have made long.
fn shortened(value: &HeaderValue) -> String {
    let bytes = value.as_bytes();
    String::from_utf8_lossy(&bytes[..bytes.len().min(FORWARDED_FOR_MAX)]).into_owned()
}

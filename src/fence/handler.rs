//! Answers one request: it is checked, passes the gate, and is forwarded, here or by the proxy that asked.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderValue;
use http::{Request, Response, StatusCode};
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::body::ResponseBody;
use super::exchange::{AccessLog, Exchange};
use super::forward::{Forwarded, Forwarder, Upstream};
use super::gate::{Gate, Pass};
use super::headers;
use super::metrics::Metrics;
use super::refusal::{Code, Refusal};
use super::reports::{Refused, Reports};
use super::rules::Rules;
use super::server::Activity;
use crate::clock::Clock;

/// How long a proxy that asks is kept waiting. It may forward a request as late as its own time limit for this answer
/// allows, so that limit counts as time in which older requests may still run, and must be short.
const CHECK_MAX: Duration = Duration::from_secs(2);

/// The body of an answer: the service's, or a problem document.
pub(super) type AnswerBody = Either<ResponseBody, Full<Bytes>>;

/// What is shared by all requests.
pub(super) struct Handler {
    pub(super) gate: Gate,
    pub(super) metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    rules: Rules,
    /// `None` if another proxy forwards, and this one only answers whether it may.
    forwarder: Option<Forwarder>,
    /// `None` if refusals are not reported.
    reports: Option<Arc<Reports>>,
    running: Arc<Semaphore>,
    access_log: AccessLog,
    /// The WebSockets.
    pub(super) tunnels: TaskTracker,
}

impl Handler {
    pub(super) fn new(
        gate: Gate,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
        (rules, upstream): (Rules, Option<Upstream>),
        reports: Option<Arc<Reports>>,
        max_requests: usize,
        access_log: AccessLog,
    ) -> Self {
        Self {
            gate,
            metrics,
            rules,
            forwarder: upstream.map(|upstream| Forwarder::new(clock.clone(), upstream)),
            clock,
            reports,
            running: Arc::new(Semaphore::new(max_requests)),
            access_log,
            tunnels: TaskTracker::new(),
        }
    }

    /// Answers a request.
    pub(super) async fn answer(
        self: Arc<Self>,
        peer: SocketAddr,
        request: Request<Incoming>,
        activity: Option<Arc<Activity>>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let permit = self.running.clone().try_acquire_owned().ok().map(Arc::new);
        let has_room = permit.is_some();
        let mut exchange = Exchange::begin(
            self.metrics.clone(),
            &self.clock,
            self.access_log,
            peer,
            &request,
            (permit, activity),
        );
        let passed = if has_room {
            self.admit(&request, &mut exchange).await
        } else {
            let detail = "the fence has as many requests as --max-requests allows; try again";
            Err(Refusal::new(Code::TooManyRequests, detail))
        };
        let (host, pass) = match passed {
            Ok(passed) => passed,
            Err(refusal) => return Ok(refused(exchange, &refusal)),
        };
        let permit = exchange.sending();
        let Some(forwarder) = &self.forwarder else {
            exchange.forwarded(StatusCode::OK, pass.is_some());
            // The proxy that asked does not report when its request ends, so each counts as of unknown outcome.
            return Ok(Response::new(Either::Right(Full::default())));
        };
        let forwarding = forwarder.forward(request, host, peer, pass, permit);
        Ok(match forwarding.await {
            Ok(Forwarded {
                response,
                pass,
                progress,
                tunnel,
            }) => {
                exchange.forwarded(response.status(), pass.is_some());
                if let Some(tunnel) = tunnel {
                    self.tunnels.spawn(tunnel.run(pass, exchange));
                    return Ok(response.map(|_none| Either::Right(Full::default())));
                }
                response.map(|body| Either::Left(ResponseBody::new(body, exchange, pass, progress)))
            }
            Err(refusal) => refused(exchange, &refusal),
        })
    }

    async fn admit(
        &self,
        request: &Request<Incoming>,
        exchange: &mut Exchange,
    ) -> Result<(Option<HeaderValue>, Option<Arc<Pass>>), Refusal> {
        let host = headers::check(request)?;
        if let Some(forwarder) = &self.forwarder {
            forwarder.check(request)?;
        }
        let guarded = self
            .rules
            .judge(request.method(), request.uri(), request.headers())?;
        let Some((resource, token)) = guarded else {
            return Ok((host, None));
        };
        exchange.guarded(&resource, token);
        let began = self.clock.now();
        let passing = self.gate.pass(&resource, token);
        let passed = if self.forwarder.is_some() {
            passing.await
        } else {
            let held = tokio::time::timeout(CHECK_MAX, passing).await;
            held.unwrap_or_else(|_elapsed| Err(unsettled()))
        };
        match passed {
            Ok(pass) => {
                self.metrics.waited(self.clock.now().since(began));
                Ok((host, Some(Arc::new(pass))))
            }
            Err(refusal) => {
                if let (Some(reports), Code::StaleToken, Some(latest)) =
                    (&self.reports, refusal.code, refusal.latest)
                {
                    reports.add(Refused {
                        resource,
                        token,
                        latest,
                    });
                }
                Err(refusal)
            }
        }
    }
}

fn unsettled() -> Refusal {
    let detail = "requests with older tokens may still be running, or the lock is still being read; nothing was sent; \
                  try again";
    Refusal::new(Code::Unsettled, detail)
}

fn refused(mut exchange: Exchange, refusal: &Refusal) -> Response<AnswerBody> {
    exchange.refused(refusal);
    refusal.response().map(Either::Right)
}

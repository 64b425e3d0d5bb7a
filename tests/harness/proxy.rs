//! A plain-HTTP proxy between one sidecar and the API server. It drops and delays messages by their
//! meaning. The caller's credentials pass through; the connection to the API server is TLS.
//!
//! It never repeats a request, and a forwarded request completes whether or not its client waits
//! for it.

#[path = "proxy/classify.rs"]
mod classify;
#[path = "proxy/rules.rs"]
mod rules;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use axum::body::{Body as AnswerBody, Bytes};
use futures::StreamExt as _;
use http::{Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ClientBuilder, ConfigExt};
use leasehold::protocol::time::Moment;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, ServiceBuilder};

pub(crate) use classify::Class;
pub(crate) use rules::{Fault, RuleId};

use super::cluster::Cluster;
use super::wait::now;
use classify::Memory;
use rules::Rules;

/// The API server accepts no larger request, either.
const BODY_MAX: usize = 3 << 20;

/// The proxy. Dropping it closes its port.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) url: String,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

/// A request that passed the proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange {
    /// The meaning of the request.
    pub(crate) class: Class,
    /// When it arrived.
    pub(crate) at: Moment,
    /// The injected fault.
    pub(crate) fault: Option<Fault>,
    /// The API server's answer, if there is one yet.
    pub(crate) status: Option<u16>,
}

struct Shared {
    upstream: String,
    client: kube::Client,
    state: Mutex<State>,
    paused: watch::Sender<bool>,
    /// Whether messages that a rule holds back may pass.
    held_may_pass: watch::Sender<bool>,
    /// The number of messages that a fault affected.
    met: AtomicUsize,
}

#[derive(Default)]
struct State {
    memory: Memory,
    rules: Rules,
    exchanges: Vec<Exchange>,
    /// Cancelled when the open watches stall.
    watches: CancellationToken,
}

impl Proxy {
    /// Starts a proxy in front of a cluster's API server.
    pub(crate) async fn start(cluster: &Cluster) -> Result<Self> {
        Self::start_on(cluster, "127.0.0.1").await
    }

    /// The same, at another address of this machine.
    pub(crate) async fn start_on(cluster: &Cluster, address: &str) -> Result<Self> {
        let control_plane = cluster.control_plane();
        let config = control_plane.admin().config().await?;
        // The certificates are the administrator's; the credentials are each caller's.
        let mut tcp = legacy::connect::HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(tcp)?;
        let client = legacy::Client::builder(TokioExecutor::new()).build(connector);
        // kube's own stack would retry requests that were answered with 429, 503 or 504.
        let service = ServiceBuilder::new()
            .map_err(BoxError::from)
            .service(client);
        let listener = TcpListener::bind((address, 0)).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared {
            upstream: control_plane.server(),
            client: ClientBuilder::new(service, config.default_namespace).build(),
            state: Mutex::default(),
            paused: watch::Sender::new(false),
            held_may_pass: watch::Sender::new(false),
            met: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            url,
            shared,
            accepting,
        })
    }

    /// Injects a fault into the next `count` requests of a class.
    pub(crate) fn fail(&self, class: Class, count: usize, fault: Fault) -> RuleId {
        self.shared.state().rules.add(class, count, fault)
    }

    /// Removes a rule.
    pub(crate) fn lift(&self, rule: RuleId) {
        self.shared.state().rules.lift(rule);
    }

    /// Removes all rules.
    pub(crate) fn lift_all(&self) {
        self.shared.state().rules.lift_all();
    }

    /// From now on injects a random fault into this percentage of requests; 0 stops that.
    pub(crate) fn make_noise(&self, seed: u64, percent: u32) {
        self.shared.state().rules.make_noise(seed, percent);
    }

    /// Releases the messages that a rule held back, and holds back no more of them.
    pub(crate) fn resume_held(&self) {
        self.shared.held_may_pass.send_replace(true);
    }

    /// Stops all messages in both directions; connections stay open.
    pub(crate) fn pause(&self) {
        self.shared.paused.send_replace(true);
    }

    /// Lets all messages pass again.
    pub(crate) fn resume(&self) {
        self.shared.paused.send_replace(false);
    }

    /// Delivers no more events to the open watches; their connections stay open. Later watches are
    /// not affected.
    pub(crate) fn stall_watches(&self) {
        std::mem::take(&mut self.shared.state().watches).cancel();
    }

    /// Returns all requests so far, in order.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        self.shared.state().exchanges.clone()
    }

    /// Returns the number of messages that met a fault, a pause or a stalled watch so far.
    pub(crate) fn met(&self) -> usize {
        self.shared.met.load(Ordering::Relaxed)
    }

    /// Returns the number of requests of a class.
    pub(crate) fn count(&self, class: Class) -> usize {
        let state = self.shared.state();
        let of_it = |exchange: &&Exchange| exchange.class == class;
        state.exchanges.iter().filter(of_it).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(serve(stream, shared));
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Without it small answers are delayed by 40 ms.
    let _outcome = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { shared.handle(request).await }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // An error of the service closes the connection without an answer, as intended.
    let _outcome = connection.await;
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn handle(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<AnswerBody>> {
        self.until_resumed().await;
        let (parts, body) = request.into_parts();
        let body = axum::body::to_bytes(AnswerBody::new(body), BODY_MAX).await?;
        let (index, class, fault) = self.note_request(&parts, &body);
        match fault {
            Some(Fault::RequestLost) => return Err(anyhow!("the request is lost")),
            Some(Fault::TimeoutBefore) => return Ok(gateway_timeout()),
            _ => {}
        }
        let request = self.outgoing(parts, &body)?;
        // In a separate task: hyper drops this future when the client disconnects, and that must
        // not cancel a request that was sent.
        let answered = tokio::spawn(Arc::clone(&self).forward(request, index, class, fault));
        let answer = answered.await??;
        self.until_resumed().await;
        match fault {
            Some(Fault::AnswerLost) => Err(anyhow!("the answer is lost")),
            Some(Fault::TimeoutAfter) => Ok(gateway_timeout()),
            Some(Fault::AnswerLate(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(answer)
            }
            Some(Fault::AnswerHeld) => {
                self.until_held_pass().await;
                Ok(answer)
            }
            _ => Ok(answer),
        }
    }

    fn note_request(
        &self,
        parts: &http::request::Parts,
        body: &[u8],
    ) -> (usize, Class, Option<Fault>) {
        let body = serde_json::from_slice(body).unwrap_or_default();
        let mut state = self.state();
        let class = state.memory.classify(&parts.method, &parts.uri, &body);
        let fault = state.rules.next_fault(class);
        if fault.is_some() {
            self.note_met();
        }
        state.exchanges.push(Exchange {
            class,
            at: now(),
            fault,
            status: None,
        });
        (state.exchanges.len() - 1, class, fault)
    }

    fn outgoing(&self, parts: http::request::Parts, body: &Bytes) -> Result<Request<Body>> {
        let path = parts.uri.path_and_query().context("a request has a path")?;
        let mut request = Request::new(Body::from(body.to_vec()));
        *request.uri_mut() = format!("{}{path}", self.upstream).parse::<Uri>()?;
        *request.method_mut() = parts.method;
        *request.headers_mut() = parts.headers;
        request.headers_mut().remove(http::header::HOST);
        Ok(request)
    }

    async fn forward(
        self: Arc<Self>,
        request: Request<Body>,
        index: usize,
        class: Class,
        fault: Option<Fault>,
    ) -> Result<Response<AnswerBody>> {
        match fault {
            Some(Fault::RequestLate(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::RequestHeld) => self.until_held_pass().await,
            _ => {}
        }
        let (parts, body) = self.client.send(request).await?.into_parts();
        self.state().exchanges[index].status = Some(parts.status.as_u16());
        if class == Class::Watch {
            let stalled = self.state().watches.clone();
            return Ok(Response::from_parts(parts, self.events(body, stalled)));
        }
        let bytes = body.collect_bytes().await?.to_vec();
        if let Ok(answer) = serde_json::from_slice::<Value>(&bytes) {
            self.state().memory.note(&answer);
        }
        Ok(Response::from_parts(parts, AnswerBody::from(bytes)))
    }

    /// Returns the events of a watch, until the watch stalls.
    fn events(self: Arc<Self>, body: Body, stalled: CancellationToken) -> AnswerBody {
        let events = AnswerBody::new(body).into_data_stream();
        let mut rest = Vec::new();
        AnswerBody::from_stream(events.then(move |event| {
            if let Ok(piece) = &event {
                self.state().memory.note_events(&mut rest, piece);
            }
            let (shared, stalled) = (Arc::clone(&self), stalled.clone());
            async move {
                shared.until_resumed().await;
                if stalled.is_cancelled() {
                    shared.note_met();
                    std::future::pending::<()>().await;
                }
                event
            }
        }))
    }

    fn note_met(&self) {
        self.met.fetch_add(1, Ordering::Relaxed);
    }

    async fn until_held_pass(&self) {
        // The sender lives as long as `self`.
        let mut held_may_pass = self.held_may_pass.subscribe();
        let _gone = held_may_pass.wait_for(|may_go| *may_go).await;
    }

    async fn until_resumed(&self) {
        // The sender lives as long as `self`.
        let mut paused = self.paused.subscribe();
        if *paused.borrow() {
            self.note_met();
        }
        let _resumed = paused.wait_for(|paused| !paused).await;
    }
}

/// Returns the API server's own answer when a request times out.
fn gateway_timeout() -> Response<AnswerBody> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": "Timeout", "code": 504,
        "message": "Timeout: request did not complete within the allotted timeout",
    });
    let mut answer = Response::new(AnswerBody::from(status.to_string().into_bytes()));
    *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    answer
}

//! Shares connections to the API server between requests.
//!
//! The API server supports HTTP/2, so all calls and watches of a client share one connection. Calls
//! to a server with only HTTP/1.1 take one connection each. This is a service around hyper's pool,
//! and does not know what a request means.
//!
//! Invariant: a request that is dropped before its response headers arrive is the last one on its
//! connection. HTTP/2 would only reset the stream, and the next call could be sent on a dead
//! connection. HTTP/1.1 closes it anyway.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service};

/// Opens connections, with its own timeout.
pub(super) type Connector =
    BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;
type Pool = legacy::Client<Connector, Body>;

/// hyper's pool, which opens one connection at a time.
#[derive(Clone)]
pub(super) struct SharedConnection {
    pool: Pool,
    /// Locked while a request gets its connection. Without it, concurrent requests would open one
    /// connection each, and all but one would be closed again.
    opening: Arc<Mutex<()>>,
}

impl SharedConnection {
    pub(super) fn new(pool: Pool) -> Self {
        Self {
            pool,
            opening: Arc::default(),
        }
    }
}

impl Service<Request<Body>> for SharedConnection {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // The pool accepts any number of requests.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let connection = capture_connection(&mut request);
        let mut pending = PendingRequest(Some(connection.clone()));
        let answer = self.pool.request(request);
        let answer = get_connection_first(answer, connection, Arc::clone(&self.opening));
        // A separate task, because a caller may keep this future without polling it, and would keep
        // `opening` locked.
        let exchange = AbortOnDropHandle::new(tokio::spawn(answer));
        Box::pin(async move {
            let answer = exchange.await;
            pending.complete();
            Ok(answer??)
        })
    }
}

async fn get_connection_first(
    mut answer: legacy::ResponseFuture,
    mut connection: CaptureConnection,
    opening: Arc<Mutex<()>>,
) -> Result<Response<Incoming>, legacy::Error> {
    let taking = opening.lock().await;
    let early = tokio::select! {
        biased;
        answer = &mut answer => Some(answer),
        _ = connection.wait_for_connection_metadata() => None,
    };
    drop(taking);
    match early {
        Some(answer) => answer,
        None => answer.await,
    }
}

/// A request without an answer yet. Dropping it closes its connection for further requests.
struct PendingRequest(Option<CaptureConnection>);

impl PendingRequest {
    fn complete(&mut self) {
        self.0 = None;
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        let connection = self.0.as_ref().map(CaptureConnection::connection_metadata);
        if let Some(Some(connected)) = connection.as_deref() {
            connected.poison();
        }
    }
}

#[cfg(test)]
mod tests;

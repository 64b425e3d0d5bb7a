//! How requests share connections to the API server.
//!
//! The API server speaks HTTP/2, so all calls of a process and its watch share one connection,
//! however many there are at once. A server that speaks only HTTP/1.1 gets a connection for each
//! call under way. This is a service around hyper's pool, and does not know what a request means.
//!
//! Invariant: a request that was given up without an answer is the last one on its connection.
//! HTTP/1.1 has no other way. Over HTTP/2 only the stream would end, and the next call would be
//! sent into the same silence.

use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{CaptureConnection, Connection, capture_connection};
use kube::client::Body;
use tokio::sync::Mutex;
use tower::{BoxError, Service};

/// hyper's pool, which opens at most one connection at a time.
#[derive(Clone)]
pub(super) struct SharedConnection<C> {
    pool: legacy::Client<C, Body>,
    /// Held from taking a connection, or opening one, to having it. Without it, requests that find
    /// no connection open one each, and all but one of these are closed again.
    opening: Arc<Mutex<()>>,
}

impl<C> SharedConnection<C> {
    pub(super) fn new(pool: legacy::Client<C, Body>) -> Self {
        Self {
            pool,
            opening: Arc::default(),
        }
    }
}

impl<C> Service<Request<Body>> for SharedConnection<C>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
    C::Future: Send + Unpin + 'static,
    C::Error: Into<BoxError>,
{
    type Response = Response<Incoming>;
    type Error = legacy::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // The pool takes any number of requests.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut connection = capture_connection(&mut request);
        let mut unanswered = Unanswered(Some(connection.clone()));
        let mut answer = self.pool.request(request);
        let opening = Arc::clone(&self.opening);
        Box::pin(async move {
            let taking = opening.lock_owned().await;
            let early = tokio::select! {
                biased;
                answer = &mut answer => Some(answer),
                _ = connection.wait_for_connection_metadata() => None,
            };
            drop(taking);
            let answer = match early {
                Some(answer) => answer,
                None => answer.await,
            };
            unanswered.was_answered();
            answer
        })
    }
}

/// A request without an answer yet. Dropping it takes its connection out of use.
struct Unanswered(Option<CaptureConnection>);

impl Unanswered {
    fn was_answered(&mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let connection = self.0.as_ref().map(CaptureConnection::connection_metadata);
        if let Some(Some(connected)) = connection.as_deref() {
            connected.poison();
        }
    }
}

#[cfg(test)]
mod tests;

//! A way to the sidecar on which something happens to requests or answers: a proxy that knows HTTP.
//!
//! It changes nothing that it passes on, and passes on the events of a stream as they come.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use leasehold::clock::{Clock as _, SystemClock};
use leasehold::protocol::time::Moment;
use reqwest::{Body, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// What happens to a request.
#[derive(Clone, Copy)]
pub(super) enum Handling {
    Passes,
    /// Its answer arrives late, as on a busy machine.
    Late(Duration),
    /// The connection breaks when the answer is on its way.
    Unanswered,
    /// It is answered with 503, and does not reach the sidecar.
    Unavailable,
}

/// Dropping it refuses further connections.
pub(super) struct Way {
    url: String,
    traffic: Arc<Traffic>,
    work: JoinHandle<()>,
}

/// Decides on a request by its method and its path.
type Rule = Box<dyn FnMut(&str) -> Handling + Send>;

struct Traffic {
    sidecar: String,
    http: Client,
    rule: Mutex<Rule>,
    seen: Mutex<Vec<String>>,
    promised: Mutex<Option<Moment>>,
}

impl Way {
    pub(super) async fn to(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let traffic = Arc::new(Traffic {
            sidecar: url.to_owned(),
            http: Client::builder().no_proxy().build().unwrap(),
            rule: Mutex::new(Box::new(|_| Handling::Passes)),
            seen: Mutex::default(),
            promised: Mutex::default(),
        });
        Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            traffic: traffic.clone(),
            work: tokio::spawn(serve(listener, traffic)),
        }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sets what happens from now on.
    pub(super) fn rule(&self, rule: impl FnMut(&str) -> Handling + Send + 'static) {
        *self.traffic.rule.lock().unwrap() = Box::new(rule);
    }

    /// Returns how many requests have come whose method and path contain some words.
    pub(super) fn count(&self, words: &str) -> usize {
        let seen = self.traffic.seen.lock().unwrap();
        seen.iter().filter(|line| line.contains(words)).count()
    }

    /// Returns until when the lease is valid at the latest by the answers so far: the app has sent a
    /// request no later than it came here.
    pub(super) fn promised(&self) -> Option<Moment> {
        *self.traffic.promised.lock().unwrap()
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.work.abort();
    }
}

async fn serve(listener: TcpListener, traffic: Arc<Traffic>) {
    loop {
        let (app, _) = listener.accept().await.unwrap();
        let traffic = traffic.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| traffic.take(request));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(app), service);
            let _broken_by_an_error_or_by_the_app = connection.await;
        });
    }
}

impl Traffic {
    /// Answers a request. An error breaks the connection.
    async fn take(&self, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
        let came = SystemClock.now();
        let line = format!("{} {}", request.method(), request.uri());
        let handling = (self.rule.lock().unwrap())(&line);
        self.seen.lock().unwrap().push(line);
        match handling {
            Handling::Passes => self.pass_on(request, came).await,
            Handling::Late(delay) => {
                let answer = self.pass_on(request, came).await?;
                tokio::time::sleep(delay).await;
                Ok(answer)
            }
            Handling::Unanswered => {
                self.pass_on(request, came).await?;
                anyhow::bail!("the answer gets lost")
            }
            Handling::Unavailable => {
                let problem = json!({"code": "resuming", "status": 503, "detail": "just started"});
                let answer = Response::builder()
                    .status(StatusCode::SERVICE_UNAVAILABLE)
                    .header("content-type", "application/problem+json");
                Ok(answer.body(problem.to_string().into())?)
            }
        }
    }

    async fn pass_on(
        &self,
        request: Request<Incoming>,
        came: Moment,
    ) -> anyhow::Result<Response<Body>> {
        let (mut head, body) = request.into_parts();
        head.uri = format!("{}{}", self.sidecar, head.uri).parse()?;
        let body = body.collect().await?.to_bytes();
        let request = Request::from_parts(head, body).try_into()?;
        let answer: Response<Body> = self.http.execute(request).await?.into();
        // A stream does not end.
        if !answer.headers().contains_key(CONTENT_LENGTH) {
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        self.record(came, &body);
        Ok(Response::from_parts(head, body.into()))
    }

    fn record(&self, came: Moment, body: &Bytes) {
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        if let Some(valid) = document["validForMs"].as_u64() {
            let until = came.after(Duration::from_millis(valid));
            let mut promised = self.promised.lock().unwrap();
            *promised = promised.max(Some(until));
        }
    }
}

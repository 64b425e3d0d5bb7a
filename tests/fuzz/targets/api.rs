//! Requests of apps, one after the other, to the router of an agent with a store in memory. Each
//! request is answered, and a refusal is a problem document. A request that is refused for its form
//! writes nothing. Tokens increase.
//!
//! An input contains requests in the form of HTTP, separated by a line `---`. `$LEASE` and `$TOKEN`
//! stand for the values of the last lease. A request with the prefix `older ` goes to the API of
//! older election sidecars.

mod answers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Request};
use leasehold::agent::{Agent, Config};
use leasehold::clock::Clock as _;
use leasehold::http::{Compat, HttpOptions, Router, compat_router, router};
use leasehold::protocol::election::ElectionName;
use leasehold::protocol::session::PodRef;
use leasehold::protocol::token::Revision;
use leasehold::store::LockStore as _;
use leasehold::store::embedded::EmbeddedStore;
use tower::ServiceExt as _;

use super::{Outcome, Target, no_seeds};
use crate::paused_clock::PausedClock;
use answers::{Answer, assert_problem};

/// The maximum number of requests in an input.
const REQUESTS_MAX: usize = 6;
/// The maximum number of chunks to read from a stream.
const CHUNKS_MAX: usize = 4;
/// How long to read, in paused time.
const PATIENCE: Duration = Duration::from_secs(20);
/// The prefix of a request to the older API.
const OLDER: &str = "older ";
/// An additional host name that is allowed, as by `--allow-host`.
const ALLOWED: &str = "sidecar.test";

pub(crate) const TARGET: Target = Target {
    name: "api",
    run: |input| target(input, |router| router),
    broken: |input| target(input, without_documents),
    seeds: no_seeds,
    words: &[
        "GET ",
        "POST ",
        "DELETE ",
        "PUT ",
        "/v1/locks",
        "/v1/locks/acquire",
        "/v1/locks/hold",
        "/v1/locks/$LEASE",
        "/v1/locks/$LEASE/renew",
        "/v1/locks/$LEASE/events",
        "/v1/fencing/verify",
        "/v1/fencing/verify-batch",
        "/v1/elections/jobs",
        "/v1/elections/jobs/candidacy",
        "/v1/elections/jobs/events",
        "/openapi.json",
        "older GET /",
        "older GET /sse",
        "?prefix=",
        "&limit=",
        "&continue=",
        "\nHost: localhost",
        "\nOrigin: ",
        "\nContent-Type: application/json",
        "\nSec-Fetch-Site: ",
        "\nX-Fencing-Token: 7",
        "\n\n",
        "\n---\n",
        "$LEASE",
        "$TOKEN",
        "resource",
        "ownerId",
        "ttlSeconds",
        "waitSeconds",
        "keepSeconds",
        "maxHoldSeconds",
        "metadata",
        "requestId",
        "fencingToken",
        "preferred",
        "election:jobs",
        "localhost:7373",
        "127.0.0.1",
        "[::1]:7373",
        "sidecar.test",
        "evil.example",
        "%2F",
        "%FF",
    ],
    tries: 2_500,
};

fn target(input: &[u8], change: fn(Router) -> Router) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.unwrap().block_on(async {
        let mut app = App::new(change);
        let text = String::from_utf8_lossy(input);
        let mut told = Vec::new();
        let mut is_taken = false;
        for text in text.split("\n---\n").take(REQUESTS_MAX) {
            let older = text.strip_prefix(OLDER);
            let Some(request) = app.request(older.unwrap_or(text)) else {
                told.push("no request".to_owned());
                continue;
            };
            let answer = app.send(request, older.is_some()).await;
            is_taken |= answer.status < 400;
            told.push(answer.name());
        }
        told.truncate(2);
        let told = told.join(", ");
        if is_taken {
            Outcome::Taken(told)
        } else {
            Outcome::Refused(told)
        }
    })
}

/// An app beside a sidecar.
struct App {
    router: Router,
    /// The API of older election sidecars.
    older: Router,
    store: EmbeddedStore,
    clock: Arc<PausedClock>,
    /// The largest token that was returned, by resource.
    tokens: BTreeMap<String, u64>,
    lease: String,
    token: String,
}

impl App {
    fn new(change: fn(Router) -> Router) -> Self {
        let store = EmbeddedStore::in_memory(Revision(1_000)).unwrap();
        let pod = PodRef {
            name: "pod-a".into(),
            uid: "uid-a".into(),
            node: None,
        };
        let (locks, sessions) = (Arc::new(store.clone()), Arc::new(store.clone()));
        let clock = Arc::new(PausedClock::start());
        let agent = Agent::new(Config::new(pod), locks, sessions, Arc::clone(&clock) as _);
        let options = HttpOptions {
            allowed_hosts: vec![ALLOWED.to_owned()],
            namespace: None,
        };
        let compat = Compat {
            election: ElectionName::parse("jobs").unwrap(),
            nais: true,
        };
        let older = compat_router(agent.clone(), options.clone(), compat);
        Self {
            router: change(router(agent, options)),
            older: change(older),
            store,
            clock,
            tokens: BTreeMap::new(),
            lease: "none.0".to_owned(),
            token: "1".to_owned(),
        }
    }

    /// Returns `None` if HTTP does not permit the request.
    fn request(&self, text: &str) -> Option<Request<String>> {
        let text = text
            .replace("$LEASE", &self.lease)
            .replace("\"$TOKEN\"", &self.token);
        let (head, body) = text.split_once("\n\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let (method, target) = lines.next()?.split_once(' ')?;
        let mut request = Request::builder().method(method).uri(target);
        for line in lines {
            let (name, value) = line.split_once(": ")?;
            let name: HeaderName = name.parse().ok()?;
            request = request.header(name, HeaderValue::from_str(value).ok()?);
        }
        request.body(body.to_owned()).ok()
    }

    /// Sends a request, and checks the answer.
    async fn send(&mut self, request: Request<String>, is_older: bool) -> Answer {
        let (head, body) = request.into_parts();
        // A held lock has background tasks that write, too.
        let before = if self.tokens.is_empty() {
            Some(self.revision().await)
        } else {
            None
        };
        let sent = Request::from_parts(head.clone(), Body::from(body.clone()));
        let sent_at = self.clock.now();
        let router = if is_older { &self.older } else { &self.router };
        let response = router.clone().oneshot(sent).await.unwrap();
        let answer = Answer::read(response, is_older).await;
        answers::assert_guarded(&head, &answer, ALLOWED);
        if is_older && answer.status < 400 {
            let is_led = self.tokens.contains_key("election:jobs");
            answers::assert_names(&answer, is_led.then_some("pod-a"));
        }
        if answer.status >= 400 {
            assert_problem(&answer);
            if let (Some(before), 400..=408 | 413 | 422) = (before, answer.status) {
                assert_eq!(
                    self.revision().await,
                    before,
                    "a refusal has written: {answer:?}"
                );
            }
        }
        self.note(&answer, &body, self.clock.now().since(sent_at));
        answer
    }

    async fn revision(&self) -> Revision {
        self.store.list(1, None).await.unwrap().revision
    }

    /// Records the leases of an answer. Each token is larger than all previous ones.
    fn note(&mut self, answer: &Answer, body: &str, took: Duration) {
        for told in answer.leases() {
            let (Some(resource), Some(token)) =
                (told["resource"].as_str(), told["fencingToken"].as_u64())
            else {
                panic!("a lease without a resource or a token: {told}");
            };
            answers::assert_lease(answer, told, body, took);
            let known = self.tokens.entry(resource.to_owned()).or_default();
            if told["replayed"] != true {
                assert!(token > *known, "{token} of {resource} comes after {known}");
            }
            *known = token.max(*known);
            self.lease = told["leaseId"].as_str().expect("it has an id").to_owned();
            self.token = token.to_string();
        }
    }
}

/// Reads the beginning of a body, or all of it if it ends.
async fn beginning(body: Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunks: BodyDataStream = body.into_data_stream();
    let reading = async {
        for _ in 0..CHUNKS_MAX {
            match chunks.next().await {
                Some(chunk) => bytes.extend_from_slice(&chunk.expect("a body does not break off")),
                None => break,
            }
        }
    };
    // A waiter's stream is silent for a while.
    let _ = tokio::time::timeout(PATIENCE, reading).await;
    bytes
}

/// Planted fault: a 404 answer of axum itself, without a problem document.
fn without_documents(router: Router) -> Router {
    router.layer(middleware::map_response(async |response: Response| {
        if response.status() == 404 {
            return response.status().into_response();
        }
        response
    }))
}

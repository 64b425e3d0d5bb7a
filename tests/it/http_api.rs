//! The HTTP API over a real socket, on a store in memory: answers, refusals with their messages,
//! and that a refusal leaves the store unchanged.

mod complete;
mod connections;
mod elections;
mod events;
mod floods;
mod held;
mod leases;
mod local_only;
mod refused_writes;
mod requests;
mod stores;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::agent::{Agent, Config};
use leasehold::clock::ManualClock;
use leasehold::http::serve::{Bounds, serve};
use leasehold::http::{HttpOptions, router};
use leasehold::protocol::session::PodRef;
use leasehold::store::StoreError;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::memory_store::{Call, MemoryStore};

const VERIFY_BATCH: &str = "/v1/fencing/verify-batch";

/// A sidecar of one pod, served on its own port.
struct Sidecar {
    agent: Agent,
    store: MemoryStore,
    clock: ManualClock,
    address: SocketAddr,
    client: reqwest::Client,
    stop: CancellationToken,
}

/// An answer to a client.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl Sidecar {
    async fn start() -> Self {
        Self::in_pod("pod-a", &MemoryStore::default(), |_| {}).await
    }

    async fn in_pod(pod: &str, store: &MemoryStore, adjust: impl FnOnce(&mut Config)) -> Self {
        Self::with_agent(pod, store, adjust, |agent| agent).await
    }

    async fn with_agent(
        pod: &str,
        store: &MemoryStore,
        adjust: impl FnOnce(&mut Config),
        complete: impl FnOnce(Agent) -> Agent,
    ) -> Self {
        let mut config = Config::new(PodRef {
            name: pod.into(),
            uid: format!("uid-of-{pod}").into(),
            node: None,
        });
        config.metrics_prefixes = BTreeSet::new();
        adjust(&mut config);
        let clock = ManualClock::default();
        let stores = (Arc::new(store.clone()), Arc::new(store.clone()));
        let agent = Agent::new(config, stores.0, stores.1, Arc::new(clock.clone()));
        let agent = complete(agent);
        let options = HttpOptions {
            allowed_hosts: vec!["sidecar.test".into()],
            namespace: Some("team-a".into()),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serve(
            listener,
            router(agent.clone(), options),
            Bounds::API,
            stop.clone(),
        ));
        Self {
            agent,
            store: store.clone(),
            clock,
            address,
            client: reqwest::Client::new(),
            stop,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url)
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::POST, path).json(&body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    async fn acquire(&self, resource: &str) -> Answer {
        let body = json!({"resource": resource, "ttlSeconds": 30});
        self.post("/v1/locks/acquire", body).await
    }

    /// Acquires a lock, and returns the path of the lease.
    async fn lease(&self, resource: &str) -> String {
        let acquired = self.acquire(resource).await;
        assert_eq!(acquired.status, 200, "{acquired:?}");
        format!("/v1/locks/{}", acquired.body["leaseId"].as_str().unwrap())
    }

    /// From now on the store answers matching calls with an error, and time passes. Each such call takes a
    /// second, so that retries end.
    fn fail_slowly(&self, failing: impl Fn(Call) -> bool + Send + 'static, error: StoreError) {
        let (clock, stop) = (self.clock.clone(), self.stop.clone());
        tokio::spawn(async move {
            let tick = Duration::from_millis(10);
            while !stop.is_cancelled() {
                tokio::time::sleep(tick).await;
                clock.advance(tick);
            }
        });
        let clock = self.clock.clone();
        self.store.on_call(move |call| {
            failing(call).then(|| {
                clock.advance(Duration::from_secs(1));
                error.clone()
            })
        });
    }

    async fn verify(&self, resource: &str, token: u64) -> Answer {
        let body = json!({"resource": resource, "fencingToken": token});
        self.post("/v1/fencing/verify", body).await
    }

    /// Sends a request, and asserts that it causes no write.
    async fn without_a_write(&self, request: impl Future<Output = Answer>) -> Answer {
        let before = self.store.writes();
        let answer = request.await;
        assert_eq!(self.store.writes(), before, "a write was made: {answer:?}");
        answer
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Answer {
    /// Asserts that it is this kind of problem document, with these words in its detail.
    #[track_caller]
    fn is_problem(&self, status: u16, code: &str, words: &str) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.body["code"], code, "{self:?}");
        assert_eq!(self.body["status"], status);
        assert_eq!(self.body["type"], format!("urn:leasehold:problem:{code}"));
        assert!(self.body["title"].is_string());
        let detail = self.body["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{detail:?} has no {words:?}");
        self
    }
}

async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let bytes = response.bytes().await.unwrap();
    let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    Answer {
        status,
        headers,
        body,
    }
}

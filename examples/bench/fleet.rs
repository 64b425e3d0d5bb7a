//! A fleet of live sessions and of the locks that they hold: the same objects as many sidecars
//! write. It uses as little CPU as possible, because the operator is measured on the same machine.
//!
//! The administrator writes all objects, and no policy applies to those writes. The cost of a pod's
//! writes is measured elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use kube::Client;
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockWriteGuard, Semaphore};
use tokio::task::JoinHandle;

use crate::harness::Namespace;

/// How long a session may be silent.
const TTL: Duration = Duration::from_secs(60);
/// The maximum number of concurrent writes.
const AT_ONCE: usize = 16;
const WHEN: &str = "2026-01-01T00:00:00.000000Z";

/// The size of a fleet.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) sessions: usize,
    /// The first session holds `first` of these locks. The other sessions hold the rest in equal
    /// parts.
    pub(crate) held: usize,
    pub(crate) first: usize,
    pub(crate) free: usize,
}

/// A fleet whose sessions are renewed. Dropping it ends the renewals.
pub(crate) struct Fleet {
    renewals: Arc<Renewals>,
    sessions: Vec<JoinHandle<()>>,
    /// The name of the first session.
    pub(crate) first: String,
}

/// The state that all renewals share.
struct Renewals {
    client: Client,
    path: String,
    done: AtomicU64,
    failed: AtomicU64,
    may_begin: RwLock<()>,
    places: Semaphore,
}

/// The part of an answer that is read.
#[derive(Deserialize)]
struct Written {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

impl Fleet {
    /// Creates the fleet in a namespace: first the sessions, whose renewals start immediately, then
    /// the locks.
    pub(crate) async fn make(namespace: &Namespace, size: Size) -> Result<Self> {
        let path = format!("/apis/leasehold.dev/v1alpha1/namespaces/{}", namespace.name);
        let renewals = Arc::new(Renewals {
            client: namespace.client.clone(),
            path,
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            may_begin: RwLock::new(()),
            places: Semaphore::new(AT_ONCE),
        });
        let sessions = (0..size.sessions).map(|number| renewals.clone().live(number));
        let sessions = stream::iter(sessions).buffered(AT_ONCE).try_collect();
        let fleet = Self {
            renewals: renewals.clone(),
            sessions: sessions.await?,
            first: session_name(0),
        };
        let locks = (0..size.held + size.free).map(|number| renewals.lock(size, number));
        let locks = stream::iter(locks).buffer_unordered(AT_ONCE);
        locks.try_collect::<Vec<()>>().await?;
        Ok(fleet)
    }

    /// Waits until all renewals in flight are answered. No renewal starts while the guard is held.
    pub(crate) async fn still(&self) -> RwLockWriteGuard<'_, ()> {
        self.renewals.may_begin.write().await
    }

    /// Returns the number of successful and of refused renewals.
    pub(crate) fn renewed(&self) -> (u64, u64) {
        let (done, failed) = (&self.renewals.done, &self.renewals.failed);
        (done.load(Ordering::Relaxed), failed.load(Ordering::Relaxed))
    }

    /// Stops the renewals of the first session.
    pub(crate) fn silence_the_first(&self) {
        self.sessions[0].abort();
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for session in &self.sessions {
            session.abort();
        }
    }
}

impl Renewals {
    async fn write(&self, request: Request<Vec<u8>>) -> Result<String> {
        let answer = self.client.request_text(request).await?;
        let written: Written = serde_json::from_str(&answer)?;
        Ok(written.metadata.resource_version)
    }

    async fn create(&self, kind: &str, object: &Value) -> Result<String> {
        let request = Request::post(format!("{}/{kind}", self.path))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        self.write(request).await
    }

    async fn put_status(&self, kind: &str, object: &Value) -> Result<String> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let request = Request::put(format!("{}/{kind}/{name}/status", self.path))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        self.write(request).await
    }

    /// Creates a session, and keeps it alive.
    async fn live(self: Arc<Self>, number: usize) -> Result<JoinHandle<()>> {
        let mut session = session(number);
        let mut version = self.create("locksessions", &session).await?;
        Ok(tokio::spawn(async move {
            for renewals in 1_u64.. {
                let third = TTL / 3;
                tokio::time::sleep(third.mul_f64(0.9 + 0.1 * fastrand::f64())).await;
                let _may_begin = self.may_begin.read().await;
                let _place = self.places.acquire().await;
                session["metadata"]["resourceVersion"] = json!(version);
                session["status"] = json!({"renewals": renewals, "renewedAt": WHEN});
                match self.put_status("locksessions", &session).await {
                    Ok(written) => {
                        version = written;
                        self.done.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(_) => {
                        self.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }))
    }

    async fn lock(&self, size: Size, number: usize) -> Result<()> {
        let resource = format!("tenant_{number:05}:billing-close:2026-04");
        let name = object_name(&Resource::parse(&resource)?);
        let mut lock = json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
            "metadata": {"name": name}, "spec": {"resource": resource},
        });
        let version = self.create("distributedlocks", &lock).await?;
        lock["metadata"]["resourceVersion"] = json!(version);
        lock["status"] = json!({"token": 1_000_000, "transitions": 7});
        if number < size.held {
            let session = match number.checked_sub(size.first) {
                None => 0,
                Some(number) => 1 + number % (size.sessions - 1),
            };
            lock["status"]["holder"] = json!({
                "ownerId": format!("billing-worker-{number}"), "pod": pod_name(session),
                "podUid": uid(session), "node": "node-17.eu-central-1.compute.internal",
                "session": session_name(session), "sessionTtlSeconds": TTL.as_secs(),
                "metadata": {"job": format!("close-{number}")},
            });
            let now = jiff::Timestamp::now().to_string();
            lock["status"]["lease"] = json!({"id": uid(number), "acquiredAt": now, "kept": false});
        }
        self.put_status("distributedlocks", &lock).await?;
        Ok(())
    }
}

fn session(number: usize) -> Value {
    json!({
        "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockSession",
        "metadata": {"name": session_name(number)},
        "spec": {"pod": pod_name(number), "podUid": uid(number), "ttlSeconds": TTL.as_secs(),
            "node": "node-17.eu-central-1.compute.internal", "agentVersion": "0.1.0"},
    })
}

fn pod_name(number: usize) -> String {
    format!("billing-worker-7d9f8b6c5d-{number:05}")
}

fn session_name(number: usize) -> String {
    format!("{}-0a1b2c3d4e", pod_name(number))
}

fn uid(number: usize) -> String {
    format!("5a1f3c9e-7b24-4d68-9e0f-{number:012}")
}

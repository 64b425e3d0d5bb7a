//! The operator's memory for many locks, measured in a separate process, so that the memory of
//! other tests is not included.
//!
//! The objects come page by page as from an API server, and only the operator keeps them. It leads
//! by then, so it also keeps a key of each free lock in its queue, until the lock is deleted.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{FutureExt as _, StreamExt as _, stream};
use leasehold::k8s::convert;
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::Session;
use leasehold::protocol::token::Revision;
use leasehold::store::fleet::{
    Feed, FeedEvent, FleetStore, Object, ObjectRef, ObjectVersion, PodReport,
};
use leasehold::store::{StoreError, Stored};
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::settled;

/// The chart's default limit.
const LIMIT_KIB: u64 = 256 * 1024;
/// The maximum memory of a free lock. It takes about 615 bytes. With a copy of its namespace's name
/// it took 709, and as a whole object, without any optional field, 1,490.
const FREE_BYTES: u64 = 690;
/// The environment variable with the child's sizes: free locks, held locks, sessions.
const SIZES: &str = "LEASEHOLD_MEMORY_OF";
/// As long as a name can be, because the operator must not keep a copy of it for each lock.
const NAMESPACE: &str = "billing-of-the-northern-and-the-southern-regions-of-a-continent";
const CHILD: &str = "operator::memory::operator_process_with_a_large_fleet";
/// The number of objects in a page of the API server.
const PAGE: usize = 500;

#[derive(Clone, Copy)]
struct Large {
    free: usize,
    held: usize,
    sessions: usize,
}

fn pod_name(number: usize) -> String {
    format!("billing-worker-7d9f8b6c5d-{number:05}")
}

fn session_name(number: usize) -> String {
    format!("{}-0a1b2c3d4e5f", pod_name(number))
}

fn uid(number: usize) -> String {
    format!("5a1f3c9e-7b24-4d68-9e0f-{number:012}")
}

impl Large {
    fn lock(self, number: usize) -> Value {
        let resource = format!("tenant_{number:06}:billing-close:2026-04");
        let name = object_name(&Resource::parse(&resource).unwrap());
        let mut lock = json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
            "metadata": {
                "name": name, "namespace": NAMESPACE, "uid": uid(number), "generation": 1,
                "resourceVersion": (1_000_000 + number).to_string(),
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"resource": resource},
            "status": {"token": 1_000_000, "transitions": 7},
        });
        if number < self.held {
            let session = number % self.sessions;
            lock["status"]["holder"] = json!({
                "ownerId": format!("billing-worker-{number}"), "pod": pod_name(session),
                "podUid": uid(session), "node": "node-17.pool-a.cluster.example.invalid",
                "session": session_name(session), "sessionTtlSeconds": 60,
                "metadata": {"job": format!("close-{number}")},
            });
            lock["status"]["lease"] =
                json!({"id": uid(number), "acquiredAt": "2026-01-01T00:00:00.000000Z"});
        }
        lock
    }

    fn session(number: usize) -> Value {
        json!({
            "apiVersion": "leasehold.dev/v1alpha1", "kind": "LockSession",
            "metadata": {
                "name": session_name(number), "namespace": NAMESPACE, "uid": uid(number),
                "resourceVersion": (500_000 + number).to_string(),
            },
            "spec": {"pod": pod_name(number), "podUid": uid(number), "ttlSeconds": 60,
                "node": "node-17.pool-a.cluster.example.invalid", "agentVersion": "0.1.0"},
            "status": {"renewals": 7, "renewedAt": "2026-01-01T00:00:00.000000Z"},
        })
    }
}

/// Returns all objects of a kind, which are created after an empty list: the text of a page, then
/// its objects, one after the other.
fn feed<T: Send + 'static>(
    count: usize,
    created_after: Duration,
    object: impl Fn(usize) -> Value + Send + 'static,
    read: fn(Value) -> Result<Stored<T>, StoreError>,
) -> Feed<Object<T>> {
    let page = move |first: usize| {
        let numbers = first..(first + PAGE).min(count);
        let texts: Vec<String> = numbers.map(|number| object(number).to_string()).collect();
        let parsed = texts.iter().map(|text| serde_json::from_str(text).unwrap());
        stream::iter(parsed.collect::<Vec<Value>>())
    };
    let objects = stream::iter((0..count).step_by(PAGE)).flat_map(page);
    let told = objects.map(move |object| {
        let placed = Object {
            object_ref: convert::object_ref(&object["metadata"]),
            uid: object["metadata"]["uid"].as_str().unwrap().into(),
            is_deleted: false,
            is_misnamed: false,
            set_at: None,
            stored: read(object).unwrap(),
        };
        FeedEvent::Applied(Box::new(placed))
    });
    let listing = stream::iter([FeedEvent::ListStarted, FeedEvent::ListDone]);
    let created = tokio::time::sleep(created_after)
        .map(|()| told)
        .flatten_stream();
    listing.chain(created).chain(stream::pending()).boxed()
}

fn not_here<T>() -> Result<T, StoreError> {
    Err(StoreError::Denied("not here".into()))
}

#[async_trait]
impl FleetStore for Large {
    fn locks(&self) -> Feed<Object<Lock>> {
        let this = *self;
        let object = move |number| this.lock(number);
        let count = self.free + self.held;
        // By then the operator leads.
        let created_after = Duration::from_secs(1);
        feed(count, created_after, object, convert::lock::read)
    }

    fn sessions(&self) -> Feed<Object<Session>> {
        let (count, read) = (self.sessions, convert::session::read);
        feed(count, Duration::ZERO, Self::session, read)
    }

    fn ended_pods(&self) -> Feed<PodReport> {
        let told = stream::iter([FeedEvent::ListStarted, FeedEvent::ListDone]);
        told.chain(stream::pending()).boxed()
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(Revision(10_000_000))
    }

    async fn lock(&self, _place: &ObjectRef) -> Result<Option<Object<Lock>>, StoreError> {
        not_here()
    }

    async fn session(&self, _place: &ObjectRef) -> Result<Option<Object<Session>>, StoreError> {
        not_here()
    }

    async fn pod(&self, _place: &ObjectRef) -> Result<Option<PodReport>, StoreError> {
        not_here()
    }

    async fn update_lock(
        &self,
        _current: &Object<Lock>,
        _next: &Lock,
    ) -> Result<Object<Lock>, StoreError> {
        not_here()
    }

    async fn update_session(
        &self,
        _current: &Object<Session>,
        _next: &Session,
    ) -> Result<Object<Session>, StoreError> {
        not_here()
    }

    async fn delete_lock(&self, _current: &ObjectVersion) -> Result<(), StoreError> {
        not_here()
    }

    async fn delete_session(&self, _current: &Object<Session>) -> Result<(), StoreError> {
        not_here()
    }
}

/// Returns a number from this process's status in the kernel, in KiB.
fn kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.unwrap().trim_start_matches(':').trim();
    number.split(' ').next().unwrap().parse().unwrap()
}

/// The process that the test below measures. Without sizes it does nothing.
#[tokio::test(start_paused = true)]
async fn operator_process_with_a_large_fleet() {
    let Ok(sizes) = std::env::var(SIZES) else {
        return;
    };
    let sizes: Vec<usize> = sizes.split(',').map(|size| size.parse().unwrap()).collect();
    let [free, held, sessions] = sizes[..] else {
        panic!("{SIZES}=FREE,HELD,SESSIONS");
    };
    let large = Large {
        free,
        held,
        sessions,
    };
    let before = kib("VmRSS");
    let cluster = Cluster::start_over(Arc::new(large)).await;
    cluster.lead(true);
    let all = format!("leasehold_operator_locks{{state=\"free\"}} {free}\n");
    let is_done = "leasehold_operator_queue_depth 0\n";
    loop {
        settled().await;
        let metrics = cluster.metrics();
        if metrics.contains(&all) && metrics.contains(is_done) {
            break;
        }
    }
    let (after, peak) = (kib("VmRSS"), kib("VmHWM"));
    println!("kept: {} KiB, at most {} KiB", after - before, peak);
}

/// Returns the current and the peak memory of a process, in KiB.
fn measured(sizes: &str) -> (u64, u64) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", CHILD])
        .env(SIZES, sizes)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    let line = said
        .lines()
        .find(|line| line.starts_with("kept: "))
        .unwrap();
    println!("{sizes}: {line}");
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn large_fleet_fits_into_the_charts_memory_limit() {
    let (all, peak) = measured("100000,10000,2000");
    assert!(peak < LIMIT_KIB, "{peak} KiB is more than {LIMIT_KIB} KiB");
    let (without, _) = measured("1,10000,2000");
    let each = all.saturating_sub(without) * 1024 / 100_000;
    println!("a free lock: {each} bytes");
    assert!(each < FREE_BYTES, "{each} bytes for each free lock");
}

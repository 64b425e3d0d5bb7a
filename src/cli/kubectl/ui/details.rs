//! What is read only for the lock that the page shows, and how long it is not read again.
//!
//! It never fails: without an answer of the API server a detail is unknown, or the last one is kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::cli::kubectl::api::{Api, ByName};
use crate::cli::kubectl::failure::Failure;
use crate::cli::kubectl::{describe, fetch};
use crate::clock::{Clock as _, SystemClock};
use crate::crd::GROUP;
use crate::kubectl::world::{Known, LockSeen, NodeSeen, OperatorSeen, PodSeen, World};
use crate::protocol::time::Moment;

/// How long the details of a lock are not read again.
const KEPT: Duration = Duration::from_secs(3);
/// How long reading them may take. After that the page shows what it knows.
const LIMIT: Duration = Duration::from_secs(5);
/// How long it is not read again whether an operator acts: for that all namespaces are searched.
const OPERATOR_KEPT: Duration = Duration::from_secs(30);
/// The verbs that a release needs on the lock objects. The second one is required by the admission policy.
const RELEASE_VERBS: [&str; 2] = ["patch", "force-release"];

/// The most holders of a chain whose pods are read.
const PODS_MAX: usize = 5;

/// What is read only for the lock that the page shows.
pub(super) struct Details {
    /// Its pods.
    pub(super) pods: ByName<Known<Option<PodSeen>>>,
    /// Their nodes.
    pub(super) nodes: BTreeMap<String, Known<Option<NodeSeen>>>,
    /// Whether an operator acts.
    pub(super) operator: Known<OperatorSeen>,
    /// Its Events.
    pub(super) events: Known<Vec<Value>>,
    /// The right that the user lacks for a release.
    pub(super) missing: Option<String>,
}

impl Details {
    /// Returns those of which nothing could be read, for this reason.
    fn unknown(why: &str) -> Self {
        Self {
            pods: ByName::new(),
            nodes: BTreeMap::new(),
            operator: Known::Unknown(why.to_owned()),
            events: Known::Unknown(why.to_owned()),
            missing: None,
        }
    }

    async fn read(
        api: &Api,
        lock: &LockSeen,
        pods: &[String],
        operator: Known<OperatorSeen>,
    ) -> Result<Self, Failure> {
        let mut world = World::empty(api.now()?);
        for pod in pods {
            fetch::pod(api, &mut world, &lock.namespace, pod).await?;
        }
        Ok(Self {
            pods: world.pods,
            nodes: world.nodes,
            operator,
            events: fetch::known(describe::events(api, lock).await)?,
            missing: missing_right(api, lock).await?,
        })
    }

    /// Returns whether they have all of these pods.
    fn have(&self, namespace: &str, pods: &[String]) -> bool {
        let key = |pod: &String| (namespace.to_owned(), pod.clone());
        pods.iter().all(|pod| self.pods.contains_key(&key(pod)))
    }
}

/// Returns the right that the user lacks for a release. If even that cannot be asked, the request will show it.
async fn missing_right(api: &Api, lock: &LockSeen) -> Result<Option<String>, Failure> {
    let LockSeen {
        namespace, name, ..
    } = lock;
    for verb in RELEASE_VERBS {
        // By the name: a Role can be about one lock.
        let attributes = json!({"namespace": namespace, "group": GROUP, "verb": verb,
            "resource": "distributedlocks", "name": name});
        let spec = json!({"resourceAttributes": attributes});
        if let Known::Seen(false) = fetch::may(api, "SelfSubjectAccessReview", &spec).await? {
            return Ok(Some(format!(
                "you cannot {verb} distributedlocks in namespace {namespace} (the ClusterRole leasehold-lock-admin \
                 grants it)"
            )));
        }
    }
    Ok(None)
}

/// The details of the lock that was shown last, and the operator.
#[derive(Default)]
pub(super) struct Cache(Mutex<Cached>);

#[derive(Default)]
struct Cached {
    details: Option<OfLock>,
    operator: Option<(Moment, Known<OperatorSeen>)>,
}

struct OfLock {
    /// The uid of the lock object.
    lock: String,
    read_at: Moment,
    details: Arc<Details>,
}

impl Cache {
    /// Returns what is read only for a lock that is shown. `away` is why the API server does not answer, if it does not.
    pub(super) async fn get(
        &self,
        api: &Api,
        away: Option<String>,
        lock: &LockSeen,
        pods: &[String],
    ) -> Arc<Details> {
        let mut cached = self.0.lock().await;
        let pods = &pods[..pods.len().min(PODS_MAX)];
        let read = match away {
            Some(why) => Err(Failure::Unreachable(why)),
            None => tokio::time::timeout(LIMIT, cached.refresh(api, lock, pods))
                .await
                .unwrap_or_else(|_elapsed| {
                    let server = api.server();
                    Err(Failure::Unreachable(format!(
                        "the API server {server} does not answer"
                    )))
                }),
        };
        let of_lock = cached.details.as_ref().filter(|one| one.lock == lock.uid);
        match (of_lock, read) {
            (Some(of_lock), _) => of_lock.details.clone(),
            (None, Err(error)) => Arc::new(Details::unknown(&error.words())),
            (None, Ok(())) => Arc::new(Details::unknown("not read")),
        }
    }
}

impl Cached {
    /// Reads what is not known, or not any more.
    async fn refresh(
        &mut self,
        api: &Api,
        lock: &LockSeen,
        pods: &[String],
    ) -> Result<(), Failure> {
        let age = |at: Moment| SystemClock.now().since(at);
        let of_lock = self.details.as_ref().filter(|one| one.lock == lock.uid);
        let is_known = of_lock.is_some_and(|one| {
            // A lock may go from pod to pod more often than it is read.
            let has_all = one.details.have(&lock.namespace, pods);
            let kept = if has_all { KEPT } else { KEPT / 3 };
            age(one.read_at) < kept
        });
        if is_known {
            return Ok(());
        }
        let known = self.operator.take();
        let operator = match known.filter(|(at, _)| age(*at) < OPERATOR_KEPT) {
            Some(known) => known,
            None => (SystemClock.now(), operator(api).await?),
        };
        self.operator = Some(operator.clone());
        let details = Details::read(api, lock, pods, operator.1).await?;
        self.details = Some(OfLock {
            lock: lock.uid.clone(),
            read_at: SystemClock.now(),
            details: Arc::new(details),
        });
        Ok(())
    }
}

async fn operator(api: &Api) -> Result<Known<OperatorSeen>, Failure> {
    let mut world = World::empty(api.now()?);
    fetch::operator(api, &mut world).await?;
    Ok(world.operator)
}

//! Feeds, based on kube's watcher.
//!
//! The watcher lists in pages (the first one consistent, because it carries no resourceVersion) and
//! then watches. It lists again if the API server no longer has the events since. This module adds
//! a limit on every silence and a backoff after every failure.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use http::{Request, StatusCode};
use kube::client::{Body, ClientBuilder};
use kube::core::ApiResource;
pub(in crate::k8s) use kube::runtime::watcher::Config;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Sleep;
use tower::ServiceBuilder;
use tower_http::timeout::ResponseBodyTimeoutLayer;

use super::nodes::{self, PartialNode};
use super::pods::{self, PartialPod};
use super::raw::RawObject;
use crate::k8s::convert::is_deleted;
use crate::k8s::errors::{from_watch, from_watch_status};
use crate::store::fleet::{
    Feed, FeedEvent, NodeReport, Object, ObjectRef, PodReport, UnreadableFreeLock,
};
use crate::store::{StoreError, Stored};

/// Selects the pods in a terminal phase, by excluding all others.
const ENDED: &str = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown";
/// The maximum backoff after the first failure; it doubles with each further failure.
const BACKOFF: Duration = Duration::from_millis(100);
/// The longest backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// The maximum rate of requests by the feeds. Only a watch that ends as soon as it is opened comes
/// near it: the watcher opens the next one at once.
const REQUESTS_PER_SECOND: u64 = 50;

/// How long the API server may be silent.
///
/// TCP detects a dead peer after about 20 s (`client.rs`: a probe after 10 silent seconds, and 15 s
/// without an answer end the connection). TCP does not detect an API server that hangs, or a proxy
/// without a backend. So each watch is short: the API server ends it with a bookmark, and the next
/// one continues from there. That is two requests a minute for each feed.
#[derive(Clone, Copy)]
struct Timeouts {
    /// The duration of a watch.
    watch_seconds: u32,
    /// The maximum wait for the head of a response, or for the next part of its body.
    silence: Duration,
}

const TIMEOUTS: Timeouts = Timeouts {
    watch_seconds: 30,
    silence: Duration::from_secs(35),
};

/// Reads the objects of a kind.
pub(super) struct Reader<T> {
    pub(super) read: fn(Value) -> Result<Stored<T>, StoreError>,
    /// Reads what is known of an object that may be unreadable.
    pub(super) read_free_lock: fn(&Value) -> Option<UnreadableFreeLock>,
}

impl<T> Clone for Reader<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Reader<T> {}

impl<T> From<fn(Value) -> Result<Stored<T>, StoreError>> for Reader<T> {
    fn from(read: fn(Value) -> Result<Stored<T>, StoreError>) -> Self {
        Self {
            read,
            read_free_lock: |_object| None,
        }
    }
}

/// Opens a feed of all objects of a kind, in all namespaces.
pub(super) fn objects<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    reader: Reader<T>,
) -> Feed<Object<T>> {
    objects_with::<K, T>(client, TIMEOUTS, reader)
}

/// Opens a feed of the selected objects of a kind, in all namespaces.
pub(in crate::k8s) fn selected<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    select: impl FnOnce(Config) -> Config,
    read: fn(Value) -> Result<Stored<T>, StoreError>,
) -> Feed<Object<T>> {
    let api = raw_api::<K>(client, TIMEOUTS);
    let config = select(config(TIMEOUTS));
    feed(api, config, move |object| object_event(object, read.into()))
}

fn objects_with<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    timeouts: Timeouts,
    reader: Reader<T>,
) -> Feed<Object<T>> {
    let api = raw_api::<K>(client, timeouts);
    feed(api, config(timeouts), move |object| {
        object_event(object, reader)
    })
}

fn raw_api<K: Resource<DynamicType = ()>>(client: &Client, timeouts: Timeouts) -> Api<RawObject> {
    let kind = ApiResource::erase::<K>(&());
    Api::all_with(with_timeouts(client, timeouts), &kind)
}

/// Opens a feed of the pods that have ended, in all namespaces.
pub(super) fn ended_pods(client: &Client) -> Feed<PodReport> {
    let api = Api::<PartialPod>::all(with_timeouts(client, TIMEOUTS));
    let config = config(TIMEOUTS).fields(ENDED);
    feed(api, config, |pod| {
        FeedEvent::Applied(Box::new(pods::report(&pod)))
    })
}

/// Opens a feed of all nodes. It lists them again after each interruption, because a reader forgets
/// what it may have missed.
pub(super) fn nodes(client: &Client) -> Feed<NodeReport> {
    let api = Api::<PartialNode>::all(with_timeouts(client, TIMEOUTS));
    let config = config(TIMEOUTS);
    let read = |node: PartialNode| FeedEvent::Applied(Box::new(nodes::report(&node)));
    feed_that(Resumes::Never, api, config, read)
}

/// Reports that the one object of this name may have changed: with each event and each failure.
pub(in crate::k8s) fn changes<K>(
    client: &Client,
    name: &str,
    api: impl FnOnce(Client) -> Api<K>,
) -> BoxStream<'static, ()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = api(with_timeouts(client, TIMEOUTS));
    // A permission for one object name covers a list that selects that name.
    let config = config(TIMEOUTS).fields(&format!("metadata.name={name}"));
    feed(api, config, |_object| FeedEvent::Applied(Box::new(())))
        .map(drop)
        .boxed()
}

fn config(timeouts: Timeouts) -> Config {
    Config::default().timeout(timeouts.watch_seconds)
}

/// Returns the client with timeouts: the watcher bounds an open watch, but neither its opening nor
/// a list.
fn with_timeouts(client: &Client, timeouts: Timeouts) -> Client {
    let inner = client.clone();
    let sent = move |request: Request<Body>| {
        let inner = inner.clone();
        async move { inner.send(request).await }
    };
    let service = ServiceBuilder::new()
        .rate_limit(REQUESTS_PER_SECOND, Duration::from_secs(1))
        .timeout(timeouts.silence)
        .layer(ResponseBodyTimeoutLayer::new(timeouts.silence))
        .service_fn(sent);
    ClientBuilder::new(service, client.default_namespace()).build()
}

fn feed<K, T>(
    api: Api<K>,
    config: Config,
    read: impl Fn(K) -> FeedEvent<T> + Clone + Send + 'static,
) -> Feed<T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Send + 'static,
{
    feed_that(Resumes::IfPossible, api, config, read)
}

/// Whether a feed continues at its last revision after an error, or lists again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resumes {
    IfPossible,
    Never,
}

fn feed_that<K, T>(
    resumes: Resumes,
    api: Api<K>,
    config: Config,
    read: impl Fn(K) -> FeedEvent<T> + Clone + Send + 'static,
) -> Feed<T>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Send + 'static,
{
    let open = move || watcher(api.clone(), config.clone()).boxed();
    let begin = Source {
        events: open(),
        failures: 0,
        resumes,
    };
    let events = stream::unfold((begin, open, read), |(mut source, open, read)| async move {
        if let Some(backoff) = source.backoff() {
            backoff.await;
        }
        let event = source.events.next().await?;
        source.update(&event, &open);
        let item = feed_event(event, &read);
        Some((item, (source, open, read)))
    });
    events.boxed()
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// A watcher and its number of failures in a row.
struct Source<K> {
    events: Events<K>,
    failures: u32,
    resumes: Resumes,
}

impl<K> Source<K> {
    /// Full jitter, because all feeds of all replicas lose the API server at the same time.
    fn backoff(&self) -> Option<Sleep> {
        let longest = max_backoff(self.failures)?;
        Some(tokio::time::sleep(longest.mul_f64(fastrand::f64())))
    }

    fn update(&mut self, event: &watcher::Result<Event<K>>, open: impl Fn() -> Events<K>) {
        match event {
            // Emitted before the list request, so it is not a success.
            Ok(Event::Init) => {}
            Ok(_) => self.failures = 0,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                if self.resumes == Resumes::Never || needs_new_watcher(error) {
                    self.events = open();
                }
            }
        }
    }
}

fn max_backoff(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(16);
    Some(BACKOFF.saturating_mul(1 << doublings).min(BACKOFF_MAX))
}

/// Returns whether the watcher would continue from a revision that cannot be watched, or skip an
/// event. On its own it lists again only after an event with Gone.
fn needs_new_watcher(error: &watcher::Error) -> bool {
    match error {
        // A watch that starts at an expired or a future revision.
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            [StatusCode::GONE, StatusCode::GATEWAY_TIMEOUT]
                .iter()
                .any(|code| code.as_u16() == status.code)
        }
        // An event that cannot be decoded. kube often reads it as an empty status.
        watcher::Error::WatchFailed(kube::Error::SerdeError(_) | kube::Error::Api(_)) => true,
        _ => false,
    }
}

fn feed_event<K: Resource, T>(
    event: watcher::Result<Event<K>>,
    read: &impl Fn(K) -> FeedEvent<T>,
) -> FeedEvent<T> {
    match event {
        Ok(Event::Init) => FeedEvent::ListStarted,
        Ok(Event::InitApply(object) | Event::Apply(object)) => read(object),
        Ok(Event::Delete(object)) => FeedEvent::Deleted(object_ref(&object)),
        Ok(Event::InitDone) => FeedEvent::ListDone,
        Err(error) => FeedEvent::Interrupted(store_error(&error)),
    }
}

fn store_error(error: &watcher::Error) -> StoreError {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => from_watch(error),
        watcher::Error::WatchError(status) => from_watch_status(status),
        watcher::Error::NoResourceVersion => StoreError::Unreadable(error.to_string()),
    }
}

pub(super) fn object_ref(object: &impl Resource) -> ObjectRef {
    ObjectRef {
        namespace: object
            .meta()
            .namespace
            .as_deref()
            .unwrap_or_default()
            .into(),
        name: object.meta().name.as_deref().unwrap_or_default().into(),
    }
}

fn object_event<T>(object: RawObject, reader: Reader<T>) -> FeedEvent<Object<T>> {
    let object_ref = object_ref(&object);
    let uid = object.meta().uid.as_deref().unwrap_or_default().into();
    let is_deleted = is_deleted(&object.object);
    let set_at = object.set_at;
    let free = (reader.read_free_lock)(&object.object);
    match (reader.read)(object.object) {
        Ok(stored) => FeedEvent::Applied(Box::new(Object {
            object_ref,
            uid,
            is_deleted,
            is_misnamed: false,
            set_at,
            stored,
        })),
        Err(error) => FeedEvent::Unreadable {
            object_ref,
            uid,
            why: error.to_string(),
            free: free.map(|free| Box::new(UnreadableFreeLock { set_at, ..free })),
        },
    }
}

#[cfg(test)]
mod tests;

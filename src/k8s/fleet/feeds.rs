//! Feeds: kube's watcher, told in the port's words.
//!
//! The watcher lists in pages (the first one consistent, as it carries no resourceVersion), then
//! watches from there, and lists again where the API server no longer knows what came since. What
//! is added here is what it leaves to its user: a limit on every silence, and a rest after every
//! failure.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{StreamExt as _, stream};
use http::{Request, StatusCode};
use kube::client::{Body, ClientBuilder};
pub(in crate::k8s) use kube::runtime::watcher::Config;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Sleep;
use tower::ServiceBuilder;
use tower_http::timeout::ResponseBodyTimeoutLayer;

use super::pods::{self, SeenPod};
use super::raw::Raw;
use crate::k8s::convert::is_deleted;
use crate::k8s::errors::{from_watch, from_watch_status};
use crate::store::fleet::{Feed, FeedEvent, Object, ObjectRef, PodReport, UnreadableFreeLock};
use crate::store::{StoreError, Stored};

/// The pods whose phase says that they ended: a phase that is none of the others.
const ENDED: &str = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown";
/// How long the rest after the first of several failures in a row is at most. It doubles.
const REST: Duration = Duration::from_millis(100);
/// How long it is ever.
const REST_MAX: Duration = Duration::from_secs(5);
/// How many requests the feeds make in a second. Only a watch that is ended as soon as it is
/// opened comes near: the watcher opens the next at once.
const REQUESTS_PER_SECOND: u64 = 50;

/// How long the other side may be silent.
///
/// A peer that is gone is noticed by TCP after some 20 s (`client.rs`: a probe after 10 silent
/// seconds, and one unanswered for 15 s ends the connection). TCP says nothing of an API server
/// that hangs, or of a proxy that keeps a connection to nobody. So each watch is a short one: the
/// API server ends it, having told by a bookmark how far it got, and the next goes on from there.
/// That is two requests a minute for each feed.
#[derive(Clone, Copy)]
struct Patience {
    /// How long a watch lasts.
    watch_seconds: u32,
    /// How long an answer may let wait for its head, or for the next part of its body.
    silence: Duration,
}

const PATIENCE: Patience = Patience {
    watch_seconds: 30,
    silence: Duration::from_secs(35),
};

/// How the objects of a kind are read.
pub(super) struct Reader<T> {
    pub(super) read: fn(Value) -> Result<Stored<T>, StoreError>,
    /// What is certain of an object that may turn out to be unreadable.
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

/// All objects of a kind, in all namespaces.
pub(super) fn objects<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    reader: Reader<T>,
) -> Feed<Object<T>> {
    objects_with::<K, T>(client, PATIENCE, reader)
}

/// The objects of a kind that are selected, in all namespaces.
pub(in crate::k8s) fn selected<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    select: impl FnOnce(Config) -> Config,
    read: fn(Value) -> Result<Stored<T>, StoreError>,
) -> Feed<Object<T>> {
    let api = Api::<Raw<K>>::all(patient(client, PATIENCE));
    let config = select(config(PATIENCE));
    feed(api, config, move |object| told_of(object, read.into()))
}

fn objects_with<K: Resource<DynamicType = ()> + 'static, T: Send + 'static>(
    client: &Client,
    patience: Patience,
    reader: Reader<T>,
) -> Feed<Object<T>> {
    let api = Api::<Raw<K>>::all(patient(client, patience));
    feed(api, config(patience), move |object| told_of(object, reader))
}

/// The pods that ended, in all namespaces.
pub(super) fn ended_pods(client: &Client) -> Feed<PodReport> {
    let api = Api::<SeenPod>::all(patient(client, PATIENCE));
    let config = config(PATIENCE).fields(ENDED);
    feed(api, config, |pod| {
        FeedEvent::Applied(Box::new(pods::report(&pod)))
    })
}

/// Tells that the one object of this name may have changed: with each event, and with each failure.
pub(in crate::k8s) fn changes<K>(
    client: &Client,
    name: &str,
    api: impl FnOnce(Client) -> Api<K>,
) -> BoxStream<'static, ()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let api = api(patient(client, PATIENCE));
    // A right that names an object covers a listing that selects it by its name.
    let config = config(PATIENCE).fields(&format!("metadata.name={name}"));
    feed(api, config, |_object| FeedEvent::Applied(Box::new(())))
        .map(drop)
        .boxed()
}

fn config(patience: Patience) -> Config {
    Config::default().timeout(patience.watch_seconds)
}

/// The same client, which does not wait for ever: the watcher bounds a watch that is open, but
/// neither its opening nor a listing.
fn patient(client: &Client, patience: Patience) -> Client {
    let inner = client.clone();
    let sent = move |request: Request<Body>| {
        let inner = inner.clone();
        async move { inner.send(request).await }
    };
    let service = ServiceBuilder::new()
        .rate_limit(REQUESTS_PER_SECOND, Duration::from_secs(1))
        .timeout(patience.silence)
        .layer(ResponseBodyTimeoutLayer::new(patience.silence))
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
    let open = move || watcher(api.clone(), config.clone()).boxed();
    let begin = Source {
        events: open(),
        failures: 0,
    };
    let told = stream::unfold((begin, open, read), |(mut source, open, read)| async move {
        if let Some(rest) = source.rest() {
            rest.await;
        }
        let event = source.events.next().await?;
        source.look_at(&event, &open);
        let told = told(event, &read);
        Some((told, (source, open, read)))
    });
    told.boxed()
}

type Events<K> = BoxStream<'static, watcher::Result<Event<K>>>;

/// A watcher, and how often in a row it failed.
struct Source<K> {
    events: Events<K>,
    failures: u32,
}

impl<K> Source<K> {
    /// Full jitter: all feeds of all replicas lose the API server at the same moment.
    fn rest(&self) -> Option<Sleep> {
        let longest = longest_rest(self.failures)?;
        Some(tokio::time::sleep(longest.mul_f64(fastrand::f64())))
    }

    fn look_at(&mut self, event: &watcher::Result<Event<K>>, open: impl Fn() -> Events<K>) {
        match event {
            // Said before the listing is asked for, so it is no success.
            Ok(Event::Init) => {}
            Ok(_) => self.failures = 0,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                if has_lost_the_thread(error) {
                    self.events = open();
                }
            }
        }
    }
}

fn longest_rest(failures: u32) -> Option<Duration> {
    let doublings = failures.checked_sub(1)?.min(16);
    Some(REST.saturating_mul(1 << doublings).min(REST_MAX))
}

/// Whether the watcher would go on from where nothing can go on, or past what nobody read: it
/// lists anew only after an event that says Gone.
fn has_lost_the_thread(error: &watcher::Error) -> bool {
    match error {
        // A watch that begins too far back, or at a revision that is still to come.
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            [StatusCode::GONE, StatusCode::GATEWAY_TIMEOUT]
                .iter()
                .any(|code| code.as_u16() == status.code)
        }
        // An event that cannot be decoded. kube often takes it for a status of no meaning.
        watcher::Error::WatchFailed(kube::Error::SerdeError(_) | kube::Error::Api(_)) => true,
        _ => false,
    }
}

fn told<K: Resource, T>(
    event: watcher::Result<Event<K>>,
    read: &impl Fn(K) -> FeedEvent<T>,
) -> FeedEvent<T> {
    match event {
        Ok(Event::Init) => FeedEvent::ListStarted,
        Ok(Event::InitApply(object) | Event::Apply(object)) => read(object),
        Ok(Event::Delete(object)) => FeedEvent::Deleted(place_of(&object)),
        Ok(Event::InitDone) => FeedEvent::ListDone,
        Err(error) => FeedEvent::Interrupted(trouble(&error)),
    }
}

fn trouble(error: &watcher::Error) -> StoreError {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => from_watch(error),
        watcher::Error::WatchError(status) => from_watch_status(status),
        watcher::Error::NoResourceVersion => StoreError::Unreadable(error.to_string()),
    }
}

pub(super) fn place_of(object: &impl Resource) -> ObjectRef {
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

fn told_of<K: Resource<DynamicType = ()>, T>(
    object: Raw<K>,
    reader: Reader<T>,
) -> FeedEvent<Object<T>> {
    let object_ref = place_of(&object);
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

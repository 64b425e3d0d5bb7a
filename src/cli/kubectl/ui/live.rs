//! Keeps what the page shows up to date, and knows whether the API server answers.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::Api as KubeApi;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event};
use serde::Serialize;
use tokio::sync::Notify;

use super::details::{Cache, Details};
use super::watched::{Seen, Watch, Watched};
use crate::cli::kubectl::api::Api;
use crate::cli::kubectl::failure::Failure;
use crate::cli::kubectl::follow::Refusals;
use crate::clock::{Clock as _, SystemClock};
use crate::kubectl::world::{LockSeen, SessionSeen, World};
use crate::protocol::time::Moment;
use crate::text::escape;

/// How often the API server is asked for its time. A silent connection shows only thereby that it is lost.
const PROBE_EVERY: Duration = Duration::from_secs(2);
/// How long it may take to answer.
const PROBE_LIMIT: Duration = Duration::from_secs(5);
/// The number of requests that are remembered.
const REQUESTS_MAX: usize = 100;
/// The pause before a refused watch is tried again: the user may have been given the right.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// The pause before an interrupted watch is tried again.
const INTERRUPTED_PAUSE: Duration = Duration::from_secs(1);

/// The state behind the page.
pub(super) struct Live {
    pub(super) api: Api,
    /// The user's name, as the API server has authenticated it.
    pub(super) user: String,
    /// The only namespace; `None`: all.
    pub(super) namespace: Option<String>,
    seen: Mutex<Seen>,
    times: Mutex<Times>,
    details: Cache,
    /// The grants whose end the page has requested, with the lock as it was then.
    requests: Mutex<VecDeque<(String, LockSeen)>>,
    /// The API server answers again.
    recovered: Notify,
}

/// The API server's time, and whether it answers.
struct Times {
    /// A time of the API server, and when it was received.
    server: (Timestamp, Moment),
    /// The same at the start, for durations: it is never corrected.
    first: (Timestamp, Moment),
    /// Why the API server does not answer, if so.
    away: Option<String>,
}

/// Why a watch has ended.
enum Ended {
    /// It can be tried again.
    Interrupted(String),
    /// The user must not watch, or the kind does not exist.
    Refused(Failure),
}

/// The state of the cluster, which each answer has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cluster {
    now: Timestamp,
    user: String,
    server: String,
    namespace: Option<String>,
    state: &'static str,
    listed: bool,
    why: String,
    warnings: Vec<String>,
}

impl Live {
    /// Returns the state before anything was read but the user's name.
    pub(super) fn new(api: Api, user: String, namespace: Option<String>) -> Result<Self, Failure> {
        let start = (api.now()?, SystemClock.now());
        Ok(Self {
            api,
            user,
            namespace,
            seen: Mutex::new(Seen::new(World::empty(start.0))),
            times: Mutex::new(Times {
                server: start,
                first: start,
                away: None,
            }),
            details: Cache::default(),
            requests: Mutex::default(),
            recovered: Notify::new(),
        })
    }

    /// Returns what was seen, with the API server's present time. While a watch is interrupted, that is the time of the
    /// last state: a session is not silent because nothing is received.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_current(&seen) {
            seen.world.now = later(self.times().server);
        }
        seen
    }

    fn is_current(&self, seen: &Seen) -> bool {
        let is_interrupted = |watch: &Watch| matches!(watch, Watch::Interrupted(_));
        self.times().away.is_none()
            && !is_interrupted(&seen.locks)
            && !is_interrupted(&seen.sessions)
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present time on the clock of the observation.
    pub(super) fn observed_at(&self) -> Timestamp {
        later(self.times().first)
    }

    /// Returns the state of the cluster.
    pub(super) fn cluster(&self, seen: &Seen) -> Cluster {
        let away = self.times().away.clone();
        let (state, why) = match (away, &seen.locks, &seen.sessions) {
            (Some(why), ..) => ("away", why),
            (None, Watch::Refused(why), _) => ("refused", why.clone()),
            (None, Watch::Interrupted(why), _) | (None, _, Watch::Interrupted(why)) => {
                ("away", why.clone())
            }
            (None, Watch::Starting, _) | (None, _, Watch::Starting) => ("starting", String::new()),
            (None, Watch::Current, _) => ("live", String::new()),
        };
        let unknown = seen.world.sessions.unknown();
        let unknown = unknown.filter(|_| state == "live");
        let warnings = unknown.map(|why| format!("The state of the sessions is unknown: {why}"));
        Cluster {
            now: seen.world.now,
            user: self.user.clone(),
            server: self.api.server().to_owned(),
            namespace: self.namespace.clone(),
            state,
            listed: seen.is_listed,
            why: escape(&why).into_owned(),
            warnings: warnings.into_iter().collect(),
        }
    }

    /// Returns what is read only for a lock that is shown.
    pub(super) async fn details(&self, lock: &LockSeen, pods: &[String]) -> Arc<Details> {
        let away = self.times().away.clone();
        self.details.get(&self.api, away, lock, pods).await
    }

    /// Remembers that the end of a grant was requested, and the lock as it was then.
    pub(super) fn requested(&self, lease: &str, lock: LockSeen) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.push_back((lease.to_owned(), lock));
        if requests.len() > REQUESTS_MAX {
            requests.pop_front();
        }
    }

    /// Returns the lock as it was when the end of this grant was requested.
    pub(super) fn request(&self, lease: &str) -> Option<LockSeen> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let request = requests.iter().rev().find(|(one, _)| one == lease);
        request.map(|(_, lock)| lock.clone())
    }

    /// Watches until that fails.
    async fn watch<T: Watched>(&self, refusals: &mut Refusals) -> Ended {
        let kind = T::kind();
        let objects: KubeApi<DynamicObject> = match &self.namespace {
            Some(namespace) => KubeApi::namespaced_with(self.api.client(), namespace, &kind),
            None => KubeApi::all_with(self.api.client(), &kind),
        };
        let mut events = pin!(watcher::watcher(objects, watcher::Config::default()));
        let mut found = Vec::new();
        let read = |object| T::read(&serde_json::to_value::<DynamicObject>(object).ok()?);
        while let Some(event) = events.next().await {
            let at = self.observed_at();
            let mut seen = self.seen();
            match event {
                Err(error) => {
                    return match refusals.judge(&error) {
                        Some(refused) => Ended::Refused(refused),
                        None => Ended::Interrupted(format!("the watch was interrupted: {error}")),
                    };
                }
                Ok(Event::Init) => found.clear(),
                Ok(Event::InitApply(object)) => found.extend(read(object)),
                Ok(Event::InitDone) => {
                    refusals.begun();
                    T::list(&mut seen, at, std::mem::take(&mut found));
                    *T::watch(&mut seen) = Watch::Current;
                }
                Ok(Event::Apply(object)) => {
                    let (namespace, name) = key_of(&object);
                    match read(object) {
                        Some(object) => object.apply(&mut seen, at),
                        None => T::delete(&mut seen, &namespace, &name),
                    }
                }
                Ok(Event::Delete(object)) => {
                    let (namespace, name) = key_of(&object);
                    T::delete(&mut seen, &namespace, &name);
                }
            }
        }
        Ended::Interrupted("the watch has ended".to_owned())
    }

    /// Watches without end. After an interruption all objects are listed again: that shows when the watch is current.
    async fn keep_watching<T: Watched>(&self) {
        let mut refusals = Refusals::default();
        loop {
            let ended = tokio::select! {
                ended = self.watch::<T>(&mut refusals) => ended,
                () = self.recovered.notified() => continue,
            };
            let pause = match ended {
                Ended::Interrupted(why) => {
                    *T::watch(&mut self.seen()) = Watch::Interrupted(why);
                    INTERRUPTED_PAUSE
                }
                Ended::Refused(refused) => {
                    let why = refused.missing_right();
                    let why = why.unwrap_or_else(|| refused.words());
                    self.seen().refuse::<T>(why);
                    REFUSED_PAUSE
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks the API server for its time, without end.
    async fn probe(&self) {
        let mut failures = 0;
        loop {
            tokio::time::sleep(PROBE_EVERY).await;
            let answer = tokio::time::timeout(PROBE_LIMIT, self.api.get("/version")).await;
            let away = match answer {
                Ok(Err(Failure::Unreachable(why))) => Some(why),
                // An error is an answer, too.
                Ok(_) => None,
                Err(_elapsed) => Some(format!(
                    "the API server {} does not answer",
                    self.api.server()
                )),
            };
            let is_away = away.is_some();
            {
                let mut times = self.times();
                times.away = away;
                if let (false, Ok(now)) = (is_away, self.api.now()) {
                    times.server = (now, SystemClock.now());
                }
            }
            if is_away {
                failures += 1;
            } else if std::mem::take(&mut failures) > 1 {
                // The connection of a watch may be dead without notice.
                self.recovered.notify_waiters();
            }
            let at = self.observed_at();
            let mut seen = self.seen();
            if self.is_current(&seen) {
                seen.hour.watched_until(at);
            }
        }
    }
}

/// Keeps the state up to date, without end.
pub(super) async fn follow(live: Arc<Live>) {
    tokio::join!(
        live.keep_watching::<LockSeen>(),
        live.keep_watching::<SessionSeen>(),
        live.probe()
    );
}

fn key_of(object: &DynamicObject) -> (String, String) {
    let namespace = object.metadata.namespace.clone();
    let name = object.metadata.name.clone();
    (namespace.unwrap_or_default(), name.unwrap_or_default())
}

/// Returns the time that it is now, if it was `time` at `moment`.
fn later((time, moment): (Timestamp, Moment)) -> Timestamp {
    let passed = SystemClock.now().since(moment);
    time.checked_add(passed).unwrap_or(time)
}

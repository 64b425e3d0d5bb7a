//! What stands between a process and the store: a network that delays, refuses, loses requests and
//! answers, and lands writes late.
//!
//! Each call travels in a task of its own, so that a caller who gives up does not undo it. What the
//! caller hears is true as the port documents it: `Unavailable` was not applied, `Ambiguous` may be.

mod fate;
mod fleet;
mod policy;
mod stores;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures::FutureExt as _;
use leasehold::protocol::token::Revision;
use leasehold::store::{StoreError, within};
use tokio::sync::oneshot;

pub(crate) use fate::Weather;
use fate::{Fate, LATE, Outcome};

use crate::network::{Network, Way};
use crate::setting::Trace;
use crate::world::World;

/// The longest that an adapter waits for an answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A process's way to the store. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    world: World,
    who: Arc<str>,
    /// Whether it may do what strict mode lets only the operator do.
    is_operator: bool,
    /// That of the place where it runs.
    network: Network,
    random: Mutex<Rng>,
    is_dead: AtomicBool,
    /// The highest revision that a LIST told the process.
    listed: AtomicU64,
}

impl Link {
    pub(crate) fn new(world: &World, who: &str, network: &Network, random: Rng) -> Self {
        Self(Arc::new(Inner {
            world: world.clone(),
            who: who.into(),
            is_operator: false,
            network: network.clone(),
            random: Mutex::new(random),
            is_dead: AtomicBool::new(false),
            listed: AtomicU64::new(0),
        }))
    }

    /// The same for an operator.
    pub(crate) fn of_an_operator(world: &World, who: &str, network: &Network, random: Rng) -> Self {
        let link = Self::new(world, who, network, random);
        let inner = Arc::into_inner(link.0).expect("nobody else has it yet");
        Self(Arc::new(Inner {
            is_operator: true,
            ..inner
        }))
    }

    fn weather(&self) -> Weather {
        self.0.network.weather()
    }

    fn random(&self) -> MutexGuard<'_, Rng> {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are the same process's.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The process is dead: nothing that it would still do is done.
    pub(crate) fn kill(&self) {
        self.0.is_dead.store(true, Ordering::Relaxed);
    }

    /// The process hears what a LIST answers.
    fn lists(&self, revision: Revision) {
        self.0.listed.fetch_max(revision.0, Ordering::Relaxed);
    }

    fn listed(&self) -> Revision {
        Revision(self.0.listed.load(Ordering::Relaxed))
    }

    fn world(&self) -> &World {
        &self.0.world
    }

    /// Sends a call on its way, and waits for what comes back.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        is_write: bool,
        apply: impl Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        if self.0.is_dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let ttl = self.world().setting().ttl.get();
        let fate = Fate::of(self.weather(), is_write, ttl, &mut self.random());
        let (tell, told) = oneshot::channel();
        let call = Call {
            name,
            is_write,
            apply,
        };
        tokio::spawn(self.clone().travel(fate, call, Caller(Some(tell))));
        within(CALL_LIMIT, async {
            match told.await {
                Ok(answer) => answer,
                // Lost on the way: nothing is heard.
                Err(_lost) => std::future::pending().await,
            }
        })
        .await
    }

    async fn travel<T: Send + 'static, A>(self, fate: Fate, call: Call<A>, mut caller: Caller<T>)
    where
        A: Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        let network = &self.0.network;
        if let Some(broken_after) = fate.broken_after {
            tokio::time::sleep(broken_after).await;
            caller.hears(Err(StoreError::Ambiguous("the connection broke".into())));
        }
        let left = (fate.to_store).saturating_sub(fate.broken_after.unwrap_or_default());
        tokio::time::sleep(left).await;
        if !network.passes(Way::ToStore, fate.outlasts_cuts).await {
            return;
        }
        let mut result = match fate.outcome {
            Outcome::Lost => return self.happened("request lost", call.name),
            Outcome::Refused => Err(StoreError::Unavailable("it is not there".into())),
            Outcome::Throttled => Err(StoreError::Unavailable("too many requests".into())),
            Outcome::Unclear => Err(StoreError::Ambiguous("a gateway gave up".into())),
            Outcome::Applied | Outcome::AnswerLost => self.apply(&call),
        };
        if call.is_write && result.is_ok() {
            self.note_applied(&fate, call.name, caller.is_gone());
        }
        if let Some(after) = fate.again_after.filter(|_| call.is_write) {
            tokio::time::sleep(after).await;
            self.happened("write sent twice", call.name);
            // Whoever sends a request again has not heard the first answer.
            result = self.apply(&call);
        }
        if self.world().setting().trace == Trace::Everything {
            self.note_result(call.name, &result);
        }
        if fate.outcome == Outcome::AnswerLost {
            return;
        }
        tokio::time::sleep(fate.to_caller).await;
        if network.passes(Way::FromStore, fate.outlasts_cuts).await
            && caller.hears(result)
            && let Some(kind) = fate.kind_heard()
        {
            self.happened(kind, call.name);
        }
    }

    /// The store does it, if it lets this one.
    fn apply<T, A>(&self, call: &Call<A>) -> Result<T, StoreError>
    where
        A: Fn(&Self) -> Result<T, StoreError>,
    {
        if self.0.network.is_forbidden() {
            return Err(StoreError::Denied("forbidden".into()));
        }
        (call.apply)(self)
    }

    /// A write was done, which its caller may not come to know.
    fn note_applied(&self, fate: &Fate, name: &str, is_gone: bool) {
        if fate.outcome == Outcome::AnswerLost {
            self.happened("answer lost, applied", name);
        } else if fate.broken_after.is_some() {
            self.happened("late after a broken connection", name);
        } else if fate.to_store > LATE && is_gone {
            self.happened("late write, its caller gone", name);
        } else if fate.to_store > LATE {
            self.happened("late write", name);
        }
    }

    fn note_result<T>(&self, name: &str, result: &Result<T, StoreError>) {
        let failure = result.as_ref().err();
        let result = failure.map_or_else(|| "done".to_owned(), ToString::to_string);
        self.world()
            .note(&self.0.who, format_args!("({name}: {result})"));
    }

    fn happened(&self, kind: &'static str, to: &str) {
        self.world().count(kind);
        self.world()
            .note(&self.0.who, format_args!("({to}: {kind})"));
    }
}

/// What a process asks of the store.
struct Call<A> {
    name: &'static str,
    is_write: bool,
    apply: A,
}

/// Who waits for an answer, and hears one at most.
struct Caller<T>(Option<oneshot::Sender<Result<T, StoreError>>>);

impl<T> Caller<T> {
    /// Whether it was still there to hear it.
    fn hears(&mut self, answer: Result<T, StoreError>) -> bool {
        self.0.take().is_some_and(|tell| tell.send(answer).is_ok())
    }

    /// Whether it has heard something, or given up.
    fn is_gone(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// In memory nothing waits.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never()
        .expect("the store in memory answers at once")
}

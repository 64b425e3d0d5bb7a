//! The link between a process and the store: a network that delays, refuses and loses requests and
//! answers, and applies writes late.
//!
//! Each call runs in a separate task, so that a caller that times out does not cancel it. The
//! caller's result is correct by the port's contract: after `Unavailable` the call was not applied,
//! after `Ambiguous` it may have been.

mod delivery;
mod fleet;
mod policy;
mod stores;
mod watch;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use futures::FutureExt as _;
use leasehold::protocol::token::Revision;
use leasehold::store::{StoreError, within};
use tokio::sync::oneshot;

pub(crate) use delivery::Quality;
use delivery::{Delivery, LATE, Outcome};

use crate::network::{Network, Way};
use crate::setup::Trace;
use crate::world::World;

/// The timeout of an adapter.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// A process's connection to the store. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    world: World,
    who: Arc<str>,
    /// Whether strict mode permits it what only the operator may do.
    is_operator: bool,
    /// The network of the pod or replica.
    network: Network,
    random: Mutex<Rng>,
    is_dead: AtomicBool,
    listed: Mutex<Listed>,
}

/// The highest revision that a LIST returned to the process, and before the last instant at which one
/// did. A write of that instant may have been decided on before.
struct Listed {
    before: Revision,
    highest: Revision,
    at: Duration,
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
            listed: Mutex::new(Listed {
                before: Revision(0),
                highest: Revision(0),
                at: Duration::ZERO,
            }),
        }))
    }

    /// The same for an operator.
    pub(crate) fn of_an_operator(world: &World, who: &str, network: &Network, random: Rng) -> Self {
        let link = Self::new(world, who, network, random);
        let inner = Arc::into_inner(link.0).expect("no other handle exists yet");
        Self(Arc::new(Inner {
            is_operator: true,
            ..inner
        }))
    }

    fn quality(&self) -> Quality {
        self.0.network.quality()
    }

    fn random(&self) -> MutexGuard<'_, Rng> {
        self.0.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether both belong to the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The process crashed: none of its pending work continues.
    pub(crate) fn kill(&self) {
        self.0.is_dead.store(true, Ordering::Relaxed);
    }

    /// Records the revision that a LIST returned to the process.
    fn lists(&self, revision: Revision) {
        let mut listed = self.0.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.world().now();
        if listed.at < now {
            listed.before = listed.highest;
            listed.at = now;
        }
        listed.highest = listed.highest.max(revision);
    }

    /// Returns the highest revision that it had listed before this instant.
    fn listed(&self) -> Revision {
        let listed = self.0.listed.lock().unwrap_or_else(PoisonError::into_inner);
        if listed.at < self.world().now() {
            listed.highest
        } else {
            listed.before
        }
    }

    fn world(&self) -> &World {
        &self.0.world
    }

    /// Sends a call, and waits for its result.
    async fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        is_write: bool,
        apply: impl Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        if self.0.is_dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let ttl = self.world().setup().ttl.get();
        let delivery = Delivery::of(self.quality(), is_write, ttl, &mut self.random());
        let (tell, told) = oneshot::channel();
        let call = Call {
            name,
            is_write,
            apply,
        };
        tokio::spawn(self.clone().travel(delivery, call, Caller(Some(tell))));
        within(CALL_LIMIT, async {
            match told.await {
                Ok(answer) => answer,
                // Lost on the way, so no answer arrives.
                Err(_lost) => std::future::pending().await,
            }
        })
        .await
    }

    async fn travel<T: Send + 'static, A>(
        self,
        delivery: Delivery,
        call: Call<A>,
        mut caller: Caller<T>,
    ) where
        A: Fn(&Self) -> Result<T, StoreError> + Send + Sync + 'static,
    {
        let network = &self.0.network;
        if let Some(broken_after) = delivery.broken_after {
            tokio::time::sleep(broken_after).await;
            caller.receives(Err(StoreError::Ambiguous("the connection broke".into())));
        }
        let left = (delivery.to_store).saturating_sub(delivery.broken_after.unwrap_or_default());
        tokio::time::sleep(left).await;
        if !network.passes(Way::ToStore, delivery.outlasts_cuts).await {
            return;
        }
        let mut result = match delivery.outcome {
            Outcome::Lost => return self.happened("request lost", call.name),
            Outcome::Refused => Err(StoreError::Unavailable("it is not there".into())),
            Outcome::Throttled => Err(StoreError::Unavailable("too many requests".into())),
            Outcome::Unclear => Err(StoreError::Ambiguous("a gateway gave up".into())),
            Outcome::Applied | Outcome::AnswerLost => self.apply(&call),
        };
        if call.is_write && result.is_ok() {
            self.note_applied(&delivery, call.name, caller.is_gone());
        }
        if let Some(after) = delivery.again_after.filter(|_| call.is_write) {
            tokio::time::sleep(after).await;
            self.happened("write sent twice", call.name);
            // The caller of a repeated request has not received the first answer.
            result = self.apply(&call);
        }
        if self.world().setup().trace == Trace::Everything {
            self.note_result(call.name, &result);
        }
        if delivery.outcome == Outcome::AnswerLost {
            return;
        }
        tokio::time::sleep(delivery.to_caller).await;
        if network.passes(Way::FromStore, delivery.outlasts_cuts).await
            && caller.receives(result)
            && let Some(kind) = delivery.kind_heard()
        {
            self.happened(kind, call.name);
        }
    }

    /// Applies a call, if this process has the rights.
    fn apply<T, A>(&self, call: &Call<A>) -> Result<T, StoreError>
    where
        A: Fn(&Self) -> Result<T, StoreError>,
    {
        if self.0.network.is_forbidden() {
            return Err(StoreError::Denied("forbidden".into()));
        }
        (call.apply)(self)
    }

    /// Records a write that was applied, possibly without its caller's knowledge.
    fn note_applied(&self, delivery: &Delivery, name: &str, is_gone: bool) {
        if delivery.outcome == Outcome::AnswerLost {
            self.happened("answer lost, applied", name);
        } else if delivery.broken_after.is_some() {
            self.happened("late after a broken connection", name);
        } else if delivery.to_store > LATE && is_gone {
            self.happened("late write, its caller gone", name);
        } else if delivery.to_store > LATE {
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

/// A process's call to the store.
struct Call<A> {
    name: &'static str,
    is_write: bool,
    apply: A,
}

/// The caller, which receives at most one answer.
struct Caller<T>(Option<oneshot::Sender<Result<T, StoreError>>>);

impl<T> Caller<T> {
    /// Returns whether the caller was still waiting.
    fn receives(&mut self, answer: Result<T, StoreError>) -> bool {
        self.0.take().is_some_and(|tell| tell.send(answer).is_ok())
    }

    /// Returns whether the caller received an answer or stopped waiting.
    fn is_gone(&self) -> bool {
        self.0.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// Calls of the store in memory complete without waiting.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never()
        .expect("the store in memory answers at once")
}

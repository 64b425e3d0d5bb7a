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
use tokio::sync::{Notify, oneshot};

pub(crate) use fate::Weather;
use fate::{Fate, Outcome};

use crate::world::World;

/// The longest that an adapter waits for an answer.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Which way nothing gets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) to_store: bool,
    pub(crate) from_store: bool,
}

impl Cut {
    pub(crate) const BOTH: Self = Self {
        to_store: true,
        from_store: true,
    };
    pub(crate) const TO_STORE: Self = Self {
        to_store: true,
        from_store: false,
    };
    pub(crate) const FROM_STORE: Self = Self {
        to_store: false,
        from_store: true,
    };
}

/// A process's way to the store. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Link(Arc<Inner>);

struct Inner {
    world: World,
    who: Arc<str>,
    /// Whether it may do what strict mode lets only the operator do.
    is_operator: bool,
    random: Mutex<Rng>,
    weather: Mutex<Weather>,
    cut: Mutex<Cut>,
    /// Told when that changes, to all at once and in the order in which they came; tokio's `watch` wakes
    /// them in a random one.
    cut_changed: Notify,
    is_dead: AtomicBool,
    /// The highest revision that a LIST told the process.
    listed: AtomicU64,
}

impl Link {
    pub(crate) fn new(world: &World, who: &str, random: Rng) -> Self {
        Self(Arc::new(Inner {
            world: world.clone(),
            who: who.into(),
            is_operator: false,
            random: Mutex::new(random),
            weather: Mutex::new(Weather::Calm),
            cut: Mutex::default(),
            cut_changed: Notify::new(),
            is_dead: AtomicBool::new(false),
            listed: AtomicU64::new(0),
        }))
    }

    /// The same for an operator.
    pub(crate) fn of_an_operator(world: &World, who: &str, random: Rng) -> Self {
        let link = Self::new(world, who, random);
        let inner = Arc::into_inner(link.0).expect("nobody else has it yet");
        Self(Arc::new(Inner {
            is_operator: true,
            ..inner
        }))
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        *self
            .0
            .weather
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = weather;
    }

    pub(crate) fn cut(&self, cut: Cut) {
        *self.0.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
        self.0.cut_changed.notify_waiters();
    }

    fn weather(&self) -> Weather {
        *self
            .0
            .weather
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        apply: impl FnOnce(&Self) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.0.is_dead.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let ttl = self.world().setting().ttl.get();
        let fate = Fate::of(self.weather(), is_write, ttl, &mut self.random());
        let (tell, told) = oneshot::channel();
        tokio::spawn(self.clone().travel(name, fate, apply, tell));
        within(CALL_LIMIT, async {
            match told.await {
                Ok(answer) => answer,
                // Lost on the way: nothing is heard.
                Err(_lost) => std::future::pending().await,
            }
        })
        .await
    }

    async fn travel<T>(
        self,
        name: &'static str,
        fate: Fate,
        apply: impl FnOnce(&Self) -> Result<T, StoreError>,
        tell: oneshot::Sender<Result<T, StoreError>>,
    ) {
        let world = self.world();
        if let Some(kind) = fate.kind() {
            world.count(kind);
            world.note(&self.0.who, format_args!("({name}: {kind})"));
        }
        let mut tell = Some(tell);
        let mut answer = |answer| tell.take().map(|tell| tell.send(answer));
        if let Some(broken_after) = fate.broken_after {
            tokio::time::sleep(broken_after).await;
            let broken = StoreError::Ambiguous("the connection broke".into());
            let _unheard = answer(Err(broken));
        }
        tokio::time::sleep(
            fate.to_store
                .saturating_sub(fate.broken_after.unwrap_or_default()),
        )
        .await;
        if !self.passes(|cut| cut.to_store, fate.outlasts_cuts).await {
            return;
        }
        let result = match fate.outcome {
            Outcome::Lost => return,
            Outcome::Refused => Err(StoreError::Unavailable("it is not there".into())),
            Outcome::Throttled => Err(StoreError::Unavailable("too many requests".into())),
            Outcome::Unclear => Err(StoreError::Ambiguous("a gateway gave up".into())),
            Outcome::Applied | Outcome::AnswerLost => apply(&self),
        };
        if fate.outcome == Outcome::AnswerLost {
            if is_write_done(&result) {
                world.count("answer lost, applied");
            }
            return;
        }
        tokio::time::sleep(fate.to_caller).await;
        if self.passes(|cut| cut.from_store, fate.outlasts_cuts).await {
            let _heard = answer(result);
        }
    }

    /// Waits while nothing gets through; false when what is sent does not outlast that.
    async fn passes(&self, is_cut: fn(&Cut) -> bool, outlasts: bool) -> bool {
        loop {
            let changed = self.0.cut_changed.notified();
            if !is_cut(&self.cut_now()) {
                return true;
            }
            if !outlasts {
                return false;
            }
            changed.await;
        }
    }

    fn cut_now(&self) -> Cut {
        *self.0.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_write_done<T>(result: &Result<T, StoreError>) -> bool {
    result.is_ok()
}

/// In memory nothing waits.
pub(crate) fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never()
        .expect("the store in memory answers at once")
}

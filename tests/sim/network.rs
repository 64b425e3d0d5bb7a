//! What stands between one place, a pod's or a replica's, and the store: the weather of its network, what cuts
//! it off, and who takes its rights away. All that is the place's and not a process's: who is started anew in it
//! finds it as it was.
//!
//! What cuts it off may overlap; nothing gets through before the last of it is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::link::Weather;
use crate::world::World;

/// Which way nothing gets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Either.
    Both,
    /// What is sent does not arrive.
    ToStore,
    /// What is answered and told does not.
    FromStore,
    /// All gets through, and whatever is asked is forbidden.
    Rights,
}

/// Which way something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToStore,
    FromStore,
}

/// A place's network. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Network(Arc<Inner>);

struct Inner {
    world: World,
    /// Whether an operator is there.
    is_operators: bool,
    state: Mutex<State>,
    /// Told when everything is mended, to all at once and in the order in which they came; tokio's `watch`
    /// wakes them in a random one.
    mended: Notify,
}

struct State {
    weather: Weather,
    cuts: Vec<Lasting>,
}

/// A cut while it lasts.
struct Lasting {
    cut: Cut,
    until: Duration,
    /// Whether it kept anything from getting through. One that did not is none.
    has_met: bool,
}

impl Cut {
    const fn is_in(self, way: Way) -> bool {
        match self {
            Self::Both => true,
            Self::ToStore => matches!(way, Way::ToStore),
            Self::FromStore => matches!(way, Way::FromStore),
            Self::Rights => false,
        }
    }

    /// What is counted when it met something.
    const fn kind(self, is_operators: bool) -> &'static str {
        match (self, is_operators) {
            (Self::Both, false) => "cut off both ways",
            (Self::ToStore, false) => "cut off to the store",
            (Self::FromStore, false) => "cut off from the store",
            (Self::Rights, false) => "rights taken away",
            (Self::Rights, true) => "operator's rights taken away",
            (Self::Both, true) => "operator cut off both ways",
            (Self::ToStore, true) => "operator cut off to the store",
            (Self::FromStore, true) => "operator cut off from the store",
        }
    }
}

impl Network {
    pub(crate) fn new(world: &World, is_operators: bool) -> Self {
        Self(Arc::new(Inner {
            world: world.clone(),
            is_operators,
            state: Mutex::new(State {
                weather: Weather::Calm,
                cuts: Vec::new(),
            }),
            mended: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn weather(&self) -> Weather {
        self.state().weather
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Nothing gets through that way for so long.
    pub(crate) fn cut(&self, cut: Cut, lasts: Duration) {
        let now = self.0.world.now();
        let mut state = self.state();
        state.cuts.retain(|lasting| lasting.until > now);
        state.cuts.push(Lasting {
            cut,
            until: now + lasts,
            has_met: false,
        });
    }

    /// All is well from now on.
    pub(crate) fn mend(&self) {
        let mut state = self.state();
        state.weather = Weather::Calm;
        state.cuts.clear();
        drop(state);
        self.0.mended.notify_waiters();
    }

    /// Waits while nothing gets through; false when what is sent does not outlast that.
    pub(crate) async fn passes(&self, way: Way, outlasts: bool) -> bool {
        loop {
            let mended = self.0.mended.notified();
            let Some(left) = self.meets(|cut| cut.is_in(way)) else {
                return true;
            };
            if !outlasts {
                return false;
            }
            tokio::select! {
                biased;
                () = mended => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Whether whoever asks from here is refused.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.meets(|cut| cut == Cut::Rights).is_some()
    }

    /// For how long something now meets such cuts, if it does.
    fn meets(&self, is_such: impl Fn(Cut) -> bool) -> Option<Duration> {
        let now = self.0.world.now();
        let mut longest = None;
        let mut met = Vec::new();
        for lasting in &mut self.state().cuts {
            if !is_such(lasting.cut) || lasting.until <= now {
                continue;
            }
            longest = longest.max(Some(lasting.until.saturating_sub(now)));
            if !std::mem::replace(&mut lasting.has_met, true) {
                met.push(lasting.cut.kind(self.0.is_operators));
            }
        }
        for kind in met {
            self.0.world.count(kind);
        }
        longest
    }
}

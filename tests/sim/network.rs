//! The network of one pod or operator replica: its quality, its cuts, and whether its rights are
//! removed. It belongs to the pod and not to a process: a restarted process has the same network.
//!
//! Cuts may overlap; no message passes before the last of them is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::link::Quality;
use crate::world::World;

/// A kind of cut: the direction in which no message passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Both directions.
    Both,
    /// Requests do not arrive.
    ToStore,
    /// Answers and events do not arrive.
    FromStore,
    /// All messages pass, but every request is forbidden.
    Rights,
}

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToStore,
    FromStore,
}

/// The network of a pod. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct Network(Arc<Inner>);

struct Inner {
    world: World,
    /// Whether it belongs to an operator.
    is_operators: bool,
    state: Mutex<State>,
    /// Notified when everything is healed. It wakes all waiters at once and in order; tokio's
    /// `watch` wakes them in random order.
    healed: Notify,
}

struct State {
    quality: Quality,
    cuts: Vec<Lasting>,
}

/// A cut and its duration.
struct Lasting {
    cut: Cut,
    until: Duration,
    /// Whether it has blocked a message. Otherwise it does not count.
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

    /// Returns the kind to count when it affects a call.
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
                quality: Quality::Good,
                cuts: Vec::new(),
            }),
            healed: Notify::new(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn quality(&self) -> Quality {
        self.state().quality
    }

    pub(crate) fn set_quality(&self, quality: Quality) {
        self.state().quality = quality;
    }

    /// Blocks this direction for the given time.
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

    /// Ends all cuts.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.quality = Quality::Good;
        state.cuts.clear();
        drop(state);
        self.0.healed.notify_waiters();
    }

    /// Waits while no message passes. Returns `false` if the message does not outlast the cut.
    pub(crate) async fn passes(&self, way: Way, outlasts: bool) -> bool {
        loop {
            let healed = self.0.healed.notified();
            let Some(left) = self.meets(|cut| cut.is_in(way)) else {
                return true;
            };
            if !outlasts {
                return false;
            }
            tokio::select! {
                biased;
                () = healed => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Returns whether requests from here are refused.
    pub(crate) fn is_forbidden(&self) -> bool {
        self.meets(|cut| cut == Cut::Rights).is_some()
    }

    /// Returns the remaining time of such cuts, if any.
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

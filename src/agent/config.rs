//! What an agent is told at its start and at its end.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::pause::Pause;
use crate::protocol::session::PodRef;
use crate::protocol::time::SessionTtl;
use crate::random::Random;

use super::core::CoreConfig;
use super::core::acquiring::AcquireConfig;
use super::core::session::SessionConfig;

/// What an agent is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The pod (or process) that it speaks for.
    pub pod: PodRef,
    /// The TTL of its sessions.
    pub session_ttl: SessionTtl,
    /// Added to every token base; the same in the whole installation.
    pub token_floor: u64,
    /// Whether it takes over expired sessions' locks, where the admission policies allow that. Otherwise only
    /// the operator does, and the agent reads no other pod's session.
    pub takes_over: bool,
    /// How many leases it serves at once.
    pub max_leases: usize,
    /// How many callers wait at once.
    pub max_waiting: usize,
    /// How many streams of events are open at once.
    pub max_streams: usize,
    /// After how long without a lease the session is ended.
    pub idle_after: Duration,
    /// Resource prefixes with a contention metric of their own, at most 50.
    pub metrics_prefixes: BTreeSet<String>,
    /// Where names and jitter come from.
    pub random: Random,
    /// What stops all its tasks, in a simulation; a call's own is its caller's to hold.
    pub pause: Option<Pause>,
}

impl Config {
    /// The defaults for a pod: a TTL of 15 s, no floor, take-overs, 10,000 leases, 512 callers that
    /// wait, 512 streams of events, 10 idle minutes.
    #[must_use]
    pub fn new(pod: PodRef) -> Self {
        Self {
            pod,
            session_ttl: SessionTtl::clamped(15),
            token_floor: 0,
            takes_over: true,
            max_leases: 10_000,
            max_waiting: 512,
            max_streams: 512,
            idle_after: Duration::from_secs(600),
            metrics_prefixes: BTreeSet::new(),
            random: Random::system(),
            pause: None,
        }
    }

    /// Returns the part that the core needs.
    pub(super) fn core(&self) -> CoreConfig {
        CoreConfig {
            session: SessionConfig {
                pod: self.pod.clone(),
                ttl: self.session_ttl,
                idle_after: self.idle_after,
            },
            token_floor: self.token_floor,
            acquire: AcquireConfig {
                takes_over: self.takes_over,
                max_leases: self.max_leases,
                max_waiting: self.max_waiting,
            },
        }
    }
}

/// What becomes of held leases when the agent is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTerm {
    /// Wait until each was released or its promise has passed.
    Wait,
    /// Release at once what no app was promised, and leave promised leases to their session: for the
    /// agent's next process, or for others once the pod has ended or the session has expired.
    ReleaseNow,
    /// Release everything at once: the caller knows that the apps have ended.
    AppsEnded,
}

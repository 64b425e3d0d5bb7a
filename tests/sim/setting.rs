//! What a seed makes of a world before it begins: how many take part, by which clocks, and what may go
//! wrong. A negative control bends one thing of it.

use std::time::Duration;

use fastrand::Rng;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::time::SessionTtl;

/// The most by which clocks that are good enough differ in their rates, in millionths.
const BOUND: u64 = 50_000;

/// What is made worse than it may be, to see that the checks notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bent {
    /// Nothing is.
    #[default]
    Nothing,
    /// Every other clock counts faster by a third.
    Clocks,
    /// Apps believe for half as long again as they were told.
    Apps,
    /// The fenced resource takes whatever comes.
    Register,
}

/// How a world is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) seed: u64,
    pub(crate) bent: Bent,
    pub(crate) ttl: SessionTtl,
    /// How much faster than virtual time each pod's machine counts, in millionths.
    pub(crate) gains: Vec<u64>,
    pub(crate) apps_per_pod: usize,
    pub(crate) resources: Vec<Resource>,
    /// For how long things go wrong.
    pub(crate) trouble_for: Duration,
    /// The same of the machines of the operator's replicas.
    pub(crate) operators: Vec<u64>,
    /// Whether only the operator takes over. It may anyway.
    pub(crate) is_strict: bool,
    /// Whether some machine's clock leaps: then only tokens protect.
    pub(crate) clocks_leap: bool,
    /// Whether sidecars are started with older copies of their state files.
    pub(crate) has_older_copies: bool,
}

impl Setting {
    pub(crate) fn of(seed: u64, bent: Bent, random: &mut Rng) -> Self {
        let pods = random.usize(2..=5);
        let gains = (0..pods).map(|number| match bent {
            Bent::Clocks => number as u64 % 2 * 333_000,
            _ => gain(random),
        });
        let gains = gains.collect();
        let operators: Vec<u64> = match bent {
            Bent::Nothing => (0..random.usize(..=2)).map(|_| gain(random)).collect(),
            _ => Vec::new(),
        };
        let is_strict = !operators.is_empty() && random.bool();
        let resources = (0..random.usize(1..=3)).map(|n| format!("lock-{n}"));
        Self {
            seed,
            bent,
            ttl: SessionTtl::clamped(random.u64(3..=15)),
            gains,
            operators,
            is_strict,
            apps_per_pod: random.usize(1..=2),
            resources: resources
                .map(|name| Resource::parse(&name).expect("a name is a resource"))
                .collect(),
            trouble_for: Duration::from_secs(random.u64(30..=90)),
            clocks_leap: bent == Bent::Nothing && random.u8(..8) == 0,
            has_older_copies: random.u8(..5) == 0,
        }
    }
}

/// The ends of what is allowed are the most dangerous.
fn gain(random: &mut Rng) -> u64 {
    match random.u8(..4) {
        0 | 1 => 0,
        2 => BOUND,
        _ => random.u64(0..=BOUND),
    }
}

//! What a seed makes of a world before it begins: how many take part, by which clocks, and what may go
//! wrong. A negative control bends one thing of it.

use std::time::Duration;

use fastrand::Rng;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::time::SessionTtl;
use leasehold::protocol::token::Revision;

/// The most by which clocks that are good enough differ in their rates, in millionths.
const BOUND: u64 = 50_000;

/// A revision as GKE gives them: nanoseconds since 1970.
const IN_NANOSECONDS: u64 = 1_760_342_223_637_167_018;

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
    /// A backup of before an earlier restore is restored with the bump that that one had.
    Bump,
}

/// What is written down of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// What goes wrong with them.
    Troubles,
    /// Each of them, also what went as it should.
    Everything,
}

/// How a world is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) bent: Bent,
    pub(crate) trace: Trace,
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
    /// The revision at which the store begins. Those beyond 2^53 are nanoseconds.
    pub(crate) first_revision: Revision,
    /// In how many TTLs a backup is restored at the latest, where some are.
    pub(crate) restored_within: Option<f64>,
    /// Whether sidecars are started with older copies of their state files.
    pub(crate) has_older_copies: bool,
}

impl Setting {
    pub(crate) fn of(seed: u64, bent: Bent, random: &mut Rng) -> Self {
        // Few in most worlds, so that there is time for more worlds.
        let pods = [2_usize, 2, 2, 3, 3, 3, 4, 5][random.usize(..8)];
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
        let ttl = SessionTtl::clamped(random.u64(3..=15));
        let resources = (0..random.usize(1..=3)).map(|n| format!("lock-{n}"));
        Self {
            bent,
            trace: Trace::Troubles,
            ttl,
            gains,
            operators,
            is_strict,
            apps_per_pod: 1 + usize::from(random.u8(..4) == 0),
            resources: resources
                .map(|name| Resource::parse(&name).expect("a name is a resource"))
                .collect(),
            trouble_for: ttl.get() * random.u32(10..=30),
            clocks_leap: bent == Bent::Nothing && random.u8(..8) == 0,
            first_revision: Revision(if random.u8(..8) == 0 && bent != Bent::Bump {
                IN_NANOSECONDS
            } else {
                1_000 + seed % 1_000
            }),
            restored_within: (random.u8(..3) == 0 || bent == Bent::Bump).then_some(3.0),
            has_older_copies: random.u8(..5) == 0,
        }
    }
}

impl Setting {
    /// Whether revisions are nanoseconds. Here they rise by one with each write, as those of no store do: a
    /// lock that is deleted or wiped, or comes from a backup, could not have a larger token then.
    pub(crate) fn counts_nanoseconds(&self) -> bool {
        self.first_revision.0 >= IN_NANOSECONDS
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

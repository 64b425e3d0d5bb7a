//! What a seed decides before a world begins: the number of pods, their clocks, and the possible
//! faults. A negative control violates one of the bounds.

use std::time::Duration;

use fastrand::Rng;
use leasehold::protocol::ids::Resource;
use leasehold::protocol::time::SessionTtl;
use leasehold::protocol::token::Revision;

/// The maximum difference between the rates of permitted clocks, in millionths.
const BOUND: u64 = 50_000;

/// A revision as in GKE: nanoseconds since 1970.
const IN_NANOSECONDS: u64 = 1_760_342_223_637_167_018;

/// The bound that is violated on purpose, to show that the checks detect it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Control {
    /// No bound is violated.
    #[default]
    Nothing,
    /// Every other clock runs faster by a third.
    Clocks,
    /// Apps act for half as long again as their validity.
    Apps,
    /// The fenced resource accepts every write.
    Register,
    /// A backup from before an earlier restore is restored with the same bump as that restore.
    Bump,
}

/// The calls in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// Calls with a fault.
    Faults,
    /// All calls, including successful ones.
    Everything,
}

/// The setup of a world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) control: Control,
    pub(crate) trace: Trace,
    pub(crate) ttl: SessionTtl,
    /// How much faster than virtual time each pod's machine runs, in millionths.
    pub(crate) gains: Vec<u64>,
    pub(crate) apps_per_pod: usize,
    pub(crate) resources: Vec<Resource>,
    /// The duration of fault injection.
    pub(crate) trouble_for: Duration,
    /// The same for the machines of the operator's replicas.
    pub(crate) operators: Vec<u64>,
    /// Whether only the operator takes over. It may do so in either mode.
    pub(crate) is_strict: bool,
    /// Whether some machine's clock jumps: then only tokens protect.
    pub(crate) clocks_leap: bool,
    /// The store's first revision. Revisions beyond 2^53 are nanoseconds.
    pub(crate) first_revision: Revision,
    /// The maximum time until a backup is restored, in TTLs, in worlds with restores.
    pub(crate) restored_within: Option<f64>,
}

impl Setup {
    pub(crate) fn of(seed: u64, control: Control, random: &mut Rng) -> Self {
        // Few pods in most worlds, so that there is time for more worlds.
        let pods = [2_usize, 2, 2, 3, 3, 3, 4, 5][random.usize(..8)];
        let gains = (0..pods).map(|number| match control {
            Control::Clocks => number as u64 % 2 * 333_000,
            _ => gain(random),
        });
        let gains = gains.collect();
        let operators: Vec<u64> = match control {
            Control::Nothing => (0..random.usize(..=2)).map(|_| gain(random)).collect(),
            _ => Vec::new(),
        };
        let is_strict = !operators.is_empty() && random.bool();
        let ttl = SessionTtl::clamped(random.u64(3..=15));
        let resources = (0..random.usize(1..=3)).map(|n| format!("lock-{n}"));
        Self {
            control,
            trace: Trace::Faults,
            ttl,
            gains,
            operators,
            is_strict,
            apps_per_pod: 1 + usize::from(random.u8(..4) == 0),
            resources: resources
                .map(|name| Resource::parse(&name).expect("a name is a resource"))
                .collect(),
            trouble_for: ttl.get() * random.u32(10..=30),
            clocks_leap: control == Control::Nothing && random.u8(..8) == 0,
            first_revision: Revision(if random.u8(..8) == 0 && control != Control::Bump {
                IN_NANOSECONDS
            } else {
                1_000 + seed % 1_000
            }),
            restored_within: (random.u8(..3) == 0 || control == Control::Bump).then_some(3.0),
        }
    }
}

impl Setup {
    /// Returns whether revisions are nanoseconds. Here they increase by one with each write, as in
    /// no real store. So a lock that is deleted or wiped, or comes from a backup, could not have a
    /// larger token.
    pub(crate) fn counts_nanoseconds(&self) -> bool {
        self.first_revision.0 >= IN_NANOSECONDS
    }
}

/// Returns a clock's gain. The limits of what is permitted are the most dangerous values.
fn gain(random: &mut Rng) -> u64 {
    match random.u8(..4) {
        0 | 1 => 0,
        2 => BOUND,
        _ => random.u64(0..=BOUND),
    }
}

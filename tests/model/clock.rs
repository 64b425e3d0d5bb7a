//! Real time and the nodes' clocks.
//!
//! Only the model knows real time. Each node has a clock of its own, with its own start and its own rate; the slow
//! and the fast rate are 5 % apart, which is all that the design allows. The protocol under test only gets a node's
//! own readings.
//!
//! Every state is stored as if its real time were zero: only distances in time matter, not how long the run has
//! lasted. So runs that differ only in that reach one state.

use std::time::Duration;

use leasehold::protocol::time::Moment;

/// The TTL of every session here. Every share of it is a whole number of milliseconds on the slow
/// and on the fast clock, so nothing is ever rounded.
pub(crate) const TTL_SECONDS: u64 = 63;

/// One node's clock that counts since its boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeClock {
    boot: Duration,
    /// What it counts in a real second, in twentieths of one: 20 or 21.
    rate: u32,
}

impl NodeClock {
    /// A clock of the slow or the fast rate. They all start at different times, so that a
    /// comparison of two machines' moments would be noticed.
    pub(crate) fn new(node: usize, fast: bool) -> Self {
        let boots = u32::try_from(node + 1).expect("a few nodes");
        Self {
            boot: Duration::from_secs(1_000_000) * boots,
            rate: if fast { 21 } else { 20 },
        }
    }

    /// What the clock shows now.
    pub(crate) fn now(self) -> Moment {
        Moment::since_boot(self.boot)
    }

    /// How far the clock advances in this real time.
    pub(crate) fn counts(self, real: Duration) -> Duration {
        real * self.rate / 20
    }

    /// How much real time it takes until the clock shows this moment.
    pub(crate) fn real_time_until(self, moment: Moment) -> Duration {
        moment.since(self.now()) * 20 / self.rate
    }
}

#[test]
fn node_clock_rounds_nothing() {
    use leasehold::protocol::time::SessionTtl;

    let ttl = SessionTtl::clamped(TTL_SECONDS);
    for share in [ttl.get() / 3, ttl.holder_share(), ttl.challenger_share()] {
        for clock in [NodeClock::new(0, false), NodeClock::new(1, true)] {
            let real = clock.real_time_until(clock.now().after(share));
            assert_eq!(real.subsec_nanos() % 1_000_000, 0);
            assert_eq!(clock.counts(real), share);
        }
    }
}

//! One world's rules: who takes part, what may go wrong and how often, and what is broken on purpose.

use super::*;

/// The TTL of every session here. Each share of it is a whole number of milliseconds on a slow and on a
/// fast clock.
pub(super) const TTL_SECONDS: u64 = 63;

/// How many of each fault a run may have, on all nodes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Requests or answers that take any time. All others take none.
    pub(super) late: u8,
    /// Late writes that are given up: applied at any later time, or never.
    pub(super) timeouts: u8,
    pub(super) crashes: u8,
    /// Processes that stand still for any time.
    pub(super) pauses: u8,
    /// Apps that hang up while they wait.
    pub(super) hang_ups: u8,
    /// A person deletes a session object.
    pub(super) session_deletes: u8,
    /// A person deletes a lock object.
    pub(super) lock_deletes: u8,
    /// A person forces a release.
    pub(super) forces: u8,
    /// The operator deletes a lock that is free.
    pub(super) tidies: u8,
    /// A backup is restored with its revision raised.
    pub(super) restores: u8,
}

impl Budget {
    /// No fault at all.
    pub(super) const NONE: Self = Self {
        late: 0,
        timeouts: 0,
        crashes: 0,
        pauses: 0,
        hang_ups: 0,
        session_deletes: 0,
        lock_deletes: 0,
        forces: 0,
        tidies: 0,
        restores: 0,
    };
}

/// How a crashed process comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Return {
    WithFile,
    /// With a copy that does not know of the leases.
    WithOlderFile,
    WithoutFile,
    Never,
}

/// When a watch reports an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchPace {
    Prompt,
    /// At any later time.
    Late,
    Silent,
}

/// What is broken on purpose around the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The app counts its validity from the answer.
    AppCountsFromAnswer,
    /// The store takes a lock's write at any version.
    LockWithoutPrecondition,
    /// The driver answers leases before they are on file.
    LeaseNotOnFile,
    /// Clocks differ by a third.
    ClocksFarApart,
    /// The operator revokes a session at once.
    RevokedAtOnce,
    /// The operator frees a lock that others wait for.
    QueueOfFreeLock,
    /// A backup is restored at its old revision.
    RestoreWithoutRaise,
}

/// A world.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a part of the world that is there or not"
)]
pub(super) struct Rules {
    pub(super) nodes: usize,
    pub(super) locks: usize,
    /// Every combination of slow and fast clocks, or one rate for all.
    pub(super) clocks_differ: bool,
    /// Whether agents take over, or only others do.
    pub(super) takes_over: bool,
    /// Whether there is an operator.
    pub(super) operator: bool,
    /// How often each app asks for each lock.
    pub(super) tries: u8,
    /// How often a session is renewed that no caller waits for. Then its process stands still for good.
    pub(super) renewals: u8,
    /// How many sessions each process begins.
    pub(super) sessions: u8,
    /// Until when apps ask. An app whose lease or request has ended may ask again at once.
    pub(super) asks_until: Duration,
    /// Whether apps wait, or try once.
    pub(super) waits: bool,
    /// How long a grant is kept after a lease.
    pub(super) keep: Duration,
    pub(super) watch: WatchPace,
    /// Whether the locks are there and each node has a session.
    pub(super) has_begun: bool,
    /// How crashed processes come back.
    pub(super) returns: &'static [Return],
    pub(super) budget: Budget,
    pub(super) bug: Option<Bug>,
    /// One state in so many is followed until it comes to rest.
    pub(super) followed: u64,
}

impl Rules {
    /// Two agents, one lock, and no fault.
    pub(super) fn calm() -> Self {
        Self {
            nodes: 2,
            locks: 1,
            clocks_differ: false,
            takes_over: true,
            operator: false,
            tries: 1,
            renewals: 1,
            sessions: 1,
            asks_until: Duration::ZERO,
            waits: true,
            keep: Duration::ZERO,
            watch: WatchPace::Prompt,
            has_begun: true,
            returns: &[Return::WithFile, Return::WithoutFile, Return::Never],
            budget: Budget::NONE,
            bug: None,
            followed: 509,
        }
    }

    /// Returns whether a process may come back with its file.
    pub(super) fn has_files(&self) -> bool {
        let files = [Return::WithFile, Return::WithOlderFile];
        self.budget.crashes > 0 && files.iter().any(|way| self.returns.contains(way))
    }
}

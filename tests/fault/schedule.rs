//! The schedule of faults: a seed decides, and every kind is used before one is repeated.

use std::time::Duration;

/// The kinds of faults, and how often each is in the deck. The most productive ones are in it more
/// than once.
macro_rules! kinds {
    ($($(#[$says:meta])* $kind:ident $times:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $($(#[$says])* $kind,)*
        }

        /// All kinds, with the number of times each is in the deck.
        const DECK: &[(Kind, usize)] = &[$(($kind, $times)),*];
    };
}

kinds! {
    /// kill -9 of a sidecar, which restarts with its state directory.
    KillSidecar 1,
    /// kill -9 of a sidecar, which restarts without its state directory.
    ForgetSidecar 3,
    /// A sidecar is stopped, mostly for longer than its session is valid, and continues.
    HangSidecar 2,
    /// kill -9 of an app.
    KillApp 1,
    /// An app is stopped with a pending write, for longer than its lease is valid.
    HangApp 2,
    /// A whole pod, sidecar and apps, is stopped with a pending write, and continues.
    HangPod 2,
    /// kill -9 of a replica of the operator.
    KillOperator 1,
    /// A replica of the operator is stopped and continues.
    HangOperator 1,
    /// kill -9 of the API server.
    KillApiServer 1,
    /// The API server hangs.
    HangApiServer 1,
    /// The API server shuts down and restarts.
    RestartApiServer 1,
    /// kill -9 of etcd.
    KillEtcd 1,
    /// etcd hangs: requests are applied afterwards.
    HangEtcd 1,
    /// etcd compacts its history.
    CompactEtcd 1,
    /// A backup is restored as the runbook says.
    RestoreEtcd 1,
    /// Some processes' requests and answers are lost, late, or answered by a gateway.
    Noise 1,
    /// Writes arrive; their answers are late or lost.
    LateAnswers 1,
    /// Writes arrive late: after their sender timed out, or after its session is over.
    LateRequests 1,
    /// No message passes between a pod, or a replica of the operator, and the API server.
    Partition 2,
    /// A pod's own network is cut: it reaches neither API server nor register.
    CutPod 1,
    /// Open watches stop delivering events.
    StallWatches 1,
    /// The wall clock of a sidecar jumps, backward or forward.
    WallClockLeaps 1,
    /// The clock that a sidecar counts leases on jumps forward.
    ClockLeaps 1,
    /// Pods lose their rights to locks, and the rights are restored.
    TakeRights 1,
    /// The operator loses its rights, and they are restored.
    TakeOperatorsRights 1,
    /// A lock is deleted, as the policy advises.
    DeleteLock 1,
    /// A held lock is removed from the store, around every policy.
    LoseLock 1,
    /// A lock's holder is erased by hand.
    WipeStatus 1,
    /// A lock's queue, times and settings are edited by hand.
    EditLock 1,
    /// A session is deleted.
    DeleteSession 1,
    /// A person forces a release.
    ForceRelease 1,
    /// Every object is rewritten, as by a storage migration.
    RewriteStorage 1,
}

use Kind::*;

impl Kind {
    /// Returns whether the fault counts only if it affects a message.
    pub(crate) const fn is_of_messages(self) -> bool {
        let of_rules = matches!(self, Noise | LateAnswers | LateRequests | StallWatches);
        of_rules || matches!(self, Partition | CutPod)
    }
}

/// Faults that may coincide with another one: they need no answer of a server.
const ON_TOP: [Kind; 7] = [
    KillSidecar,
    ForgetSidecar,
    HangSidecar,
    KillApp,
    HangPod,
    KillOperator,
    HangOperator,
];

/// The percentage of faults that coincide with another one.
const TOGETHER: u32 = 30;

/// The schedule of a run.
pub(crate) struct Schedule {
    dice: fastrand::Rng,
    deck: Vec<Kind>,
}

/// The next fault.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) kind: Kind,
    /// A second fault at the same time.
    pub(crate) and: Option<Kind>,
    /// The fault's duration.
    pub(crate) lasts: Duration,
    /// The time without faults afterwards.
    pub(crate) rest: Duration,
}

impl Schedule {
    /// Returns the schedule of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            dice: fastrand::Rng::with_seed(seed),
            deck: Vec::new(),
        }
    }

    /// Returns the next entry of the schedule.
    pub(crate) fn next(&mut self) -> Next {
        if self.deck.is_empty() {
            let cards = DECK.iter();
            let cards = cards.flat_map(|(kind, times)| std::iter::repeat_n(*kind, *times));
            self.deck = cards.collect();
            self.dice.shuffle(&mut self.deck);
        }
        let kind = self.deck.pop().unwrap_or(HangApp);
        let on_top = self.dice.choice(ON_TOP).filter(|_| self.is(TOGETHER));
        let lasts = match kind {
            HangApp | HangPod | CutPod => self.between(5_500, 8_500),
            // Long enough for a take-over.
            ForgetSidecar | HangSidecar => self.between(3_500, 7_500),
            // It takes up to two seconds until all processes observe it.
            ClockLeaps => self.between(2_500, 5_000),
            _ => self.between(300, 6_500),
        };
        Next {
            kind,
            and: on_top,
            lasts,
            rest: self.between(300, 2_000),
        }
    }

    /// Chooses an index below `of`.
    pub(crate) fn pick(&mut self, of: usize) -> usize {
        self.dice.usize(..of)
    }

    /// Returns `true` with this probability.
    pub(crate) fn is(&mut self, percent: u32) -> bool {
        self.dice.u32(..100) < percent
    }

    /// Chooses a duration in milliseconds.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.dice.u64(from..to))
    }

    /// Returns a seed for another generator.
    pub(crate) fn seed(&mut self) -> u64 {
        self.dice.u64(..)
    }
}

//! When the command is asked to end, and when it is killed. Pure: moments in, signals out.
//!
//! ```text
//!            SIGTERM                 SIGKILL       backstop   deadline
//! ──────────────┼───────────────────────┼──────────────┼──────────┼──▶
//!               └──────── 4/5 ──────────┴──── 1/10 ────┴── 1/10 ──┘  of the grace
//! ```
//!
//! Invariant: unless a loss is ignored, the command gets SIGKILL before the deadline of its lease,
//! whatever was received or not. A renewal that arrives after SIGTERM does not take it back.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::protocol::time::Moment;

/// What a lost lease means for the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OnLost {
    /// SIGTERM, and SIGKILL before the deadline.
    Term,
    /// SIGKILL before the deadline, and at once if the lease is known to be over.
    Kill,
    /// The command continues. Only its fencing token protects what it writes.
    Ignore,
}

/// Why the command is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The lease is over.
    Lost,
    /// The validity of the lease ends, and was not extended.
    Deadline,
    /// The command ran for longer than it may.
    MaxRun,
    /// The process that the user started is gone.
    Orphaned,
    /// The command has ended, and processes that it started have not.
    LeftBehind,
}

/// What to do with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Terminate(Reason),
    Kill(Reason),
    /// The lease is over, and the command continues.
    Report,
}

/// The rules for one command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) on_lost: OnLost,
    /// How long before the deadline the command gets SIGTERM.
    pub(super) grace: Duration,
    /// When the command has run for too long.
    pub(super) max_run_ends: Option<Moment>,
}

/// The end of a command that runs under a lease.
#[derive(Debug)]
pub(super) struct Ending {
    rules: Rules,
    /// Until when the lease is valid, as last received.
    deadline: Moment,
    begun: Option<Begun>,
    /// Whether the lease is over, or its deadline.
    is_lost: bool,
}

/// An end that is in progress.
#[derive(Clone, Copy, Debug)]
struct Begun {
    reason: Reason,
    since: Moment,
    kill_at: Moment,
    left: Left,
}

/// What is left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    TerminateAndKill,
    Kill,
    Nothing,
}

impl Ending {
    /// Begins with a valid lease.
    pub(super) fn new(rules: Rules, deadline: Moment) -> Self {
        Self {
            rules,
            deadline,
            begun: None,
            is_lost: false,
        }
    }

    /// Extends the validity of the lease.
    pub(super) fn extend(&mut self, deadline: Moment) {
        self.deadline = self.deadline.max(deadline);
    }

    /// Returns until when the lease is valid.
    pub(super) fn deadline(&self) -> Moment {
        self.deadline
    }

    /// Returns why the command is being ended.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.begun.map(|begun| begun.reason)
    }

    /// Returns when the process that watches this one kills the command: never, if a loss is ignored.
    pub(super) fn backstop(&self) -> Option<Moment> {
        let before = self.deadline.before(self.rules.grace / 10);
        (self.rules.on_lost != OnLost::Ignore).then_some(before)
    }

    /// The lease is over.
    pub(super) fn lose(&mut self, now: Moment) {
        self.is_lost = true;
        if self.rules.on_lost == OnLost::Ignore {
            return;
        }
        self.begin(Reason::Lost, now);
        if let Some(begun) = self
            .begun
            .as_mut()
            .filter(|_| self.rules.on_lost == OnLost::Kill)
        {
            begun.kill_at = now;
        }
    }

    /// The process that the user started is gone.
    pub(super) fn orphan(&mut self, now: Moment) {
        self.begin(Reason::Orphaned, now);
    }

    /// The command has ended and left processes behind.
    pub(super) fn leave_behind(&mut self, now: Moment) {
        self.begin(Reason::LeftBehind, now);
    }

    /// Returns when to ask for the next action.
    pub(super) fn next(&self) -> Option<Moment> {
        let report_at = self.ignores_deadline().then_some(self.deadline);
        report_at.into_iter().chain(self.next_of_end()).min()
    }

    fn next_of_end(&self) -> Option<Moment> {
        match self.begun {
            None => self.begins().map(|(at, _)| at),
            Some(begun) => match begun.left {
                Left::TerminateAndKill => Some(begun.since),
                Left::Kill => Some(self.kill_at(begun)),
                Left::Nothing => None,
            },
        }
    }

    /// Returns what is due. Each action is returned once.
    pub(super) fn due(&mut self, now: Moment) -> Option<Action> {
        if self.ignores_deadline() && now >= self.deadline {
            self.is_lost = true;
            return Some(Action::Report);
        }
        if self.begun.is_none() {
            let (at, reason) = self.begins()?;
            if now < at {
                return None;
            }
            self.is_lost |= reason == Reason::Deadline;
            self.begin(reason, now);
        }
        let begun = self.begun?;
        let (left, action) = match begun.left {
            Left::Nothing => return None,
            _ if now >= self.kill_at(begun) => (Left::Nothing, Action::Kill(begun.reason)),
            Left::TerminateAndKill => (Left::Kill, Action::Terminate(begun.reason)),
            Left::Kill => return None,
        };
        self.begun = Some(Begun { left, ..begun });
        Some(action)
    }

    /// Returns whether the end of the lease is still to come, and ends nothing.
    fn ignores_deadline(&self) -> bool {
        self.rules.on_lost == OnLost::Ignore && !self.is_lost
    }

    /// Returns when the end begins if nothing more arrives, and why.
    fn begins(&self) -> Option<(Moment, Reason)> {
        let of_lease = match self.rules.on_lost {
            OnLost::Term => Some(self.deadline.before(self.rules.grace)),
            OnLost::Kill => Some(self.last_moment()),
            OnLost::Ignore => None,
        };
        let of_lease = of_lease.map(|at| (at, Reason::Deadline));
        let of_run = self.rules.max_run_ends.map(|at| (at, Reason::MaxRun));
        of_lease.into_iter().chain(of_run).min_by_key(|(at, _)| *at)
    }

    fn begin(&mut self, reason: Reason, now: Moment) {
        if self.begun.is_some() {
            return;
        }
        let of_lease = matches!(reason, Reason::Lost | Reason::Deadline);
        let (left, wait) = if of_lease && self.rules.on_lost == OnLost::Kill {
            (Left::Kill, Duration::ZERO)
        } else {
            (Left::TerminateAndKill, self.rules.grace * 4 / 5)
        };
        self.begun = Some(Begun {
            reason,
            since: now,
            kill_at: now.after(wait),
            left,
        });
    }

    fn kill_at(&self, begun: Begun) -> Moment {
        match self.rules.on_lost {
            OnLost::Ignore => begun.kill_at,
            OnLost::Term | OnLost::Kill => begun.kill_at.min(self.last_moment()),
        }
    }

    /// Returns when SIGKILL is sent at the latest, so that the command is gone at the deadline.
    fn last_moment(&self) -> Moment {
        self.deadline.before(self.rules.grace / 5)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lost => "lease lost",
            Self::Deadline => "lease not renewed in time",
            Self::MaxRun => "--max-run is over",
            Self::Orphaned => "exec was killed",
            Self::LeftBehind => "left behind by the command",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    fn rules(on_lost: OnLost) -> Rules {
        Rules {
            on_lost,
            grace: Duration::from_secs(5),
            max_run_ends: None,
        }
    }

    /// Returns what is done, if it is asked for only when `next` says so, and at the loss.
    fn history(mut ending: Ending, lost_at: Option<Moment>) -> Vec<(Moment, Action)> {
        let mut done = Vec::new();
        let mut lost_at = lost_at;
        let mut now = at(0);
        loop {
            if lost_at.is_some_and(|at| now >= at) {
                ending.lose(now);
                lost_at = None;
            }
            while let Some(action) = ending.due(now) {
                done.push((now, action));
            }
            match ending.next().into_iter().chain(lost_at).min() {
                Some(next) => now = now.max(next),
                None => return done,
            }
        }
    }

    #[test]
    fn command_ends_before_the_deadline_of_its_lease() {
        use Action::{Kill, Report, Terminate};
        use Reason::{Deadline, Lost};
        let by_deadline = [(15_000, Terminate(Deadline)), (19_000, Kill(Deadline))];
        let by_loss = [(2_000, Terminate(Lost)), (6_000, Kill(Lost))];
        let near_the_deadline = [(14_000, Terminate(Lost)), (18_000, Kill(Lost))];
        // What a lost lease means, when the loss is reported, and what follows.
        let table: [(_, _, &[_]); 8] = [
            (OnLost::Term, None, &by_deadline),
            (OnLost::Term, Some(2_000), &by_loss),
            (OnLost::Term, Some(14_000), &near_the_deadline),
            (OnLost::Term, Some(18_500), &by_deadline),
            (OnLost::Kill, None, &[(19_000, Kill(Deadline))]),
            (OnLost::Kill, Some(2_000), &[(2_000, Kill(Lost))]),
            (OnLost::Ignore, None, &[(20_000, Report)]),
            (OnLost::Ignore, Some(2_000), &[]),
        ];
        for (on_lost, lost_at, expected) in table {
            let done = history(Ending::new(rules(on_lost), at(20_000)), lost_at.map(at));
            let expected: Vec<_> = expected.iter().map(|(ms, act)| (at(*ms), *act)).collect();
            assert_eq!(done, expected, "{on_lost:?}, lost at {lost_at:?}");
        }
    }

    #[test]
    fn machine_that_slept_kills_at_once() {
        let mut ending = Ending::new(rules(OnLost::Term), at(20_000));
        assert_eq!(ending.due(at(60_000)), Some(Action::Kill(Reason::Deadline)));
        assert_eq!(ending.due(at(60_000)), None);
    }

    #[test]
    fn renewals_move_the_end_until_it_has_begun() {
        let mut ending = Ending::new(rules(OnLost::Term), at(20_000));
        ending.extend(at(30_000));
        // An older answer that arrives late shortens nothing.
        ending.extend(at(25_000));
        assert_eq!(ending.due(at(24_999)), None);
        let terminate = Action::Terminate(Reason::Deadline);
        assert_eq!(ending.due(at(25_000)), Some(terminate));
        ending.extend(at(60_000));
        assert_eq!(ending.next(), Some(at(29_000)));
        assert_eq!(ending.due(at(29_000)), Some(Action::Kill(Reason::Deadline)));
    }

    #[test]
    fn long_run_ends_whatever_a_loss_means() {
        for on_lost in [OnLost::Term, OnLost::Kill, OnLost::Ignore] {
            let rules = Rules {
                max_run_ends: Some(at(1_000)),
                ..rules(on_lost)
            };
            let mut ending = Ending::new(rules, at(20_000));
            ending.is_lost = on_lost == OnLost::Ignore;
            let done = history(ending, None);
            let expected = [
                (at(1_000), Action::Terminate(Reason::MaxRun)),
                (at(5_000), Action::Kill(Reason::MaxRun)),
            ];
            assert_eq!(done, expected, "{on_lost:?}");
        }
    }

    #[test]
    fn loss_is_not_delayed_by_an_end_in_progress() {
        let rules = Rules {
            max_run_ends: Some(at(1_000)),
            ..rules(OnLost::Kill)
        };
        let done = history(Ending::new(rules, at(20_000)), Some(at(2_000)));
        let expected = [
            (at(1_000), Action::Terminate(Reason::MaxRun)),
            (at(2_000), Action::Kill(Reason::MaxRun)),
        ];
        assert_eq!(done, expected);
    }

    #[test]
    fn second_watcher_kills_later_than_this_one() {
        let mut ending = Ending::new(rules(OnLost::Term), at(20_000));
        assert_eq!(ending.backstop(), Some(at(19_500)));
        ending.extend(at(40_000));
        assert_eq!(ending.backstop(), Some(at(39_500)));
        assert_eq!(Ending::new(rules(OnLost::Ignore), at(1)).backstop(), None);
    }
}

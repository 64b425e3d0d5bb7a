//! What a fence knows of one resource, and whether a request may be forwarded.
//!
//! A pure state machine. It knows nothing of requests, connections and disks.

use std::collections::BTreeMap;

use crate::protocol::time::Moment;
use crate::protocol::token::Token;

/// What to do with a request that carries a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Forward it: its token is recorded, and nothing older is under way.
    Forward,
    /// Have the token verified and recorded first.
    Raise,
    /// Wait: requests with older tokens may still change something.
    Wait {
        /// When the last of them counts as ended; `None` while one of them is running.
        until: Option<Moment>,
    },
    /// Refuse it.
    Stale {
        /// The largest token that was recorded.
        latest: Token,
    },
}

/// How a forwarded request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The service answered completely, or never received the request.
    Known,
    /// The connection was closed before that: the service may work on it until then.
    Unknown {
        /// When it counts as ended.
        settled_at: Moment,
    },
}

/// One resource.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    latest: Token,
    under_way: BTreeMap<Token, UnderWay>,
}

/// The requests with one token that may still change something.
#[derive(Debug, Default)]
struct UnderWay {
    running: usize,
    settled_at: Option<Moment>,
}

impl Guarded {
    /// Creates a resource whose largest token was recorded earlier.
    pub(super) fn recorded(latest: Token) -> Self {
        Self {
            latest,
            ..Self::default()
        }
    }

    /// Returns what to do with a request.
    pub(super) fn admit(&self, token: Token, now: Moment) -> Admission {
        if token < self.latest {
            return Admission::Stale {
                latest: self.latest,
            };
        }
        if token > self.latest {
            return Admission::Raise;
        }
        let mut until = None;
        for (_, older) in self.under_way.range(..token) {
            if older.running > 0 {
                return Admission::Wait { until: None };
            }
            until = until.max(older.settled_at);
        }
        match until {
            Some(until) if until > now => Admission::Wait { until: Some(until) },
            _ => Admission::Forward,
        }
    }

    /// Records a token: smaller ones are stale from now on. Returns whether it is the largest.
    pub(super) fn raise(&mut self, token: Token) -> bool {
        let is_largest = token > self.latest;
        self.latest = self.latest.max(token);
        is_largest
    }

    /// Returns whether requests with smaller tokens are running.
    pub(super) fn runs_older(&self) -> bool {
        let mut older = self.under_way.range(..self.latest);
        older.any(|(_, under_way)| under_way.running > 0)
    }

    /// Records that a request was forwarded.
    pub(super) fn begin(&mut self, token: Token) {
        self.under_way.entry(token).or_default().running += 1;
    }

    /// Records that a forwarded request ended.
    pub(super) fn end(&mut self, token: Token, end: End, now: Moment) {
        if let Some(under_way) = self.under_way.get_mut(&token) {
            under_way.running = under_way.running.saturating_sub(1);
            if let End::Unknown { settled_at } = end {
                under_way.settled_at = under_way.settled_at.max(Some(settled_at));
            }
        }
        self.under_way.retain(|_, under_way| {
            under_way.running > 0 || under_way.settled_at.is_some_and(|at| at > now)
        });
    }

    /// Returns whether no request is running or unsettled.
    pub(super) fn is_settled(&self, now: Moment) -> bool {
        let may_change = |under_way: &UnderWay| {
            under_way.running > 0 || under_way.settled_at.is_some_and(|at| at > now)
        };
        !self.under_way.values().any(may_change)
    }

    /// Returns whether a request with this token is running.
    pub(super) fn runs(&self, token: Token) -> bool {
        let under_way = self.under_way.get(&token);
        under_way.is_some_and(|under_way| under_way.running > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OLD: Token = Token::from_raw(5);
    const NEW: Token = Token::from_raw(7);

    fn at(seconds: u64) -> Moment {
        Moment::since_boot(Duration::from_secs(seconds))
    }

    fn unknown(settled: u64) -> End {
        End::Unknown {
            settled_at: at(settled),
        }
    }

    #[test]
    fn first_and_larger_tokens_are_raised_first() {
        let mut guarded = Guarded::default();
        assert_eq!(guarded.admit(OLD, at(0)), Admission::Raise);
        guarded.raise(OLD);
        assert_eq!(guarded.admit(OLD, at(0)), Admission::Forward);
        assert_eq!(guarded.admit(NEW, at(0)), Admission::Raise);
    }

    #[test]
    fn smaller_token_is_stale_once_a_larger_one_is_recorded() {
        let mut guarded = Guarded::recorded(OLD);
        guarded.raise(NEW);
        // A record of an earlier token that is finished late changes nothing.
        guarded.raise(OLD);
        let stale = Admission::Stale { latest: NEW };
        assert_eq!(guarded.admit(OLD, at(0)), stale);
    }

    #[test]
    fn larger_token_waits_for_all_older_requests() {
        let mut guarded = Guarded::recorded(OLD);
        guarded.begin(OLD);
        guarded.begin(OLD);
        guarded.raise(NEW);
        let waits = Admission::Wait { until: None };
        assert_eq!(guarded.admit(NEW, at(0)), waits);
        guarded.end(OLD, End::Known, at(1));
        assert_eq!(guarded.admit(NEW, at(1)), waits);
        guarded.end(OLD, End::Known, at(1));
        assert_eq!(guarded.admit(NEW, at(1)), Admission::Forward);
    }

    #[test]
    fn request_of_unknown_outcome_counts_until_it_is_settled() {
        let mut guarded = Guarded::recorded(OLD);
        guarded.begin(OLD);
        guarded.begin(OLD);
        guarded.end(OLD, unknown(10), at(0));
        guarded.end(OLD, End::Known, at(1));
        guarded.raise(NEW);
        let until = Some(at(10));
        assert_eq!(guarded.admit(NEW, at(2)), Admission::Wait { until });
        assert_eq!(guarded.admit(NEW, at(10)), Admission::Forward);
    }

    #[test]
    fn requests_of_one_token_do_not_wait_for_each_other() {
        let mut guarded = Guarded::recorded(OLD);
        guarded.begin(OLD);
        guarded.begin(OLD);
        guarded.end(OLD, unknown(10), at(0));
        assert_eq!(guarded.admit(OLD, at(0)), Admission::Forward);
    }

    #[test]
    fn settled_requests_are_forgotten() {
        let mut guarded = Guarded::recorded(OLD);
        guarded.begin(OLD);
        guarded.end(OLD, unknown(10), at(0));
        guarded.begin(OLD);
        guarded.end(OLD, End::Known, at(10));
        assert!(guarded.under_way.is_empty());
    }
}

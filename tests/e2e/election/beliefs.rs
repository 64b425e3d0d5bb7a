//! The beliefs of candidates, on one clock, and whether they could all be true.
//!
//! An app that receives `leader: true` acts on it from the arrival of the answer until the validity is over, counted
//! from when it sent the request. A check that cannot fail shows nothing, so it is tested with histories that are
//! wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::protocol::time::Moment;

/// Which process of which candidate: one that was killed and started again is another.
pub(super) type Candidate = (usize, usize);

/// An answer `leader: true`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Belief {
    pub(super) candidate: Candidate,
    pub(super) sent: Moment,
    pub(super) received: Moment,
    pub(super) valid_for: Duration,
    pub(super) token: u64,
}

impl Belief {
    pub(super) fn until(&self) -> Moment {
        self.sent.after(self.valid_for)
    }

    /// Its app gave the lead back then.
    pub(super) fn end_at(&mut self, at: Moment) {
        self.valid_for = self.valid_for.min(at.since(self.sent));
    }

    /// An answer that came too late to be believed at all.
    fn is_empty(&self) -> bool {
        self.until() <= self.received
    }
}

/// A term: all that one candidate believed under one token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) candidate: Candidate,
    pub(super) token: u64,
    pub(super) from: Moment,
    pub(super) until: Moment,
}

/// The terms in the order of their beginnings.
///
/// # Errors
/// Two candidates at one time, one token of two candidates, or a token that is not larger.
pub(super) fn terms(beliefs: &[Belief]) -> Result<Vec<Term>, String> {
    let mut by_token: BTreeMap<u64, Term> = BTreeMap::new();
    for belief in beliefs.iter().filter(|belief| !belief.is_empty()) {
        let Belief {
            candidate, token, ..
        } = *belief;
        let term = by_token.entry(token).or_insert(Term {
            candidate,
            token,
            from: belief.received,
            until: belief.until(),
        });
        if term.candidate != candidate {
            return Err(format!("{belief:?} has the token of {term:?}"));
        }
        term.from = term.from.min(belief.received);
        term.until = term.until.max(belief.until());
    }
    let terms: Vec<Term> = by_token.into_values().collect();
    for (place, after) in terms.iter().enumerate() {
        for before in &terms[..place] {
            // A candidate whose term ended early, and that leads again, has both.
            let limit = if before.candidate == after.candidate {
                before.from
            } else {
                before.until
            };
            if after.from < limit {
                let by = limit.since(after.from);
                return Err(format!("{after:?} begins {by:?} before {before:?} is over"));
            }
        }
    }
    Ok(terms)
}

/// How often the leader changed.
pub(super) fn changes(terms: &[Term]) -> usize {
    let pairs = terms.windows(2);
    pairs
        .filter(|pair| pair[0].candidate != pair[1].candidate)
        .count()
}

/// A lead that its app gave back, and when that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenBack {
    pub(super) token: u64,
    pub(super) answered: Moment,
}

/// No request sent after the end of a lead was answered with that lead.
///
/// # Errors
/// The candidate that was.
pub(super) fn check_released(beliefs: &[Belief], given_back: &[GivenBack]) -> Result<(), String> {
    for given_back in given_back {
        let mut told = beliefs
            .iter()
            .filter(|belief| belief.token == given_back.token);
        if let Some(belief) = told.find(|belief| belief.sent >= given_back.answered) {
            return Err(format!("{belief:?} was asked for after {given_back:?}"));
        }
    }
    Ok(())
}

/// When no candidate believed to lead, between the first belief and the last: also in the middle of a term.
pub(super) fn gaps(beliefs: &[Belief]) -> Vec<(Moment, Moment)> {
    let mut times: Vec<_> = beliefs
        .iter()
        .filter(|belief| !belief.is_empty())
        .map(|belief| (belief.received, belief.until()))
        .collect();
    times.sort_unstable();
    let mut gaps = Vec::new();
    let mut led_until = times.first().map_or_else(Moment::default, |first| first.0);
    for (from, until) in times {
        if from > led_until {
            gaps.push((led_until, from));
        }
        led_until = led_until.max(until);
    }
    gaps
}

/// The longest time in which no candidate believed to lead.
pub(super) fn longest_gap(beliefs: &[Belief]) -> Duration {
    let gaps = gaps(beliefs);
    let lengths = gaps.iter().map(|(from, until)| until.since(*from));
    lengths.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    fn belief(candidate: usize, token: u64, sent: u64, received: u64, valid: u64) -> Belief {
        Belief {
            candidate: (candidate, 0),
            sent: at(sent),
            received: at(received),
            valid_for: Duration::from_millis(valid),
            token,
        }
    }

    #[test]
    fn consecutive_terms_are_counted_with_their_gaps() {
        let beliefs = [
            belief(0, 1000, 0, 10, 100),
            belief(0, 1000, 50, 60, 100),
            belief(1, 2000, 140, 150, 100),
            belief(1, 3000, 300, 310, 100),
            belief(0, 4000, 430, 440, 100),
        ];
        let terms = terms(&beliefs).unwrap();
        assert_eq!(terms.len(), 4);
        assert_eq!((terms[0].from, terms[0].until), (at(10), at(150)));
        assert_eq!(changes(&terms), 2);
        assert_eq!(longest_gap(&beliefs), Duration::from_millis(70));
    }

    #[test]
    fn a_hole_in_a_term_is_a_gap_too() {
        let beliefs = [
            belief(0, 1000, 250, 260, 100),
            belief(0, 1000, 0, 10, 100),
            belief(0, 1000, 50, 60, 10),
        ];
        assert_eq!(terms(&beliefs).unwrap().len(), 1);
        assert_eq!(gaps(&beliefs), [(at(100), at(260))]);
    }

    #[test]
    fn lead_answered_after_its_release_is_found() {
        let given_back = |at_ms| {
            [GivenBack {
                token: 1000,
                answered: at(at_ms),
            }]
        };
        let beliefs = [belief(0, 1000, 50, 60, 0), belief(1, 2000, 70, 80, 10)];
        assert!(check_released(&beliefs, &given_back(50)).is_err());
        assert_eq!(check_released(&beliefs, &given_back(51)), Ok(()));
    }

    #[test]
    fn overlapping_beliefs_are_found() {
        let beliefs = [
            belief(0, 1000, 0, 10, 100),
            belief(0, 1000, 20, 30, 100),
            belief(1, 2000, 118, 119, 100),
        ];
        let wrong = terms(&beliefs).unwrap_err();
        assert!(wrong.contains("1ms before"), "{wrong}");
    }

    /// Also when the later one's belief lies wholly inside the earlier one's.
    #[test]
    fn nested_beliefs_are_found() {
        let beliefs = [belief(0, 1000, 0, 10, 1_000), belief(1, 2000, 100, 110, 20)];
        assert!(terms(&beliefs).is_err());
        // And when the larger token was believed in first.
        let beliefs = [belief(0, 2000, 0, 10, 50), belief(1, 1000, 100, 110, 20)];
        assert!(terms(&beliefs).is_err());
    }

    #[test]
    fn one_token_of_two_candidates_is_found() {
        let beliefs = [belief(0, 1000, 0, 10, 50), belief(1, 1000, 100, 110, 50)];
        assert!(terms(&beliefs).is_err());
        let mut restarted = belief(0, 1000, 100, 110, 50);
        restarted.candidate.1 = 1;
        assert!(terms(&[beliefs[0], restarted]).is_err());
    }

    #[test]
    fn late_answer_is_not_a_belief() {
        let beliefs = [
            belief(0, 1000, 0, 10, 100),
            belief(1, 2000, 110, 120, 100),
            belief(0, 1000, 90, 195, 100),
        ];
        assert_eq!(terms(&beliefs).unwrap().len(), 2);
    }
}

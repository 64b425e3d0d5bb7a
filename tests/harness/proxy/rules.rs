//! The rules that select requests for a fault, and the faults.

use std::time::Duration;

use super::classify::Class;

/// A fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never reaches the API server; the connection breaks.
    RequestLost,
    /// It reaches the API server this much later. A client that waits that long gets the answer.
    RequestLate(Duration),
    /// It is held back until the test lets it pass.
    RequestHeld,
    /// The API server executes it, and the connection breaks before the answer.
    AnswerLost,
    /// The API server applies it, and the answer is delayed by this much.
    AnswerLate(Duration),
    /// The API server applies it, and the answer is held back until the test lets it pass.
    AnswerHeld,
    /// A gateway answers 504, and the API server never received the request.
    TimeoutBefore,
    /// A gateway answers 504, and the API server executed the request.
    TimeoutAfter,
}

/// Identifies a rule, to remove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleId(u64);

struct Rule {
    id: RuleId,
    class: Class,
    left: usize,
    fault: Fault,
}

/// The active rules, the oldest first.
#[derive(Default)]
pub(super) struct Rules {
    in_force: Vec<Rule>,
    made: u64,
    noise: Option<Noise>,
}

/// A random fault of a random request, at this percentage.
struct Noise {
    random: fastrand::Rng,
    percent: u32,
}

impl Noise {
    fn next_fault(&mut self) -> Option<Fault> {
        let struck = self.random.u32(0..100) < self.percent;
        let late = Duration::from_millis(self.random.u64(1..400));
        let fault = self.random.choice([
            Fault::RequestLost,
            Fault::RequestLate(late),
            Fault::AnswerLost,
            Fault::AnswerLate(late),
            Fault::TimeoutBefore,
            Fault::TimeoutAfter,
        ]);
        fault.filter(|_| struck)
    }
}

impl Rules {
    pub(super) fn add(&mut self, class: Class, count: usize, fault: Fault) -> RuleId {
        self.made += 1;
        let id = RuleId(self.made);
        self.in_force.push(Rule {
            id,
            class,
            left: count,
            fault,
        });
        id
    }

    pub(super) fn lift(&mut self, id: RuleId) {
        self.in_force.retain(|rule| rule.id != id);
    }

    pub(super) fn lift_all(&mut self) {
        self.in_force.clear();
    }

    pub(super) fn make_noise(&mut self, seed: u64, percent: u32) {
        let random = fastrand::Rng::with_seed(seed);
        self.noise = Some(Noise { random, percent });
    }

    /// Returns the fault of the next request of a class, if any.
    pub(super) fn next_fault(&mut self, class: Class) -> Option<Fault> {
        let mut rules = self.in_force.iter_mut();
        if let Some(rule) = rules.find(|rule| rule.class == class && rule.left > 0) {
            rule.left -= 1;
            return Some(rule.fault);
        }
        self.noise.as_mut()?.next_fault()
    }
}

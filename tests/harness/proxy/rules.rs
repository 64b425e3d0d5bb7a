//! Which requests go wrong, and how.

use std::time::Duration;

use super::classify::Class;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never reaches the API server; the connection breaks.
    RequestLost,
    /// It reaches the API server so much later. Who waits that long gets the answer.
    RequestLate(Duration),
    /// The API server does it, and the connection breaks before the answer.
    AnswerLost,
    /// The API server does it, and the answer takes so long.
    AnswerLate(Duration),
    /// A gateway answers 504; the API server never saw it.
    TimeoutBefore,
    /// A gateway answers 504; the API server did it.
    TimeoutAfter,
}

/// Names a rule, to lift it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleId(u64);

struct Rule {
    id: RuleId,
    class: Class,
    left: usize,
    fault: Fault,
}

/// The rules in force, the oldest first.
#[derive(Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    made: u64,
}

impl Rules {
    pub(super) fn add(&mut self, class: Class, count: usize, fault: Fault) -> RuleId {
        self.made += 1;
        let id = RuleId(self.made);
        self.rules.push(Rule {
            id,
            class,
            left: count,
            fault,
        });
        id
    }

    pub(super) fn lift(&mut self, id: RuleId) {
        self.rules.retain(|rule| rule.id != id);
    }

    /// What befalls the next request of a class.
    pub(super) fn strike(&mut self, class: Class) -> Option<Fault> {
        let mut rules = self.rules.iter_mut();
        let rule = rules.find(|rule| rule.class == class && rule.left > 0)?;
        rule.left -= 1;
        Some(rule.fault)
    }
}

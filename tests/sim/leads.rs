//! The stored leaders of the operators' election, and the replicas that act as leader. No replica
//! acts after a later leader did.

use std::time::Duration;

use leasehold::protocol::ids::GrantId;
use leasehold::protocol::lock::Grant;

use crate::invariants::Verdict;

/// The terms so far, the oldest first.
#[derive(Default)]
pub(crate) struct Leads {
    terms: Vec<(GrantId, String)>,
    /// The latest term in which a replica acted.
    acted: usize,
    /// Until then a former leader may not have noticed a restore.
    excused_until: Duration,
}

impl Leads {
    /// Records a stored grant of the election.
    pub(crate) fn stored(&mut self, grant: &Grant) {
        let last = self.terms.last();
        if last.is_none_or(|(id, _)| *id != grant.id) {
            let who = grant.holder.pod.name.to_string();
            self.terms.push((grant.id.clone(), who));
        }
    }

    /// A replica checks whether it leads, and may act from then on.
    pub(crate) fn acts(&mut self, who: &str, now: Duration) -> Verdict {
        if now < self.excused_until {
            return Ok(());
        }
        let Some(term) = self.terms.iter().rposition(|(_, of)| of == who) else {
            return Ok(());
        };
        let (_, latest) = &self.terms[self.acted];
        if term < self.acted {
            return Err(format!("{who} acts as the leader after {latest} did"));
        }
        self.acted = term;
        Ok(())
    }

    /// A backup replaced everything. A lead in it may continue. So may one that is missing from it,
    /// until its agent notices the restore.
    pub(crate) fn restored(&mut self, excused_until: Duration) {
        *self = Self {
            excused_until,
            ..Self::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn former_leader_does_not_act_after_its_successor() {
        let now = Duration::from_secs(1);
        let mut leads = Leads {
            terms: vec![("a".into(), "one".into()), ("b".into(), "two".into())],
            ..Leads::default()
        };
        assert_eq!(
            leads.acts("one", now),
            Ok(()),
            "the next one has not acted yet"
        );
        assert_eq!(leads.acts("two", now), Ok(()));
        assert!(leads.acts("one", now).is_err());
        leads.terms.push(("c".into(), "one".into()));
        assert_eq!(leads.acts("one", now), Ok(()), "it was elected again");
    }
}

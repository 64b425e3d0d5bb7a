//! The negative controls: each bug must make the checker find a counterexample. A check that
//! cannot fail shows nothing.

/// What a broken agent (or app) does instead of the right thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A renewal counts from its answer and not from before it was sent.
    ValidityFromAnswer,
    /// The app counts its validity from the answer and not from when it asked.
    AppCountsFromAnswer,
    /// The token comes from the lock's own revision; neither the highest revision seen nor that
    /// of the granting write counts.
    TokenFromOwnRevisionAlone,
    /// The highest revision seen counts, but a write far ahead of it raises nothing.
    BumpNotNoticed,
    /// A session that was silent for long enough counts as dead without a revocation.
    TakeOverBeforeRevoke,
    /// A renewal replaces whatever it finds.
    RenewalWithoutPrecondition,
    /// A session that is missing counts as dead at once.
    MissingIsDeadAtOnce,
    /// After a release was sent, the grant serves another lease.
    GrantReusedAfterRelease,
    /// A process that resumes takes any renewal that it reads for its own.
    ResumeTrustsARead,
    /// A process that resumes releases at once what its state file does not have.
    OrphansReleasedAtOnce,
}

#[cfg(test)]
mod tests {
    use super::Bug;
    use crate::checks::{EXCLUSION, FENCING, SERVED, TOKENS, violates};
    use crate::node::Return;
    use crate::rules::{Budget, Rules};

    fn with(bug: Bug, budget: Budget) -> Rules {
        Rules {
            bug: Some(bug),
            budget,
            ..Rules::calm()
        }
    }

    fn one_late() -> Budget {
        Budget {
            late: 1,
            ..Budget::default()
        }
    }

    fn one_restore(bug: Bug) -> Rules {
        let restores = Budget {
            restores: 1,
            ..Budget::default()
        };
        Rules {
            fenced_writes: true,
            ..with(bug, restores)
        }
    }

    #[test]
    fn validity_counted_from_the_answer_is_detected() {
        let rules = with(Bug::ValidityFromAnswer, one_late());
        violates("validity from the answer", EXCLUSION, rules);
    }

    #[test]
    fn app_that_counts_from_the_answer_is_detected() {
        let rules = with(Bug::AppCountsFromAnswer, Budget::default());
        violates("app counts from the answer", EXCLUSION, rules);
    }

    #[test]
    fn token_from_the_locks_own_revision_is_detected() {
        for property in [TOKENS, FENCING] {
            let rules = one_restore(Bug::TokenFromOwnRevisionAlone);
            violates("own revision alone", property, rules);
        }
    }

    #[test]
    fn unnoticed_bump_of_a_restore_is_detected() {
        let rules = one_restore(Bug::BumpNotNoticed);
        violates("bump not noticed", TOKENS, rules);
    }

    #[test]
    fn take_over_before_the_revocation_is_detected() {
        let rules = with(Bug::TakeOverBeforeRevoke, one_late());
        violates("take-over before revoke", EXCLUSION, rules);
    }

    #[test]
    fn renewal_without_precondition_is_detected() {
        let rules = with(Bug::RenewalWithoutPrecondition, one_late());
        violates("renewal without precondition", EXCLUSION, rules);
    }

    #[test]
    fn missing_session_expired_at_once_is_detected() {
        let one_delete = Budget {
            session_deletes: 1,
            ..Budget::default()
        };
        let rules = with(Bug::MissingIsDeadAtOnce, one_delete);
        violates("missing is dead at once", EXCLUSION, rules);
    }

    #[test]
    fn grant_reused_after_its_release_is_detected() {
        let rules = Rules {
            tries_each: 1,
            renewals_each: 0,
            ..with(Bug::GrantReusedAfterRelease, one_late())
        };
        violates("grant reused after its release", EXCLUSION, rules);
    }

    #[test]
    fn resumption_that_trusts_any_renewal_is_detected() {
        let crash = Budget {
            crashes: 1,
            ..one_late()
        };
        let rules = Rules {
            renewals_each: 2,
            returns: &[Return::WithState],
            waiters_outlast: true,
            ..with(Bug::ResumeTrustsARead, crash)
        };
        violates("resumption trusts a read", EXCLUSION, rules);
    }

    #[test]
    fn orphans_released_at_once_are_detected() {
        let crash = Budget {
            crashes: 1,
            ..Budget::default()
        };
        let rules = Rules {
            returns: &[Return::WithOlderState],
            ..with(Bug::OrphansReleasedAtOnce, crash)
        };
        violates("orphans released at once", EXCLUSION, rules);
    }

    #[test]
    fn cluster_without_take_overs_is_detected() {
        let rules = Rules {
            peers_take_over: false,
            waiters_outlast: true,
            budget: Budget {
                crashes: 1,
                ..Budget::default()
            },
            ..Rules::calm()
        };
        violates("nobody takes over", SERVED, rules);
    }
}

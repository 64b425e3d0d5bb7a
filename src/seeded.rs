//! Bugs on purpose: each takes one line of defence away, and a test has to notice (`make bugs`). A test
//! that cannot fail shows nothing.
//!
//! They exist with the feature `seeded-bugs` only, which no build without debug assertions can have. One of
//! them is chosen for the whole process by the environment. Without the feature [`has`] is a constant
//! no, and no bug has a name.

#[cfg(all(feature = "seeded-bugs", not(debug_assertions)))]
compile_error!("the feature `seeded-bugs` is for tests; what is shipped has no bugs on purpose");

/// A line of defence that is missing. Where the model (`tests/model/bugs.rs`) has the same, it is called
/// the same.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "seeded-bugs", derive(Debug, PartialOrd, Ord))]
pub enum Bug {
    /// A renewal counts from its answer and not from before it was sent.
    ValidityFromAnswer,
    /// A challenger waits for 0.5 of the TTL and not for 1.05.
    ImpatientChallenger,
    /// The operator does.
    ImpatientOperator,
    /// The highest revision seen does not count in a token.
    HighestSeenForgotten,
    /// A revision far ahead of those seen ends no session and raises no token.
    BumpNotNoticed,
    /// A session that was silent for long enough counts as dead without a revocation.
    TakeOverBeforeRevoke,
    /// A session that is missing counts as dead at once.
    MissingIsDeadAtOnce,
    /// After its release was sent, a grant serves another lease.
    GrantReusedAfterRelease,
    /// An acquire whose write got no clear answer is over, and nobody looks what became of it.
    AmbiguousCountsAsFailed,
    /// A process that resumes takes the session that it reads for its own, and writes nothing.
    ResumeTrustsARead,
    /// A process that resumes releases at once what is not in its state file.
    OrphansReleasedAtOnce,
    /// A lease is answered and not in the state file.
    LeaseNotOnFile,
    /// An agent that stops releases before what its apps were told has run out.
    StopBreaksItsWord,
    /// A lead is handed on before what its readers were told has run out.
    ReadersNotWaitedFor,
    /// The store does not compare versions.
    NoPrecondition,
    /// What the watch tells of a lost lock is not heard.
    WatchGoneIgnored,
    /// What a broken watch did not tell is not asked for.
    GapNotListed,
    /// A release lets go of whatever grant the lock names.
    ReleaseOfAnothers,
    /// Who waits hears of its turn by the watch alone.
    WaiterNeverReads,
    /// The operator revokes whatever version it finds, if not the one that was silent.
    OperatorRevokesAnyVersion,
    /// A pod that somebody else than its kubelet gave up counts as ended.
    PresumedPodHasEnded,
    /// The operator hands locks to waiters that are dead.
    OperatorHandsToTheDead,
    /// The operator deletes idle locks whose tokens the next lock would repeat.
    TokensForgotten,
}

/// Whether this process has the bug.
#[cfg(not(feature = "seeded-bugs"))]
pub(crate) const fn has(_: Bug) -> bool {
    false
}

#[cfg(feature = "seeded-bugs")]
pub(crate) use chosen::has;

#[cfg(feature = "seeded-bugs")]
mod chosen {
    //! Which bug the environment asks for.

    use std::sync::LazyLock;

    use super::Bug;

    static CHOSEN: LazyLock<Option<Bug>> = LazyLock::new(|| {
        let name = std::env::var(Bug::VARIABLE).ok()?;
        let named = Bug::ALL.into_iter().find(|bug| bug.name() == name);
        // One that is misspelt would pass for one that nobody notices.
        Some(named.expect("LEASEHOLD_SEEDED_BUG must name a bug"))
    });

    pub(crate) fn has(bug: Bug) -> bool {
        *CHOSEN == Some(bug)
    }

    impl Bug {
        /// What names the bug that a process has.
        pub const VARIABLE: &str = "LEASEHOLD_SEEDED_BUG";

        /// All of them.
        pub const ALL: [Self; 23] = [
            Self::ValidityFromAnswer,
            Self::ImpatientChallenger,
            Self::ImpatientOperator,
            Self::HighestSeenForgotten,
            Self::BumpNotNoticed,
            Self::TakeOverBeforeRevoke,
            Self::MissingIsDeadAtOnce,
            Self::GrantReusedAfterRelease,
            Self::AmbiguousCountsAsFailed,
            Self::ResumeTrustsARead,
            Self::OrphansReleasedAtOnce,
            Self::LeaseNotOnFile,
            Self::StopBreaksItsWord,
            Self::ReadersNotWaitedFor,
            Self::NoPrecondition,
            Self::WatchGoneIgnored,
            Self::GapNotListed,
            Self::ReleaseOfAnothers,
            Self::WaiterNeverReads,
            Self::OperatorRevokesAnyVersion,
            Self::PresumedPodHasEnded,
            Self::OperatorHandsToTheDead,
            Self::TokensForgotten,
        ];

        /// Its name, as the environment and tests/seeded-bugs.md have it: `validity-from-answer`.
        #[must_use]
        pub fn name(self) -> String {
            let mut name = String::new();
            for letter in format!("{self:?}").chars() {
                if letter.is_uppercase() && !name.is_empty() {
                    name.push('-');
                }
                name.extend(letter.to_lowercase());
            }
            name
        }
    }
}

#[cfg(test)]
#[cfg(feature = "seeded-bugs")]
#[path = "../tests/seeded.rs"]
mod bugs;

#[cfg(test)]
#[cfg(feature = "seeded-bugs")]
mod tests {
    use std::collections::BTreeSet;

    use super::{Bug, bugs};

    #[test]
    fn every_seeded_bug_of_this_rung_is_noticed() {
        bugs::all_are_noticed_by("unit");
    }

    #[test]
    fn the_table_has_every_bug_and_no_other() {
        let all: BTreeSet<String> = Bug::ALL.into_iter().map(Bug::name).collect();
        let named: BTreeSet<String> = bugs::table().into_iter().map(|row| row.bug).collect();
        assert_eq!(named, all);
        assert_eq!(all.len(), Bug::ALL.len());
        assert_eq!(Bug::ALL[0].name(), "validity-from-answer");
    }
}

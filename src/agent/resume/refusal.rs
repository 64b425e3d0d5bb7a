//! Why a restarted agent does not go on, and what people can do about it.

use std::fmt;
use std::path::Path;

use crate::protocol::lease::Loss;

/// Why nothing is taken up again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The file is not as it was written.
    Damaged(String),
    /// A record makes no sense.
    Unreadable(String),
    /// The machine was started again since; its clock counts from there.
    OtherBoot,
    /// Another pod's.
    OtherPod(String),
    /// Of locks in another namespace.
    OtherNamespace(String),
    /// Sessions have another TTL now.
    OtherTtl(u64),
    /// Its deadline lies further ahead than any session lives.
    FromTheFuture,
    /// What the apps were told has run out.
    DeadlinePassed,
    /// The session was revoked, or is gone.
    Revoked,
    /// The session was written since the journal was.
    Moved,
    /// The store came out of a backup.
    StoreRestored,
    /// The store gave no answer that helps until the deadline. The last one, in words.
    NoAnswer(String),
}

impl Refusal {
    /// The reason that apps are given for their leases.
    pub(super) const fn loss(&self) -> Loss {
        match self {
            Self::DeadlinePassed | Self::NoAnswer(_) => Loss::SessionExpired,
            Self::Revoked => Loss::SessionRevoked,
            Self::StoreRestored => Loss::StoreRestored,
            _ => Loss::AgentRestarted,
        }
    }

    /// Whether there is something wrong with the file, so that people may want to look at it.
    pub(super) const fn is_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Damaged(_)
                | Self::Unreadable(_)
                | Self::OtherBoot
                | Self::OtherPod(_)
                | Self::OtherNamespace(_)
                | Self::FromTheFuture
        )
    }

    /// Whether the file is this very pod's, of this run of the machine, and well: its leases were
    /// given by the process before, and their apps are told that they are over.
    pub(super) const fn is_of_own_file(&self) -> bool {
        matches!(self, Self::OtherTtl(_) | Self::FromTheFuture)
    }

    /// What people can do about it.
    const fn advice(&self) -> &'static str {
        match self {
            Self::Damaged(_) | Self::Unreadable(_) => {
                "make sure that only this version's sidecar writes to the state directory; the old \
                 locks are free after the TTL"
            }
            Self::OtherBoot => {
                "nothing: the old session ended with its apps; an emptyDir with medium: Memory \
                 does not outlive a reboot"
            }
            Self::OtherPod(_) | Self::OtherNamespace(_) => {
                "give each pod a state directory of its own (an emptyDir)"
            }
            Self::OtherTtl(_) => "nothing: the old locks are free after the old TTL",
            Self::FromTheFuture => {
                "find out who changed the file or the clock since boot; the old locks are free after \
                 the TTL"
            }
            Self::DeadlinePassed | Self::Moved | Self::NoAnswer(_) => {
                "nothing: the old locks are free after the TTL"
            }
            Self::Revoked => "nothing: the old locks may have other holders",
            Self::StoreRestored => "follow the runbook for restored backups",
        }
    }

    /// The one line that says why nothing goes on; with the session and how many leases it had, where
    /// that is known, and where the file is now, if it was put aside.
    pub(super) fn report(&self, session: Option<&str>, leases: Option<usize>, put: Option<&Path>) {
        tracing::warn!(
            reason = %self, session, leases, file = put.map(|path| tracing::field::display(path.display())),
            advice = self.advice(), "ignoring state file; starting a new session"
        );
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(words) => f.write_str(words),
            Self::Unreadable(words) => write!(f, "a record is invalid: {words}"),
            Self::OtherBoot => f.write_str("the machine was rebooted after it was written"),
            Self::OtherPod(uid) => write!(f, "it belongs to the pod with uid {uid:?}"),
            Self::OtherNamespace(name) => write!(f, "it belongs to the namespace {name:?}"),
            Self::OtherTtl(seconds) => {
                write!(f, "the session TTL was {seconds} s when it was written")
            }
            Self::FromTheFuture => f.write_str("its deadline is later than any session can last"),
            Self::DeadlinePassed => f.write_str("the validity of its leases had passed"),
            Self::Revoked => f.write_str("the session was revoked"),
            Self::Moved => f.write_str("the session was written after the file"),
            Self::StoreRestored => f.write_str("the store was restored from a backup"),
            Self::NoAnswer(last) => write!(
                f,
                "the store did not respond before the validity of the leases passed ({last})"
            ),
        }
    }
}

//! Why a restarted agent does not continue an earlier process' leases, and what its user can do about it.

use std::fmt;

use crate::protocol::lease::Loss;

/// Why nothing is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::agent) enum DiscardReason {
    /// The file is not as it was written.
    Damaged(String),
    /// A record makes no sense.
    Unreadable(String),
    /// The machine was rebooted since, and its clock counts from there.
    OtherBoot,
    /// It belongs to another pod.
    OtherPod(String),
    /// It is about locks in another namespace.
    OtherNamespace(String),
    /// Sessions have another TTL now.
    OtherTtl(u64),
    /// Its deadline is later than any session can last.
    FromTheFuture,
    /// What the apps were told has passed.
    DeadlinePassed,
    /// The session was revoked, or is gone.
    Revoked,
    /// The session was written after the file.
    Moved,
    /// The store was restored from a backup.
    StoreRestored,
    /// The store gave no helpful answer before the deadline. The last one, in words.
    NoAnswer(String),
}

impl DiscardReason {
    /// Returns the reason that apps are given for their leases.
    pub(in crate::agent) const fn loss(&self) -> Loss {
        match self {
            Self::DeadlinePassed | Self::NoAnswer(_) => Loss::SessionExpired,
            Self::Revoked => Loss::SessionRevoked,
            Self::StoreRestored => Loss::StoreRestored,
            _ => Loss::AgentRestarted,
        }
    }

    /// Returns whether the file is set aside, because its user may want to look at it.
    pub(in crate::agent) const fn sets_file_aside(&self) -> bool {
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

    /// Returns whether the leases on file are reported to apps as lost: the file is whole, and of this pod
    /// and this run of the machine.
    pub(in crate::agent) const fn reports_leases(&self) -> bool {
        matches!(self, Self::OtherTtl(_) | Self::FromTheFuture)
    }

    /// Returns what its user can do about it.
    pub(in crate::agent) const fn advice(&self) -> &'static str {
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
}

impl fmt::Display for DiscardReason {
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

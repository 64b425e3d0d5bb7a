//! What follows a step of a claim.

use crate::agent::api::{AcquireError, Acquired};
use crate::protocol::lock::Lock;
use crate::protocol::object::Stored;
use crate::protocol::time::Moment;

/// Where a lock comes from that is decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A read that was sent at this moment.
    Read(Moment),
    /// It was known before, or a write returned it.
    Known,
}

/// What follows a step of a claim.
pub(super) enum Next {
    /// Nothing before an answer, a change or a moment.
    Wait,
    /// Whatever can be done now.
    Recheck,
    /// A decision about this lock.
    Found(Box<Stored<Lock>>, Source),
    /// The same, once there is a session with at least half of its TTL left; without a lock, whatever
    /// can be done then.
    NeedSession(Option<Box<Stored<Lock>>>),
    /// The same, by another claim: no grant can come by this one any more.
    Anew(Box<Stored<Lock>>, Source),
    /// A write of this lock, or a place in its queue.
    Decide(Box<Stored<Lock>>, Source),
    /// The lock is held: whether its holder lives.
    Judge(Box<Stored<Lock>>, Source),
    /// The lock is held, and that is all that can be known now.
    Held(Box<Stored<Lock>>, Source, Outlook),
    /// This lock names the claim's grant.
    Granted(Box<Stored<Lock>>),
    /// A pause after a conflict.
    BackOff,
    /// The attempt failed.
    Fail(AcquireError),
    /// The same, and no lease can come by the claim's grant any more.
    Abandon(AcquireError),
    /// The claim is over.
    Done,
}

/// What is known of a lock that is held.
pub(super) struct Outlook {
    pub(super) held: Acquired,
    /// When its holder's session is read again, if before the usual time.
    pub(super) again_at: Option<Moment>,
    /// When that will be proven dead, if it looks as if it were.
    pub(super) dead_at: Option<Moment>,
}

impl Next {
    /// The lock is held; its holder is not judged.
    pub(super) fn held(lock: Box<Stored<Lock>>, source: Source, held: Acquired) -> Self {
        let outlook = Outlook {
            held,
            again_at: None,
            dead_at: None,
        };
        Self::Held(lock, source, outlook)
    }

    /// Goes on with an error, if there is one.
    pub(super) fn or_fail(next: Result<Self, AcquireError>) -> Self {
        next.unwrap_or_else(Self::Fail)
    }
}

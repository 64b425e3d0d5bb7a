//! One event of a history: a line of JSON.
//!
//! All times are nanoseconds on the run's one clock, `CLOCK_BOOTTIME` of the machine. Nothing here is a
//! wall-clock time.

use serde::{Deserialize, Serialize};

/// The name of all processes, for a stalled machine.
pub(crate) const EVERYONE: &str = "everyone";

/// What a process did or was answered, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// When: before a request is sent, after its answer was read.
    pub(crate) at: u64,
    /// The process. One that was killed and started again has another name.
    pub(crate) process: String,
    /// Joins an invocation with its outcome; unique in its process.
    pub(crate) operation: u64,
    /// Where in the operation this is.
    pub(crate) phase: Phase,
    /// The operation.
    #[serde(flatten)]
    pub(crate) op: Op,
}

/// Where in an operation an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// It begins: the request is about to be sent.
    Invoke,
    /// It happened.
    Ok,
    /// It did not happen, and never will.
    Fail,
    /// Whether it happened is not known. So it is with an operation that has no outcome at all.
    Unknown,
    /// Something that happened at this moment, and is not a request.
    Info,
}

/// The operation. An outcome repeats its invocation, and adds what was answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Of the run as a whole; each of its files may say it. `info`.
    Run {
        /// What repeats the run.
        seed: u64,
        /// By how much two apps' beliefs may overlap because of what their clocks differ. 0 where
        /// all of them count on the clock of this history.
        #[serde(default)]
        clock_bound_ns: u64,
        /// How much faster or slower an app may count than its agent, in millionths.
        #[serde(default)]
        clock_rate_ppm: u64,
        /// Whether only one app at a time may believe. False where clocks are beyond their bound:
        /// only tokens protect there.
        #[serde(default = "yes")]
        exclusion: bool,
        /// An app that still listens beyond its deadline is notified of the loss, or of more time, within this time,
        /// less the time in which it or its sidecar did not run. Absent where that is not recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_told_within_ns: Option<u64>,
    },
    /// Asks for a lock; `ok` with a lease, `fail` when it is held by another.
    Acquire {
        /// The resource.
        resource: String,
        /// The lease's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        /// Its fencing token. Absent where the lock has none (client-go's election).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Until when the app may act: the validity in the answer, counted from before its request was sent. The
        /// largest number: until further notice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        believes_until: Option<u64>,
    },
    /// Asks for more time, or is notified of it by a stream; `fail` when the lease is lost.
    Renew {
        /// The lease's id.
        lease: String,
        /// As with an acquire.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        believes_until: Option<u64>,
        /// The app asked for less time than before: then its deadline may be earlier.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asks_less: bool,
    },
    /// Ends a lease. The app believes no more from its invocation on.
    Release {
        /// The lease's id.
        lease: String,
    },
    /// A fenced write; `ok` accepted, `fail` refused as stale.
    Write {
        /// Where: what the lock guards. Several may be guarded by one lock.
        register: String,
        /// The lease of the write.
        lease: String,
        /// Its token.
        token: u64,
        /// The written value: unique in its register.
        value: String,
    },
    /// A fenced entry in a log; `ok` it is there, `fail` refused as stale. An app that appends has read the log's
    /// length with its token before, by which the log refuses all older ones.
    Append {
        /// Where.
        log: String,
        /// The lease of the entry.
        lease: String,
        /// Its token.
        token: u64,
        /// The entry: unique in its log.
        value: String,
    },
    /// All that a log has in it. `info`.
    Log {
        /// Which.
        log: String,
        /// In its order.
        entries: Vec<Entry>,
    },
    /// Reads a register; `ok` with the last written value, if any.
    Read {
        /// Where.
        register: String,
        /// The token of the write that it saw.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The value that was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// The register itself, in the order in which it decided: it took this write. `info`.
    Accepted {
        /// Which register.
        register: String,
        /// The token it came with.
        token: u64,
        /// The written value.
        value: String,
    },
    /// The same of one that it refused. `info`.
    Refused {
        /// Which register.
        register: String,
        /// The token it came with.
        token: u64,
        /// The value to be written.
        value: String,
    },
    /// The app was notified that its lease is lost, by an event or by 410. `info`.
    Lost {
        /// The lease's id.
        lease: String,
    },
    /// The app stopped to believe for reasons of its own. `info`.
    BelievesEnd {
        /// The lease's id.
        lease: String,
    },
    /// The stream of events that the app listens to has ended: it is not notified of anything more. `info`.
    StreamEnd {
        /// The lease's id.
        lease: String,
    },
    /// The sidecar that serves this process. `info`.
    ServedBy {
        /// Its sidecar, in all its lives.
        sidecar: String,
    },
    /// A process does not run, because it was killed or stopped with a signal, or its machine stalled: from before
    /// that until it ran again, or for good.
    Stop {
        /// A process of this history, a sidecar, or [`EVERYONE`].
        who: String,
    },
    /// A person, or a restored backup, ended grants that their apps may still believe in. Exclusion
    /// is not claimed for those; everything about tokens still is. `info`, or `invoke` and an outcome
    /// where it takes time; `fail` if nothing came of it.
    Override {
        /// What lock; all of them if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource: Option<String>,
        /// Which grants, where that is known, if only by the outcome; all that existed meanwhile if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grants: Option<Vec<String>>,
        /// Only of apps that this sidecar serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sidecar: Option<String>,
        /// How.
        by: OverriddenBy,
    },
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The token it came with.
    pub(crate) token: u64,
    /// The value.
    pub(crate) value: String,
}

/// How exclusion was overridden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OverriddenBy {
    /// A force release.
    Force,
    /// The lock object was deleted.
    Delete,
    /// Its status was wiped.
    Wipe,
    /// Its status was edited by hand.
    Edit,
    /// The clock that an agent counts on jumped, which no correct clock does while its app runs.
    ClockLeap,
    /// The session object was deleted.
    DeleteSession,
    /// A backup was restored as the runbook says, with the bump.
    Restore,
    /// A backup was restored without the bump: from then on nothing is claimed about tokens either.
    RestoreWithoutBump,
}

const fn yes() -> bool {
    true
}

impl Op {
    /// The invocation of an acquire.
    pub(crate) fn acquire(resource: &str) -> Self {
        Self::Acquire {
            resource: resource.to_owned(),
            lease: None,
            token: None,
            believes_until: None,
        }
    }

    /// The `ok` of an acquire.
    pub(crate) fn granted(resource: &str, lease: &str, token: u64, believes_until: u64) -> Self {
        Self::Acquire {
            resource: resource.to_owned(),
            lease: Some(lease.to_owned()),
            token: Some(token),
            believes_until: Some(believes_until),
        }
    }

    /// The invocation of a renewal.
    pub(crate) fn renew(lease: &str) -> Self {
        Self::Renew {
            lease: lease.to_owned(),
            believes_until: None,
            asks_less: false,
        }
    }

    /// The `ok` of a renewal.
    pub(crate) fn renewed(lease: &str, believes_until: u64) -> Self {
        Self::Renew {
            lease: lease.to_owned(),
            believes_until: Some(believes_until),
            asks_less: false,
        }
    }

    /// A release, also its outcome.
    pub(crate) fn release(lease: &str) -> Self {
        Self::Release {
            lease: lease.to_owned(),
        }
    }

    /// A fenced write, also its outcome.
    pub(crate) fn write(register: &str, lease: &str, token: u64, value: &str) -> Self {
        Self::Write {
            register: register.to_owned(),
            lease: lease.to_owned(),
            token,
            value: value.to_owned(),
        }
    }

    /// A read of a register.
    pub(crate) fn read(register: &str) -> Self {
        Self::Read {
            register: register.to_owned(),
            token: None,
            value: None,
        }
    }

    /// The value that was read in a register.
    pub(crate) fn saw(register: &str, token: u64, value: &str) -> Self {
        Self::Read {
            register: register.to_owned(),
            token: Some(token),
            value: Some(value.to_owned()),
        }
    }

    /// A fenced entry in a log, also its outcome.
    pub(crate) fn append(log: &str, lease: &str, token: u64, value: &str) -> Self {
        Self::Append {
            log: log.to_owned(),
            lease: lease.to_owned(),
            token,
            value: value.to_owned(),
        }
    }

    /// What a register says of a write that it took or refused.
    pub(crate) fn decided(register: &str, token: u64, value: &str, accepted: bool) -> Self {
        let (register, value) = (register.to_owned(), value.to_owned());
        if accepted {
            Self::Accepted {
                register,
                token,
                value,
            }
        } else {
            Self::Refused {
                register,
                token,
                value,
            }
        }
    }

    /// An app is notified that its lease is lost.
    pub(crate) fn lost(lease: &str) -> Self {
        Self::Lost {
            lease: lease.to_owned(),
        }
    }

    /// An app stops to believe.
    pub(crate) fn believes_end(lease: &str) -> Self {
        Self::BelievesEnd {
            lease: lease.to_owned(),
        }
    }

    /// Exclusion is overridden for a lock, or for all of them.
    pub(crate) fn overridden(resource: Option<&str>, by: OverriddenBy) -> Self {
        Self::Override {
            resource: resource.map(str::to_owned),
            grants: None,
            sidecar: None,
            by,
        }
    }

    /// The same, where it is known which grants were ended.
    pub(crate) fn ended(resource: &str, grants: Vec<String>, by: OverriddenBy) -> Self {
        Self::Override {
            resource: Some(resource.to_owned()),
            grants: Some(grants),
            sidecar: None,
            by,
        }
    }

    /// A sidecar's clock jumps.
    pub(crate) fn clock_leaps(sidecar: &str) -> Self {
        Self::Override {
            resource: None,
            grants: None,
            sidecar: Some(sidecar.to_owned()),
            by: OverriddenBy::ClockLeap,
        }
    }

    /// An app's stream of events has ended.
    pub(crate) fn stream_end(lease: &str) -> Self {
        Self::StreamEnd {
            lease: lease.to_owned(),
        }
    }

    /// The sidecar that serves a process.
    pub(crate) fn served_by(sidecar: &str) -> Self {
        Self::ServedBy {
            sidecar: sidecar.to_owned(),
        }
    }

    /// A process does not run.
    pub(crate) fn stop(who: &str) -> Self {
        Self::Stop {
            who: who.to_owned(),
        }
    }
}

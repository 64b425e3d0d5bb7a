//! One event of a history: a line of JSON.
//!
//! All times are nanoseconds on the run's only clock, the machine's `CLOCK_BOOTTIME`. Wall-clock
//! times do not occur.

use serde::{Deserialize, Serialize};

/// A name that stands for all processes, for a stalled machine.
pub(crate) const EVERYONE: &str = "everyone";

/// What a process did or received, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// The time: before a request is sent, or after its answer was read.
    pub(crate) at: u64,
    /// The process. A restarted process has another name.
    pub(crate) process: String,
    /// Joins an invocation with its outcome; unique within its process.
    pub(crate) operation: u64,
    /// The phase of the operation.
    pub(crate) phase: Phase,
    /// The operation.
    #[serde(flatten)]
    pub(crate) op: Op,
}

/// The phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Phase {
    /// It begins: the request will be sent.
    Invoke,
    /// It happened.
    Ok,
    /// It did not happen and never will.
    Fail,
    /// Its outcome is unknown, as for an operation without any outcome.
    Unknown,
    /// An event at this moment that is not a request.
    Info,
}

/// The operation. An outcome repeats its invocation and adds the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub(crate) enum Op {
    /// The run as a whole; each of its files may contain it. `info`.
    Run {
        /// The seed, which repeats the run.
        seed: u64,
        /// By how much two apps' beliefs may overlap because their clocks differ. 0 if all of them
        /// use the clock of this history.
        #[serde(default)]
        clock_bound_ns: u64,
        /// How much faster or slower an app's clock may run than its agent's, in millionths.
        #[serde(default)]
        clock_rate_ppm: u64,
        /// Whether only one app at a time may believe. False if clocks are beyond their bound: then
        /// only tokens protect.
        #[serde(default = "yes")]
        exclusion: bool,
        /// An app that still listens beyond its deadline is notified of the loss, or of an
        /// extension, within this time. Time in which it or its sidecar did not run is not counted.
        /// Absent if that is not recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        loss_told_within_ns: Option<u64>,
    },
    /// Requests a lock; `ok` with a lease, `fail` if another holder has it.
    Acquire {
        /// The resource.
        resource: String,
        /// The lease's id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<String>,
        /// Its fencing token. Absent if the lock has none (client-go's election).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// Until when the app may act: the validity in the answer, counted from before its request
        /// was sent. The largest number means: until further notice.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        believes_until: Option<u64>,
    },
    /// Requests an extension, or receives one by a stream; `fail` if the lease is lost.
    Renew {
        /// The lease's id.
        lease: String,
        /// As for an acquire.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        believes_until: Option<u64>,
        /// The app requested less time than before, so its deadline may be earlier.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asks_less: bool,
    },
    /// Ends a lease. From its invocation on, the app no longer believes.
    Release {
        /// The lease's id.
        lease: String,
    },
    /// A fenced write; `ok` accepted, `fail` refused as stale.
    Write {
        /// The register, which a lock guards. One lock may guard several.
        register: String,
        /// The lease of the write.
        lease: String,
        /// Its token.
        token: u64,
        /// The written value: unique in its register.
        value: String,
    },
    /// A fenced entry in a log; `ok` it is there, `fail` refused as stale. Before it appends, an
    /// app reads the log's length with its token. From then on the log refuses all older tokens.
    Append {
        /// The log.
        log: String,
        /// The lease of the entry.
        lease: String,
        /// Its token.
        token: u64,
        /// The entry: unique in its log.
        value: String,
    },
    /// The whole content of a log. `info`.
    Log {
        /// The log.
        log: String,
        /// The entries, in order.
        entries: Vec<Entry>,
    },
    /// Reads a register; `ok` with the last written value, if any.
    Read {
        /// The register.
        register: String,
        /// The token of the write that the read returned.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<u64>,
        /// The value that was read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<String>,
    },
    /// The register's own record, in the order of its decisions: it accepted this write. `info`.
    Accepted {
        /// The register.
        register: String,
        /// The token of the write.
        token: u64,
        /// The written value.
        value: String,
    },
    /// The same for a write that it refused. `info`.
    Refused {
        /// The register.
        register: String,
        /// The token of the write.
        token: u64,
        /// The value of the write.
        value: String,
    },
    /// The app was notified that its lease is lost, by an event or by 410. `info`.
    Lost {
        /// The lease's id.
        lease: String,
    },
    /// The app stopped believing for its own reasons. `info`.
    BelievesEnd {
        /// The lease's id.
        lease: String,
    },
    /// The event stream that the app listens to has ended, so it receives no further notification.
    /// `info`.
    StreamEnd {
        /// The lease's id.
        lease: String,
    },
    /// The sidecar that serves this process. `info`.
    ServedBy {
        /// The name of its sidecar, across restarts.
        sidecar: String,
    },
    /// A process does not run, because it was killed or stopped by a signal, or because its machine
    /// stalled: from before that until it runs again, or permanently.
    Stop {
        /// A process of this history, a sidecar, or [`EVERYONE`].
        who: String,
    },
    /// A person, or a restored backup, ended grants that their apps may still believe in. Exclusion
    /// is not claimed for those; everything about tokens still is. `info`, or `invoke` with an
    /// outcome if it takes time; `fail` if it had no effect.
    Override {
        /// The lock; all locks if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resource: Option<String>,
        /// The grants, if they are known, possibly only by the outcome; if absent, all that existed
        /// in the meantime.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grants: Option<Vec<String>>,
        /// Only apps that this sidecar serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sidecar: Option<String>,
        /// The kind of override.
        by: OverriddenBy,
    },
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The token of the entry.
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
    /// The clock of an agent jumped. No correct clock does that while its app runs.
    ClockLeap,
    /// The session object was deleted.
    DeleteSession,
    /// A backup was restored as the runbook describes, with the bump.
    Restore,
    /// A backup was restored without the bump: from then on not even tokens are claimed.
    RestoreWithoutBump,
}

const fn yes() -> bool {
    true
}

impl Op {
    /// Returns the invocation of an acquire.
    pub(crate) fn acquire(resource: &str) -> Self {
        Self::Acquire {
            resource: resource.to_owned(),
            lease: None,
            token: None,
            believes_until: None,
        }
    }

    /// Returns the `ok` of an acquire.
    pub(crate) fn granted(resource: &str, lease: &str, token: u64, believes_until: u64) -> Self {
        Self::Acquire {
            resource: resource.to_owned(),
            lease: Some(lease.to_owned()),
            token: Some(token),
            believes_until: Some(believes_until),
        }
    }

    /// Returns the invocation of a renewal.
    pub(crate) fn renew(lease: &str) -> Self {
        Self::Renew {
            lease: lease.to_owned(),
            believes_until: None,
            asks_less: false,
        }
    }

    /// Returns the `ok` of a renewal.
    pub(crate) fn renewed(lease: &str, believes_until: u64) -> Self {
        Self::Renew {
            lease: lease.to_owned(),
            believes_until: Some(believes_until),
            asks_less: false,
        }
    }

    /// Returns a release, also as its outcome.
    pub(crate) fn release(lease: &str) -> Self {
        Self::Release {
            lease: lease.to_owned(),
        }
    }

    /// Returns a fenced write, also as its outcome.
    pub(crate) fn write(register: &str, lease: &str, token: u64, value: &str) -> Self {
        Self::Write {
            register: register.to_owned(),
            lease: lease.to_owned(),
            token,
            value: value.to_owned(),
        }
    }

    /// Returns a read of a register.
    pub(crate) fn read(register: &str) -> Self {
        Self::Read {
            register: register.to_owned(),
            token: None,
            value: None,
        }
    }

    /// Returns the outcome of a read.
    pub(crate) fn saw(register: &str, token: u64, value: &str) -> Self {
        Self::Read {
            register: register.to_owned(),
            token: Some(token),
            value: Some(value.to_owned()),
        }
    }

    /// Returns a fenced entry in a log, also as its outcome.
    pub(crate) fn append(log: &str, lease: &str, token: u64, value: &str) -> Self {
        Self::Append {
            log: log.to_owned(),
            lease: lease.to_owned(),
            token,
            value: value.to_owned(),
        }
    }

    /// Returns a register's record of a write that it accepted or refused.
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

    /// Returns the event of an app that is notified that its lease is lost.
    pub(crate) fn lost(lease: &str) -> Self {
        Self::Lost {
            lease: lease.to_owned(),
        }
    }

    /// Returns the event of an app that stops believing.
    pub(crate) fn believes_end(lease: &str) -> Self {
        Self::BelievesEnd {
            lease: lease.to_owned(),
        }
    }

    /// Returns the override of a lock, or of all locks.
    pub(crate) fn overridden(resource: Option<&str>, by: OverriddenBy) -> Self {
        Self::Override {
            resource: resource.map(str::to_owned),
            grants: None,
            sidecar: None,
            by,
        }
    }

    /// The same, if the ended grants are known.
    pub(crate) fn ended(resource: &str, grants: Vec<String>, by: OverriddenBy) -> Self {
        Self::Override {
            resource: Some(resource.to_owned()),
            grants: Some(grants),
            sidecar: None,
            by,
        }
    }

    /// Returns the jump of a sidecar's clock.
    pub(crate) fn clock_leaps(sidecar: &str) -> Self {
        Self::Override {
            resource: None,
            grants: None,
            sidecar: Some(sidecar.to_owned()),
            by: OverriddenBy::ClockLeap,
        }
    }

    /// Returns the end of an app's event stream.
    pub(crate) fn stream_end(lease: &str) -> Self {
        Self::StreamEnd {
            lease: lease.to_owned(),
        }
    }

    /// Returns the sidecar that serves a process.
    pub(crate) fn served_by(sidecar: &str) -> Self {
        Self::ServedBy {
            sidecar: sidecar.to_owned(),
        }
    }

    /// Returns the stop of a process.
    pub(crate) fn stop(who: &str) -> Self {
        Self::Stop {
            who: who.to_owned(),
        }
    }
}

//! What can go wrong.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::api::{self, Outcome};

/// An error of Leasehold: what failed, and what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another caller has the lock, and the wait is over.
    #[error("{detail} (lock_held)")]
    Held {
        /// The holder, if the sidecar knows it.
        holder: Option<Box<Holder>>,
        /// What happened, for people.
        detail: String,
    },
    /// The lease is over: stop what the lock guards. Another holder may have the lock.
    #[error("{detail} ({reason})")]
    Lost {
        /// `validity_over`, or a reason of the HTTP API.
        reason: String,
        /// What happened, for people.
        detail: String,
    },
    /// The sidecar, or the API server behind it, did not answer in time. No lock was acquired.
    #[error("{detail} ({code})")]
    Unavailable {
        /// A code of the HTTP API, or `no_answer`.
        code: String,
        /// What happened, for people.
        detail: String,
    },
    /// The request must be corrected.
    #[error("{detail} ({code})")]
    Refused {
        /// A code of the HTTP API, or `not_a_sidecar`.
        code: String,
        /// What to correct, for people.
        detail: String,
    },
}

/// The holder of a lock, as the sidecar knows it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Holder {
    /// The holder's name.
    pub owner_id: String,
    /// Its pod.
    pub pod: String,
    /// The first fencing token of its grant.
    pub fencing_token: Option<u64>,
    /// When the grant began, in RFC 3339.
    pub held_since: String,
    /// What the holder has told about itself.
    pub metadata: BTreeMap<String, String>,
}

impl From<api::Holder> for Holder {
    fn from(said: api::Holder) -> Self {
        Self {
            owner_id: said.owner_id,
            pod: said.pod,
            fencing_token: said.fencing_token,
            held_since: said.held_since,
            metadata: said.metadata,
        }
    }
}

/// A problem document (RFC 9457) of the sidecar.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    status: u16,
    code: String,
    detail: String,
    reason: String,
    /// Read separately: it must not hide the code.
    holder: Option<serde_json::Value>,
}

impl Error {
    /// Returns the stable code: one of the HTTP API, or the reason of a loss.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::Held { .. } => "lock_held",
            Self::Lost { reason, .. } => reason,
            Self::Unavailable { code, .. } | Self::Refused { code, .. } => code,
        }
    }

    pub(crate) fn no_answer(address: &str, why: &str) -> Self {
        Self::Unavailable {
            code: "no_answer".into(),
            detail: format!(
                "no answer from {address}: {why}; start the sidecar, or set LEASEHOLD_URL to where it is"
            ),
        }
    }

    /// Another server answered.
    pub(crate) fn stranger(address: &str) -> Self {
        Self::Refused {
            code: "not_a_sidecar".into(),
            detail: format!(
                "what answers at {address} is not a Leasehold sidecar; set LEASEHOLD_URL to where it is"
            ),
        }
    }

    /// Returns the error that a sidecar's answer describes.
    pub(crate) fn of_answer(status: u16, body: &[u8]) -> Self {
        // Without a document, the status alone counts.
        Self::of_problem(serde_json::from_slice(body).unwrap_or_default(), status)
    }

    /// Returns the error that an event describes.
    pub(crate) fn of_event(data: &str) -> Self {
        let problem: Problem = serde_json::from_str(data).unwrap_or_default();
        let status = problem.status;
        Self::of_problem(problem, status)
    }

    fn of_problem(said: Problem, status: u16) -> Self {
        let or = |text: String, other: String| if text.is_empty() { other } else { text };
        let code = or(said.code, format!("http_{status}"));
        let detail = or(
            said.detail,
            format!("the sidecar answered with status {status}"),
        );
        match Outcome::of(&code, status) {
            Outcome::Held => Self::Held {
                holder: said.holder.and_then(|holder| {
                    let holder: api::Holder = serde_json::from_value(holder).ok()?;
                    Some(Box::new(holder.into()))
                }),
                detail,
            },
            Outcome::Lost => Self::Lost {
                reason: or(said.reason, code),
                detail,
            },
            Outcome::Passing | Outcome::Lasting => Self::Unavailable { code, detail },
            Outcome::Refused => Self::Refused { code, detail },
        }
    }

    /// Whether another attempt may succeed soon.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable { code, .. } if Outcome::of(code, 503) != Outcome::Lasting)
    }

    pub(crate) fn is_no_answer(&self) -> bool {
        matches!(self, Self::Unavailable { code, .. } if code == "no_answer")
    }
}

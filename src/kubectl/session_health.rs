//! Whether the session of a holder lives, and when its locks can be taken over if it does not.

use std::time::Duration;

use jiff::Timestamp;

use super::world::{Known, SessionSeen, World};
use crate::crd::lock::Holder;
use crate::protocol::time::SessionTtl;

/// The state of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It was renewed within its TTL.
    Live {
        /// How long ago it was last renewed, by the API server's clock.
        silent: Duration,
        /// If it is not renewed again: after how long it can be revoked, rounded up to a second.
        freed_in: Duration,
    },
    /// It missed its renewals for longer than its TTL, and was not revoked yet.
    Expired {
        /// How long ago it was last renewed.
        silent: Duration,
    },
    /// It has ended.
    Revoked {
        /// The reason, as the object has it: `Expired`, `PodEnded`, `NodeOutOfService`, `Ended`.
        reason: String,
        /// The pod or user that revoked it.
        by: String,
    },
    /// Its object does not exist.
    Missing,
    /// It cannot be known, for this reason.
    Unknown(String),
}

impl Health {
    /// Returns the state of this session of this namespace.
    #[must_use]
    pub fn of(world: &World, namespace: &str, session: &str) -> Self {
        match &world.sessions {
            Known::Unknown(why) => Self::Unknown(why.clone()),
            Known::Seen(sessions) => {
                let key = (namespace.to_owned(), session.to_owned());
                sessions
                    .get(&key)
                    .map_or(Self::Missing, |seen| Self::at(world.now, seen))
            }
        }
    }

    /// Returns the state of the session that holds a lock.
    #[must_use]
    pub fn of_holder(world: &World, namespace: &str, holder: &Holder) -> Self {
        let pod = (holder.pod.as_str(), holder.pod_uid.as_str());
        Self::of_pod(world, namespace, &holder.session, pod)
    }

    /// Returns the state of the session of a pod, by its name and uid. A session of another pod is not its own.
    #[must_use]
    pub fn of_pod(world: &World, namespace: &str, session: &str, pod: (&str, &str)) -> Self {
        let key = (namespace.to_owned(), session.to_owned());
        let found = world
            .sessions
            .seen()
            .and_then(|sessions| sessions.get(&key));
        let is_its_own =
            found.is_none_or(|found| (found.spec.pod.as_str(), found.spec.pod_uid.as_str()) == pod);
        if is_its_own {
            Self::of(world, namespace, session)
        } else {
            Self::Missing
        }
    }

    /// Returns the state of a session at a time of the API server.
    #[must_use]
    pub fn at(now: Timestamp, session: &SessionSeen) -> Self {
        if let Some(revoked) = &session.status.revoked {
            return Self::Revoked {
                reason: revoked.reason.clone(),
                by: revoked.by.clone(),
            };
        }
        let Some(renewed) = session.renewed else {
            return Self::Unknown("the API server does not say when it was renewed".to_owned());
        };
        let silent = since(renewed, now);
        let seconds = u64::try_from(session.spec.ttl_seconds).unwrap_or_default();
        // A client that revokes it has counted from when it saw the last renewal.
        let allowed = SessionTtl::clamped(seconds).challenger_share();
        match allowed.checked_sub(silent) {
            Some(freed_in) if !freed_in.is_zero() => Self::Live {
                silent,
                freed_in: rounded_up(freed_in),
            },
            _ => Self::Expired { silent },
        }
    }
}

/// Returns a duration in whole seconds that is not shorter. A part of a second that is cut off would promise too much.
const fn rounded_up(duration: Duration) -> Duration {
    let part = if duration.subsec_nanos() == 0 { 0 } else { 1 };
    Duration::from_secs(duration.as_secs().saturating_add(part))
}

/// Returns how long after `earlier` this is; zero if it is before it.
#[must_use]
pub fn since(earlier: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or_default()
}

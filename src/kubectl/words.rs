//! Phrases that several commands share.

use jiff::Timestamp;

use super::format::human::human;
use super::session_health::{Health, since};
use super::world::{Known, LockSeen, NodeSeen, OperatorSeen, PodSeen, World};
use crate::crd::lock::ReleaseMode;
use crate::text::escape;
pub use crate::text::{ordinal, who};

/// What the deletion of a lock's object means.
pub const BEING_DELETED: &str =
    "its object is being deleted; no acquire succeeds until that is done";

/// Returns the time since `at`, which a node's wall clock has stamped: `~5m`. The API server's clock is another one,
/// so it is about that long.
#[must_use]
pub fn about(at: &str, now: Timestamp) -> String {
    at.parse().map_or_else(
        |_| "unknown".to_owned(),
        |at| format!("~{}", human(since(at, now))),
    )
}

/// Returns the request to end the present grant of a lock; one for an earlier grant has no effect.
#[must_use]
pub fn request(lock: &LockSeen) -> Option<String> {
    let request = lock.spec.release_request.as_ref()?;
    let lease = lock.status.as_ref().ok()?.lease.as_ref()?;
    // The id of an app's lease is the one of the grant, a dot and a number.
    let grant = request.lease_id.split('.').next().unwrap_or_default();
    let mode = match request.mode {
        ReleaseMode::Ask => "asked",
        ReleaseMode::Force => "forced",
    };
    (grant == lease.id).then(|| format!("{mode} by {}: {}", request.actor, request.reason))
}

/// Returns the state of a session in one cell of a table.
#[must_use]
pub fn health_cell(health: &Health) -> String {
    match health {
        Health::Live { .. } => "live".to_owned(),
        Health::Expired { .. } => "expired".to_owned(),
        Health::Revoked { reason, .. } => format!("revoked ({})", escape(reason)),
        Health::Missing => "missing".to_owned(),
        Health::Unknown(_) => "unknown".to_owned(),
    }
}

/// Returns when the locks of a session can be taken over, in one cell of a table. Empty if that is unknown.
#[must_use]
pub fn freed_in_cell(health: &Health) -> String {
    match health {
        Health::Live { freed_in, .. } => human(*freed_in),
        Health::Expired { .. } | Health::Revoked { .. } => "due".to_owned(),
        Health::Missing | Health::Unknown(_) => String::new(),
    }
}

/// Returns the state of a holder's session, and what follows for its lock.
#[must_use]
pub fn health(health: &Health) -> String {
    match health {
        Health::Live { silent, freed_in } => format!(
            "live, renewed {} ago; if it stays silent, its locks can be taken over in {}",
            human(*silent),
            human(*freed_in)
        ),
        Health::Expired { silent } => format!(
            "expired, last renewed {} ago; an operator, or in peer mode another pod, can take its locks over now",
            human(*silent)
        ),
        Health::Revoked { reason, by } => format!(
            "revoked by {} ({}); an operator, or in peer mode another pod, can take its locks over now",
            escape(by),
            escape(reason)
        ),
        Health::Missing => {
            "missing: its object was not found; its locks can be taken over after its TTL"
                .to_owned()
        }
        Health::Unknown(why) => format!("unknown: {why}"),
    }
}

/// Returns the state of a holder's pod and its node.
#[must_use]
pub fn pod(world: &World, namespace: &str, name: &str, uid: &str) -> String {
    let key = (namespace.to_owned(), name.to_owned());
    match world.pods.get(&key) {
        None => "unknown".to_owned(),
        Some(Known::Unknown(why)) => format!("unknown: {why}"),
        // An agent outside of a pod has a name, and no uid.
        Some(Known::Seen(None)) if uid.is_empty() => {
            "none: its agent runs outside of a pod".to_owned()
        }
        Some(Known::Seen(None)) => "deleted".to_owned(),
        Some(Known::Seen(Some(pod))) if pod.uid != uid => {
            "deleted; another pod has its name now".to_owned()
        }
        Some(Known::Seen(Some(pod))) => existing_pod(world, pod),
    }
}

fn existing_pod(world: &World, pod: &PodSeen) -> String {
    let mut words = if pod.is_terminating {
        "Terminating".to_owned()
    } else {
        escape(&pod.phase).into_owned()
    };
    if let Some(reason) = &pod.waiting {
        words = format!("{words} ({})", escape(reason));
    }
    if pod.node.is_empty() {
        return words + ", on no node";
    }
    let node = match world.nodes.get(&pod.node) {
        None => String::new(),
        Some(Known::Unknown(why)) => format!(" (its state is unknown: {why})"),
        Some(Known::Seen(None)) => " (which was deleted)".to_owned(),
        Some(Known::Seen(Some(node))) => format!(" ({})", node_state(node)),
    };
    format!("{words} on node {}{node}", escape(&pod.node))
}

fn node_state(node: &NodeSeen) -> &'static str {
    match (node.is_out_of_service, node.ready.as_str()) {
        (true, _) => "out of service",
        (false, "True") => "Ready",
        (false, _) => "NotReady",
    }
}

/// Returns whether an operator acts, and what follows if not.
#[must_use]
pub fn operator(operator: &Known<OperatorSeen>) -> String {
    match operator {
        Known::Seen(OperatorSeen::Active { namespace, pod, .. }) => format!(
            "active: pod {} in namespace {}",
            escape(pod),
            escape(namespace)
        ),
        Known::Seen(OperatorSeen::Absent(why)) => format!(
            "none is active ({}): no force release is done, and in strict mode no lock is taken over",
            escape(why)
        ),
        Known::Unknown(why) => format!("unknown: {why}"),
    }
}

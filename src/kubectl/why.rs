//! Why a pod waits for a lock: its position in the queue, and the chain of holders to its end.
//!
//! The explanation is a document, which `-o json` prints, and its text has nothing that the document lacks.

mod text;

use serde::Serialize;

use super::queue_chain::{Chain, Party, Wait, Waits};
use super::session_health::Health;
use super::words::{self, about};
use super::world::{LockSeen, World};
use crate::crd::lock::{DistributedLockStatus, Holder, LeaseRecord, WaiterRecord};

/// The explanation.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The resource that the lock guards.
    pub resource: String,
    /// The name of the lock object.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Whether the lock is held; absent if it cannot be read. A free lock has no chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<bool>,
    /// Whether other locks of the namespace cannot be read: what waits for these, and their holders, are not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
    /// Whether its object is being deleted: no acquire succeeds meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub being_deleted: bool,
    /// The pod that was asked about, if one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<QueuedPod>,
    /// The lock and those that its holder waits for, to the end of the chain.
    pub chain: Vec<Link>,
    /// Whether the chain is longer than what is shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub chain_is_cut: bool,
    /// A cycle of pods that wait for each other; empty if there is none.
    pub possible_deadlock: Vec<DeadlockParty>,
    /// Whether an operator acts.
    pub operator: String,
}

/// The position of a pod in the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuedPod {
    /// The pod.
    pub pod: String,
    /// Whether the pod holds the lock itself.
    pub holds: bool,
    /// The position of its queue entry, from 1; absent if it has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Those before it in the queue, the first one first.
    pub ahead: Vec<Waiter>,
}

/// An entry in a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiter {
    /// The name that the app gave.
    pub owner_id: String,
    /// Its pod.
    pub pod: String,
    /// Since when it waits, by the clock of its node.
    pub queued_at: String,
}

/// A lock of the chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Link {
    /// The resource that the lock guards.
    pub resource: String,
    /// The name of the lock object.
    pub name: String,
    /// The name that the holding app gave; empty if the lock is free or cannot be read.
    pub owner_id: String,
    /// The pod that holds the lock.
    pub pod: String,
    /// The first fencing token of the grant.
    pub fencing_token: i64,
    /// Since when it is held, by the clock of the holder's node.
    pub acquired_at: String,
    /// The same as a duration, in words.
    pub held_for: String,
    /// Whether the object is being deleted: no acquire succeeds meanwhile.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub being_deleted: bool,
    /// Whether no app uses the grant: its pod keeps it, and gives it away when another pod asks.
    pub kept: bool,
    /// What the pod and its node do.
    pub pod_state: String,
    /// Whether the session lives, and what follows.
    pub session: String,
    /// If the holder falls silent: after how many seconds the lock can be taken over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub freed_in_seconds: Option<u64>,
    /// Who has requested its release, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_request: Option<String>,
    /// The queue of the lock.
    pub queue: Vec<Waiter>,
    /// The locks that the holder itself waits for.
    pub waits_for: Vec<WaitsFor>,
    /// Why the lock cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A lock that a holder waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitsFor {
    /// The resource that the lock guards.
    pub resource: String,
    /// The holder's position in its queue, from 1.
    pub position: usize,
}

/// A party of a possible deadlock.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeadlockParty {
    /// The pod.
    pub pod: String,
    /// The resource that it holds.
    pub holds: String,
    /// The resource that it waits for.
    pub waits_for: String,
}

/// Returns the pods whose state the explanation of a lock shows: the holders of the chain.
#[must_use]
pub fn pods_of(world: &World, lock: &LockSeen) -> Vec<String> {
    let waits = Waits::of_locks(world.of_namespace(&lock.namespace));
    let locks = waits.chain_from(lock).locks;
    let holders = locks
        .iter()
        .filter_map(|lock| lock.status.as_ref().ok()?.holder.as_ref());
    holders.map(|holder| holder.pod.clone()).collect()
}

/// Explains why this pod, or any other, does not get a lock.
#[must_use]
pub fn explain(world: &World, lock: &LockSeen, pod: Option<&str>) -> Why {
    let waits = Waits::of_locks(world.of_namespace(&lock.namespace));
    let chain = waits.chain_from(lock);
    let cycle = cycle(&chain);
    Why {
        resource: lock.spec.resource.clone(),
        name: lock.name.clone(),
        namespace: lock.namespace.clone(),
        held: lock
            .status
            .as_ref()
            .ok()
            .map(|status| status.holder.is_some()),
        incomplete: world
            .of_namespace(&lock.namespace)
            .any(|lock| lock.status.is_err()),
        being_deleted: lock.is_being_deleted,
        pod: pod
            .filter(|_| lock.status.is_ok())
            .map(|pod| queued_pod(lock, pod)),
        chain: (chain.locks.iter())
            .filter(|lock| is_held(lock))
            .map(|lock| link(world, &waits, lock))
            .collect(),
        chain_is_cut: chain.is_cut,
        possible_deadlock: cycle,
        operator: words::operator(&world.operator),
    }
}

/// Returns whether a lock is held, as far as that is known.
fn is_held(lock: &LockSeen) -> bool {
    lock.status.is_err() || lock.holder_session().is_some()
}

fn queued_pod(lock: &LockSeen, pod: &str) -> QueuedPod {
    let nothing = DistributedLockStatus::default();
    let status = lock.status.as_ref().unwrap_or(&nothing);
    let position = status.waiters.iter().position(|waiter| waiter.pod == pod);
    QueuedPod {
        pod: pod.to_owned(),
        holds: status
            .holder
            .as_ref()
            .is_some_and(|holder| holder.pod == pod),
        position: position.map(|index| index + 1),
        ahead: status.waiters[..position.unwrap_or_default()]
            .iter()
            .map(waiter)
            .collect(),
    }
}

fn waiter(record: &WaiterRecord) -> Waiter {
    Waiter {
        owner_id: record.owner_id.clone(),
        pod: record.pod.clone(),
        queued_at: record.queued_at.clone(),
    }
}

fn cycle(chain: &Chain<'_>) -> Vec<DeadlockParty> {
    let pod = |party: &Party<'_>| {
        let status = party.holds.status.as_ref().ok();
        let holder = status.and_then(|status| status.holder.as_ref());
        holder.map(|holder| holder.pod.clone()).unwrap_or_default()
    };
    let parties = chain.cycle.iter().flatten();
    parties
        .map(|party| DeadlockParty {
            pod: pod(party),
            holds: party.holds.spec.resource.clone(),
            waits_for: party.waits_for.spec.resource.clone(),
        })
        .collect()
}

fn link(world: &World, waits: &Waits<'_>, lock: &LockSeen) -> Link {
    let bare = Link {
        resource: lock.spec.resource.clone(),
        name: lock.name.clone(),
        owner_id: String::new(),
        pod: String::new(),
        fencing_token: 0,
        acquired_at: String::new(),
        held_for: String::new(),
        being_deleted: lock.is_being_deleted,
        kept: false,
        pod_state: String::new(),
        session: String::new(),
        freed_in_seconds: None,
        release_request: None,
        queue: Vec::new(),
        waits_for: Vec::new(),
        error: None,
    };
    match &lock.status {
        Err(error) => Link {
            error: Some(error.clone()),
            ..bare
        },
        Ok(status) => match (&status.holder, &status.lease) {
            (Some(holder), Some(lease)) => {
                held_link(world, waits, lock, (status, holder, lease), bare)
            }
            _ => Link {
                fencing_token: status.token,
                ..bare
            },
        },
    }
}

fn held_link(
    world: &World,
    waits: &Waits<'_>,
    lock: &LockSeen,
    (status, holder, lease): (&DistributedLockStatus, &Holder, &LeaseRecord),
    bare: Link,
) -> Link {
    let health = Health::of_holder(world, &lock.namespace, holder);
    Link {
        owner_id: holder.owner_id.clone(),
        pod: holder.pod.clone(),
        fencing_token: status.token,
        acquired_at: lease.acquired_at.clone(),
        held_for: about(&lease.acquired_at, world.now),
        kept: lease.kept,
        pod_state: words::pod(world, &lock.namespace, &holder.pod, &holder.pod_uid),
        session: words::health(&health),
        freed_in_seconds: match &health {
            Health::Live { freed_in, .. } => Some(freed_in.as_secs()),
            Health::Expired { .. } | Health::Revoked { .. } => Some(0),
            Health::Missing | Health::Unknown(_) => None,
        },
        release_request: words::request(lock),
        queue: status.waiters.iter().map(waiter).collect(),
        waits_for: waits.of_holder(lock).iter().map(waits_for).collect(),
        ..bare
    }
}

fn waits_for(wait: &Wait<'_>) -> WaitsFor {
    WaitsFor {
        resource: wait.lock.spec.resource.clone(),
        position: wait.position,
    }
}

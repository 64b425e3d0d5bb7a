//! What would free a lock, in its present state.

use super::format::human::human;
use super::session_health::Health;
use super::world::{Known, LockSeen, OperatorSeen, World};
use crate::text::escape;

/// Returns sentences, the gentlest way first. Empty if the lock is free.
#[must_use]
pub fn ways(world: &World, lock: &LockSeen) -> Vec<String> {
    let (name, namespace) = (&lock.name, &lock.namespace);
    let Ok(status) = &lock.status else {
        return vec![format!(
            "nothing until its object can be read; fix it with `kubectl edit dlock {name} --namespace {namespace} \
             --subresource status`"
        )];
    };
    let (Some(holder), Some(lease)) = (&status.holder, &status.lease) else {
        return Vec::new();
    };
    let mut ways = Vec::new();
    if lease.kept {
        ways.push("an acquire by another pod, while no app uses it".to_owned());
    }
    let pod = escape(&holder.pod);
    match Health::of_holder(world, namespace, holder) {
        Health::Live { freed_in, .. } => {
            ways.push("its app releases it or ends".to_owned());
            ways.push(format!(
                "its agent stops renewing its session: then it can be taken over in {}",
                human(freed_in)
            ));
            ways.push(format!("ask its app: `kubectl leasehold release {name} --namespace {namespace} --reason WHY`"));
            // Another pod can have the name by now.
            let key = (namespace.clone(), holder.pod.clone());
            let seen = world.pods.get(&key).and_then(Known::seen);
            let exists = seen
                .and_then(Option::as_ref)
                .is_some_and(|seen| seen.uid == holder.pod_uid);
            if exists {
                ways.push(format!(
                    "stop its app: `kubectl delete pod {pod} --namespace {namespace}`"
                ));
            }
            ways.push(format!(
                "if its app cannot be stopped: `kubectl leasehold release {name} --namespace {namespace} --reason WHY \
                 --force`; from then on only the fencing token protects the resource"
            ));
        }
        health @ (Health::Expired { .. } | Health::Revoked { .. } | Health::Missing) => {
            let when = after(&health);
            ways.push(match &world.operator {
                Known::Seen(OperatorSeen::Active { .. }) => {
                    format!("the operator, {when}")
                }
                Known::Seen(OperatorSeen::Absent(_)) => {
                    format!(
                        "an operator, once one is active, or in peer mode a waiting pod, {when}"
                    )
                }
                Known::Unknown(_) => {
                    format!("the operator, if one is active, or in peer mode a waiting pod, {when}")
                }
            });
        }
        Health::Unknown(_) => {
            ways.push("its app releases it or ends, or its session expires".to_owned());
        }
    }
    ways
}

/// Returns when the locks of a session that is not live are taken over.
const fn after(health: &Health) -> &'static str {
    match health {
        Health::Missing => "after the TTL of the holder's session, whose object was deleted",
        Health::Revoked { .. } => "within seconds: the holder's session was revoked",
        _ => "within seconds: the holder's session has expired",
    }
}

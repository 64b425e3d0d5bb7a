//! Checks after all faults are over: first that no grant outlives its session, and at the very end
//! that each loss is notified and each incident is recorded.

use std::time::Duration;

use leasehold::protocol::election::is_election;

use crate::admin;
use crate::app::App;
use crate::pod::Pod;
use crate::world::World;

/// A holder detects a loss by its watch, or when the agent reopens a watch after 330 seconds of
/// silence.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(345);
/// How often the state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits until no grant is left over. All apps release or fall silent and none acquires, so a grant
/// of a live session is left over. With an operator, so is a grant of an expired session. No app
/// may acquire before this: it would take over the lock and hide the leak.
pub(crate) async fn until_settled(world: &World, at_most: Duration) {
    let began = world.now();
    while let Some(held) = orphaned_grant(world) {
        let took = world.since(began);
        if took > at_most {
            let flaw = format!("{held}, and nobody asks for it");
            return world.judge("world", Err(flaw));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    world.took("until nobody holds what nobody has", world.since(began));
}

fn orphaned_grant(world: &World) -> Option<String> {
    let (now, records) = (world.now(), world.records());
    let has_operator = !world.setup().operators.is_empty();
    let mut held = records.invariants.locks().filter_map(|lock| {
        let holder = &lock.grant.as_ref()?.holder;
        let is_watched_over = has_operator || records.sessions.lives(&holder.session, now);
        let is_orphaned = is_watched_over && !is_election(&lock.resource);
        is_orphaned.then(|| format!("{} is held by {}", lock.resource, holder.session))
    });
    held.next()
}

/// Each pod's app acquires a lock that a person then ends, by deleting it or by force. The app must
/// be notified, although it has time left and its session is valid.
pub(crate) async fn ends_are_notified(world: &World, pods: &[Pod], at_most: Duration) {
    let resources = &world.setup().resources;
    for (number, pod) in pods.iter().filter(|pod| !pod.is_over()).enumerate() {
        let app = App::new(pod, 2 * world.setup().apps_per_pod);
        let resource = &resources[number % resources.len()];
        let has_operator = !world.setup().operators.is_empty();
        // With nanosecond revisions, a recreated lock would begin with smaller tokens.
        let may_be_deleted = !world.setup().counts_nanoseconds();
        if !has_operator && !may_be_deleted {
            continue;
        }
        let is_forced = has_operator && (number % 2 == 1 || !may_be_deleted);
        let end = || {
            if is_forced {
                admin::force(world, resource);
            } else {
                admin::delete_lock(world, resource);
            }
        };
        app.learns_of_its_end(resource, at_most, NOTIFIED_WITHIN, end)
            .await;
    }
}

/// With an operator, waits until the audit log has a line for every incident in a lock.
pub(crate) async fn until_recorded(world: &World, at_most: Duration) {
    let began = world.now();
    while !world.setup().operators.is_empty() {
        let unrecorded = {
            let records = world.records();
            let unrecorded = records.incidents.unrecorded(records.invariants.locks());
            unrecorded.map(|incident| format!("the audit log has nothing of {incident:?}"))
        };
        let Some(unrecorded) = unrecorded else { return };
        if world.since(began) > at_most {
            return world.judge("world", Err(unrecorded));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

//! What is looked at when nothing goes wrong any more: before anybody asks that nobody holds what nobody has, and at
//! the very end that who loses a lock hears of it, and that everything is on record.

use std::time::Duration;

use leasehold::protocol::election::is_election;

use crate::app::App;
use crate::people;
use crate::pod::Pod;
use crate::world::World;

/// Who loses a lock hears of it by its watch, or when it gives up one that has been silent for 330 seconds.
const HEARD_WITHIN: Duration = Duration::from_secs(345);
/// How often it is looked.
const LOOKED_EVERY: Duration = Duration::from_millis(500);

/// Apps let go or fall silent, and nobody asks: what a live session still holds is held for nobody. Where there is an
/// operator it frees what the dead hold, too. Who asks first would take the lock over, and nobody would notice.
pub(crate) async fn until_settled(world: &World, at_most: Duration) {
    let began = world.now();
    while let Some(held) = held_for_nobody(world) {
        let took = world.since(began);
        if took > at_most {
            let flaw = format!("{held}, and nobody asks for it");
            return world.judge("world", Err(flaw));
        }
        tokio::time::sleep(LOOKED_EVERY).await;
    }
    world.took("until nobody holds what nobody has", world.since(began));
}

fn held_for_nobody(world: &World) -> Option<String> {
    let (now, book) = (world.now(), world.book());
    let has_operator = !world.setting().operators.is_empty();
    let mut held = book.checks.locks().filter_map(|lock| {
        let holder = &lock.grant.as_ref()?.holder;
        let is_looked_after = has_operator || book.sessions.lives(&holder.session, now);
        let is_anybodys = is_looked_after && !is_election(&lock.resource);
        is_anybodys.then(|| format!("{} is held by {}", lock.resource, holder.session))
    });
    held.next()
}

/// Each pod's app has a lock that a person then ends, by deleting it or by force: it hears of that, although it had
/// time left and its session lives.
pub(crate) async fn ends_are_told(world: &World, pods: &[Pod], at_most: Duration) {
    let resources = &world.setting().resources;
    for (number, pod) in pods.iter().filter(|pod| !pod.is_over()).enumerate() {
        let app = App::new(pod, 2 * world.setting().apps_per_pod);
        let resource = &resources[number % resources.len()];
        let has_operator = !world.setting().operators.is_empty();
        // A lock that is made anew would begin with smaller tokens there.
        let may_be_deleted = !world.setting().counts_nanoseconds();
        if !has_operator && !may_be_deleted {
            continue;
        }
        let is_forced = has_operator && (number % 2 == 1 || !may_be_deleted);
        let end = || {
            if is_forced {
                people::force(world, resource);
            } else {
                people::delete_lock(world, resource);
            }
        };
        app.hears_of_its_end(resource, at_most, HEARD_WITHIN, end)
            .await;
    }
}

/// Where there is an operator, the audit log has a line for every incident that is in a lock.
pub(crate) async fn until_recorded(world: &World, at_most: Duration) {
    let began = world.now();
    while !world.setting().operators.is_empty() {
        let untold = {
            let book = world.book();
            let untold = book.incidents.untold(book.checks.locks());
            untold.map(|incident| format!("the audit log has nothing of {incident:?}"))
        };
        let Some(untold) = untold else { return };
        if world.since(began) > at_most {
            return world.judge("world", Err(untold));
        }
        tokio::time::sleep(LOOKED_EVERY).await;
    }
}

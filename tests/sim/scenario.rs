//! The course of a world: pods start, and their apps work while faults happen. Then everything is
//! healed, and every live app is served.

use std::time::Duration;

use fastrand::Rng;
use leasehold::protocol::election::is_election;
use tokio::task::JoinSet;

use crate::app::App;
use crate::faults::Faults;
use crate::final_checks;
use crate::operator::Replica;
use crate::pod::Pod;
use crate::world::World;

/// After everything is healed each app gets each lock within this number of TTLs.
const SERVED_WITHIN: u32 = 20;
/// How often the final state is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn run(world: World, mut random: Rng) {
    let setup = world.setup();
    let pods: Vec<Pod> = (0..setup.gains.len())
        .map(|number| Pod::new(&world, number, &mut random))
        .collect();
    for pod in &pods {
        pod.start_sidecar();
        pod.start_apps();
    }
    let gains = setup.operators.iter().enumerate();
    let replicas: Vec<Replica> = gains
        .map(|(number, gain)| Replica::new(&world, number, *gain, &mut random))
        .collect();
    for replica in &replicas {
        replica.start();
    }
    Faults::new(&world, &pods, &replicas, random).run().await;
    world.note("world", "everything is healed");
    let at_most = setup.ttl.get() * SERVED_WITHIN;
    final_checks::until_settled(&world, at_most).await;
    let mut served = JoinSet::new();
    for pod in pods.iter().filter(|pod| !pod.is_over()) {
        for number in 0..setup.apps_per_pod {
            let app = App::new(pod, setup.apps_per_pod + number);
            served.spawn(app.have_each_once(at_most));
        }
    }
    while let Some(ended) = served.join_next().await {
        let crashed = |error| format!("an app crashed: {error}");
        world.judge("world", ended.map_err(crashed));
    }
    until_free(&world, at_most).await;
    final_checks::ends_are_notified(&world, &pods, at_most).await;
    final_checks::until_recorded(&world, at_most).await;
}

/// Waits until no lock is held or has waiters, including those of expired sessions and of apps that
/// stopped waiting.
async fn until_free(world: &World, at_most: Duration) {
    let began = world.now();
    loop {
        let held = {
            let records = world.records();
            let mut locks = records.invariants.locks();
            locks
                .find(|lock| lock.grant.is_some() && !is_election(&lock.resource))
                .map(|lock| lock.resource.clone())
        };
        let Some(resource) = held else { return };
        if world.since(began) > at_most {
            return world.judge("world", Err(format!("{resource} is held for nobody")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

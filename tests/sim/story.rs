//! The story of a world: pods come up, their apps work while things go wrong, then everything is mended and
//! whoever is alive gets what it waits for.

use std::time::Duration;

use fastrand::Rng;
use leasehold::protocol::election::is_election;
use tokio::task::JoinSet;

use crate::app::App;
use crate::epilogue;
use crate::operator::Replica;
use crate::pod::Pod;
use crate::troubles::Troubles;
use crate::world::World;

/// After everything is mended each app has had each lock within so many TTLs.
const SERVED_WITHIN: u32 = 20;
/// How often it is looked whether all is free in the end.
const LOOKED_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn tell(world: World, mut random: Rng) {
    let setting = world.setting();
    let pods: Vec<Pod> = (0..setting.gains.len())
        .map(|number| Pod::new(&world, number, &mut random))
        .collect();
    for pod in &pods {
        pod.start_sidecar();
        pod.start_apps();
    }
    let gains = setting.operators.iter().enumerate();
    let replicas: Vec<Replica> = gains
        .map(|(number, gain)| Replica::new(&world, number, *gain, &mut random))
        .collect();
    for replica in &replicas {
        replica.start();
    }
    Troubles::new(&world, &pods, &replicas, random)
        .go_on()
        .await;
    world.note("world", "everything is mended");
    let at_most = setting.ttl.get() * SERVED_WITHIN;
    epilogue::until_settled(&world, at_most).await;
    let mut served = JoinSet::new();
    for pod in pods.iter().filter(|pod| !pod.is_over()) {
        for number in 0..setting.apps_per_pod {
            let app = App::new(pod, setting.apps_per_pod + number);
            served.spawn(app.have_each_once(at_most));
        }
    }
    while let Some(ended) = served.join_next().await {
        let died = |error| format!("an app died: {error}");
        world.judge("world", ended.map_err(died));
    }
    until_free(&world, at_most).await;
    epilogue::ends_are_told(&world, &pods, at_most).await;
    epilogue::until_recorded(&world, at_most).await;
}

/// Nobody holds anything any more, and nobody waits: neither the dead nor who gave up.
async fn until_free(world: &World, at_most: Duration) {
    let began = world.now();
    loop {
        let held = {
            let book = world.book();
            let mut locks = book.checks.locks();
            locks
                .find(|lock| lock.grant.is_some() && !is_election(&lock.resource))
                .map(|lock| lock.resource.clone())
        };
        let Some(resource) = held else { return };
        if world.since(began) > at_most {
            return world.judge("world", Err(format!("{resource} is held for nobody")));
        }
        tokio::time::sleep(LOOKED_EVERY).await;
    }
}

//! Namespaces that restrict the resources they lock.

use std::time::Duration;

use kube::Client;
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;

use super::fixture::{Expect, Outcome, bare_lock};
use super::world::World;
use crate::harness::{PATIENCE, TakeOver, eventually};

/// How long the API server may take to know a namespace's annotation.
const EFFECT: Duration = PATIENCE;

impl World {
    /// Sets the namespace's annotation, and waits until it counts.
    async fn allow_prefixes(&self, prefixes: &str) {
        let command = format!(
            "kubectl annotate namespace {} leasehold.dev/allowed-prefixes='{prefixes}'",
            self.name()
        );
        self.shell(&command).await;
        let mut tries = 0;
        eventually("the prefixes to count", EFFECT, async || {
            tries += 1;
            let other = format!("not-allowed-{tries}");
            self.make(&self.admin, &other).await.err().map(drop)
        })
        .await
        .expect("a refusal");
    }

    async fn make(&self, client: &Client, resource: &str) -> Outcome {
        let guarded = Resource::parse(resource).expect("a resource");
        let mut lock = bare_lock(&object_name(&guarded));
        lock.spec.resource = resource.to_owned();
        self.create(client, &lock).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_locks_only_resources_that_its_annotation_allows() {
    let world = World::new(TakeOver::Strict).await;
    let pod = world.pod("a").await;
    world.make(&pod.client, "anything").await.allowed();

    world.allow_prefixes("orders/, billing-").await;
    for resource in ["orders/4711", "billing-close"] {
        world.make(&pod.client, resource).await.allowed();
    }
    let told = format!(
        "in namespace {} a resource must begin with orders/ or billing- (its annotation \
         leasehold.dev/allowed-prefixes); name the resource so",
        world.name()
    );
    for resource in [
        "order",
        "my-orders/4711",
        "Orders/4711",
        "stock",
        " orders/1",
    ] {
        world.make(&pod.client, resource).await.refused(&told);
        world.make(&world.admin, resource).await.refused(&told);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_older_than_the_annotation_stays_usable() {
    let world = World::new(TakeOver::Strict).await;
    let pod = world.pod("a").await;
    let lock = world.lock(None).await;
    world.allow_prefixes("orders/").await;
    world
        .write(&pod.client, &lock, |status| {
            super::fixture::grant(status, &pod);
        })
        .await
        .allowed();
}

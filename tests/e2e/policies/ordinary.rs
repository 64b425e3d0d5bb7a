//! The ordinary writes, which the policies let through without a closer look, and what is like them
//! but for one thing.

use leasehold::crd::lock::{DistributedLockStatus as Status, Holder};

use super::stage::{Expect, TOKEN, free, grant, holder, incident, waiter};
use super::world::{User, World};
use crate::harness::TakeOver;

/// A change of a status by a pod, beside another pod.
type Change = fn(&mut Status, &User, &User);

/// What a taking or freeing write may not do besides, and what it is told.
const BESIDES: [(Change, &str); 3] = [
    (|status, _, _| status.incidents.clear(), RECORD),
    (
        |status, a, _| {
            let forged = incident("ReleasedOnRequest", a, "person");
            status.incidents.insert(0, forged);
        },
        RECORD,
    ),
    (|status, _, _| status.incidents[0].reason.push('!'), RECORD),
];

const RECORD: &str = "status.incidents is a record";

fn held(status: &mut Status) -> &mut Holder {
    status.holder.as_mut().expect("a holder")
}

/// A lock that somebody lost once.
fn with_a_past(other: &User) -> Status {
    Status {
        token: TOKEN,
        transitions: 7,
        incidents: vec![incident("Expired", other, "op")],
        ..Status::default()
    }
}

#[tokio::test]
async fn to_take_a_free_lock_is_looked_at_when_anything_else_changes() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let world = World::new(mode).await;
        let (a, b) = (world.pod("a").await, world.pod("b").await);
        let lock = world.lock(Some(with_a_past(&b))).await;
        let takes: [(Change, &str); 4] = [
            (|status, _, b| *held(status) = holder(b), "must name pod a"),
            (
                |status, _, b| held(status).pod.clone_from(&b.name),
                "must name pod a",
            ),
            (
                |status, _, b| held(status).pod_uid.clone_from(&b.uid),
                "must name pod a",
            ),
            (
                |status, _, b| status.waiters.push(waiter(b)),
                "others have waited longer",
            ),
        ];
        for (besides, words) in takes.into_iter().chain(BESIDES) {
            let take = |status: &mut Status| {
                grant(status, &a);
                besides(status, &a, &b);
            };
            world.write(&a.client, &lock, take).await.refused(words);
        }
        world
            .write(&a.client, &lock, |status| grant(status, &a))
            .await
            .allowed();
    }
}

#[tokio::test]
async fn to_free_ones_own_lock_is_looked_at_when_anything_else_changes() {
    for (mode, foreign) in [
        (TakeOver::Strict, "only the operator ends a grant"),
        (TakeOver::Peer, "record the incident in the same write"),
    ] {
        let world = World::new(mode).await;
        let (a, b) = (world.pod("a").await, world.pod("b").await);
        let mut taken = with_a_past(&b);
        grant(&mut taken, &a);
        taken.token = TOKEN;
        let lock = world.lock(Some(taken)).await;
        world
            .write(&a.client, &lock, |status| held(status).pod.push('x'))
            .await
            .refused("this grant is another pod's");
        let frees: [(Change, &str); 4] = [
            (
                |status, a, _| {
                    let unasked = incident("ReleasedOnRequest", a, "person");
                    status.incidents.push(unasked);
                },
                "nobody asked for this release",
            ),
            (|status, _, _| status.token += 1000, "status.token"),
            (|status, _, _| status.transitions += 1, "status.transitions"),
            (|status, _, _| status.transitions = 0, "status.transitions"),
        ];
        for (besides, words) in frees.into_iter().chain(BESIDES) {
            let release = |status: &mut Status| {
                free(status);
                besides(status, &a, &b);
            };
            world.write(&a.client, &lock, release).await.refused(words);
        }
        world.write(&b.client, &lock, free).await.refused(foreign);
        world.write(&a.client, &lock, free).await.allowed();

        let lock = world.held(&a, &[&b]).await;
        world
            .write(&a.client, &lock, free)
            .await
            .refused("handing it to the first");
    }
}

/// An agent outside of any pod has no uid, and neither has a token that is bound to none.
#[tokio::test]
async fn no_uid_is_nobodys_uid() {
    let world = World::new(TakeOver::Peer).await;
    let a = world.pod("a").await;
    let unbound = world.unbound().await;
    let words = "this ServiceAccount token is not bound to a pod";
    let nobody = |status: &mut Status| {
        grant(status, &a);
        status.holder = Some(Holder {
            pod_uid: String::new(),
            ..holder(&a)
        });
    };
    let lock = world.lock(None).await;
    world.write(&unbound, &lock, nobody).await.refused(words);
    world.write(&world.admin, &lock, nobody).await.allowed();
    world.write(&unbound, &lock, free).await.refused(words);
    world
        .write(&a.client, &lock, free)
        .await
        .refused("this grant belongs to pod a");
}

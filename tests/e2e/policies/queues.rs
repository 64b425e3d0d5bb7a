//! Joining the queue and handing the lock on, which the policies let through without a closer look,
//! and what is like them but for one thing.

use leasehold::crd::lock::{
    DistributedLockStatus as Status, Holder, IncidentRecord, LeaseRecord, ReleaseMode,
    ReleaseRequest, WaiterRecord,
};

use super::stage::{
    ASKER, Expect, Outcome, TOKEN, grant, incident, longest_entry, longest_incident, request,
    second_entry, waiter,
};
use super::world::{User, World};
use crate::harness::TakeOver;

/// Who has the lock, who waits for it in this order, and one who has nothing to do with it yet.
struct Crowd {
    holder: User,
    first: User,
    second: User,
    third: User,
    stranger: User,
}

/// A change of a status.
type Change = fn(&mut Status, &Crowd);

const RECORD: &str = "status.incidents is a record";
const ORDER: &str = "the order of status.waiters";
const ITSELF: &str = "a pod queues itself and nobody else";
const NOBODY_BUT_ITSELF: &str = "a pod removes nobody but itself";
const MISNAMED: &str = "a pod takes a lock for itself or hands it to a waiter";
const LONGER: &str = "others have waited longer for this lock";
const NOBODY_ELSE: &str = "handing it to the first of status.waiters, and remove nobody else";
const FOREIGN: &str = "this grant is another pod's";
const COUNTS: &str = "status.token and status.transitions change with a new grant only";
/// The definition's own rule.
const HAS_IT: &str = "holds the lock and cannot wait for it too";
/// Two policies refuse it, and either may come first.
const BOTH: &str = "of status.waiters";
const UNBOUND: &str = "this ServiceAccount token is not bound to a pod";

/// What may be done to the record of incidents in neither of the two.
const INCIDENTS: [(Change, &str); 4] = [
    (|status, _| status.incidents.clear(), RECORD),
    (|status, _| status.incidents[0].reason.push('!'), RECORD),
    (
        |status, crowd| {
            let forged = incident("Expired", &crowd.stranger, "op");
            status.incidents.insert(0, forged);
        },
        RECORD,
    ),
    (
        |status, crowd| {
            let forged = incident("ForceReleased", &crowd.holder, &crowd.holder.name);
            status.incidents.push(forged);
        },
        RECORD,
    ),
];

/// Whom the lock may not go to instead of to the first, and what is told.
const INSTEAD_OF_A_HAND_OVER: [(Change, &str); 5] = [
    (|status, crowd| grant(status, &crowd.second), LONGER),
    (
        |status, crowd| {
            grant(status, &crowd.second);
            leave(status, &crowd.first);
        },
        NOBODY_ELSE,
    ),
    // To the holder itself, under another id; then with an entry of its own for the head's.
    (
        |status, crowd| {
            grant(status, &crowd.holder);
            lease(status).id.push('x');
        },
        LONGER,
    ),
    (
        |status, crowd| {
            grant(status, &crowd.holder);
            lease(status).id.push('x');
            status.waiters[0] = second_entry(&crowd.holder);
        },
        BOTH,
    ),
    (|status, crowd| grant(status, &crowd.stranger), MISNAMED),
];

/// What may not be done beside handing the lock to the first, and what is told.
const BESIDE_A_HAND_OVER: [(Change, &str); 17] = [
    (
        |status, crowd| {
            let unasked = incident("ReleasedOnRequest", &crowd.holder, ASKER);
            status.incidents.push(unasked);
        },
        "nobody asked for this release",
    ),
    (
        |status, crowd| status.waiters.insert(0, waiter(&crowd.first)),
        HAS_IT,
    ),
    (
        |status, crowd| status.waiters.insert(0, second_entry(&crowd.holder)),
        ITSELF,
    ),
    // The new holder is not who waited.
    (
        |status, crowd| held(status).pod_uid.clone_from(&crowd.stranger.uid),
        MISNAMED,
    ),
    (
        |status, crowd| held(status).pod_uid.clone_from(&crowd.holder.uid),
        MISNAMED,
    ),
    (
        |status, crowd| held(status).pod.clone_from(&crowd.stranger.name),
        MISNAMED,
    ),
    (|status, _| held(status).session.push('x'), MISNAMED),
    (|status, _| held(status).owner_id.push('x'), MISNAMED),
    (|status, _| lease(status).id.push('x'), BOTH),
    // Somebody else in the queue is touched.
    (|status, _| status.waiters.reverse(), ORDER),
    (|status, _| drop(status.waiters.remove(0)), NOBODY_ELSE),
    (|status, _| drop(status.waiters.pop()), NOBODY_ELSE),
    (|status, _| status.waiters.clear(), NOBODY_ELSE),
    (|status, _| status.waiters[0].owner_id.push('x'), BOTH),
    (
        |status, crowd| status.waiters.push(waiter(&crowd.stranger)),
        ITSELF,
    ),
    // The definition's own rules.
    (|status, _| status.token = TOKEN - 1000, "status.token can"),
    (
        |status, _| status.token = TOKEN + 999,
        "at least 1000 above",
    ),
];

/// What may not be done beside joining the queue, and what is told.
const BESIDE_JOINING: [(Change, &str); 19] = [
    // The entry is another's, not the last one, or not the only one.
    (
        |status, crowd| *last(status) = waiter(&crowd.stranger),
        ITSELF,
    ),
    (
        |status, crowd| last(status).pod_uid.clone_from(&crowd.stranger.uid),
        ITSELF,
    ),
    (
        |status, crowd| last(status).pod.clone_from(&crowd.stranger.name),
        ITSELF,
    ),
    (|status, _| status.waiters.rotate_right(1), ITSELF),
    (
        |status, crowd| status.waiters.push(second_entry(&crowd.third)),
        ITSELF,
    ),
    (
        |status, crowd| {
            let again = WaiterRecord {
                lease_id: "another".to_owned(),
                ..waiter(&crowd.third)
            };
            status.waiters.push(again);
        },
        // The definition refuses it first.
        "status.waiters",
    ),
    // Its id is taken.
    (
        |status, _| last(status).lease_id = lease(status).id.clone(),
        HAS_IT,
    ),
    (
        |status, crowd| last(status).lease_id = waiter(&crowd.first).lease_id,
        ITSELF,
    ),
    (
        |status, crowd| last(status).lease_id = waiter(&crowd.second).lease_id,
        ITSELF,
    ),
    // Somebody else in the queue is touched.
    (|status, _| status.waiters.swap(0, 1), ORDER),
    (
        |status, _| drop(status.waiters.remove(0)),
        NOBODY_BUT_ITSELF,
    ),
    (
        |status, _| drop(status.waiters.remove(1)),
        NOBODY_BUT_ITSELF,
    ),
    (|status, _| status.waiters[1].owner_id.push('x'), ITSELF),
    // The grant is touched.
    (|status, _| lease(status).kept = true, FOREIGN),
    (|status, _| held(status).owner_id.push('x'), FOREIGN),
    (|status, _| held(status).session_ttl_seconds = 3, FOREIGN),
    (|status, _| status.token += 1000, COUNTS),
    (|status, _| status.transitions += 1, COUNTS),
    (|status, _| status.transitions = 0, COUNTS),
];

fn held(status: &mut Status) -> &mut Holder {
    status.holder.as_mut().expect("a holder")
}

fn lease(status: &mut Status) -> &mut LeaseRecord {
    status.lease.as_mut().expect("a lease")
}

fn last(status: &mut Status) -> &mut WaiterRecord {
    status.waiters.last_mut().expect("somebody who waits")
}

fn leave(status: &mut Status, pod: &User) {
    status.waiters.retain(|entry| entry.pod != pod.name);
}

/// A world, and a lock in it with a past for which some wait.
struct Scene {
    world: World,
    crowd: Crowd,
    lock: String,
}

impl Scene {
    async fn new(mode: TakeOver, third_waits: bool) -> Self {
        let world = World::new(mode).await;
        let [holder, first, second, third, stranger] = world.pods(["a", "b", "c", "d", "e"]).await;
        let mut status = Status::default();
        grant(&mut status, &holder);
        status.token = TOKEN;
        status.waiters = vec![waiter(&first), waiter(&second)];
        if third_waits {
            status.waiters.push(waiter(&third));
        }
        status.incidents = vec![incident("Expired", &stranger, "op")];
        let lock = world.lock(Some(status)).await;
        let crowd = Crowd {
            holder,
            first,
            second,
            third,
            stranger,
        };
        Self { world, crowd, lock }
    }

    /// A write by somebody of the crowd.
    async fn write(&self, by: &User, change: impl FnOnce(&mut Status)) -> Outcome {
        self.world.write(&by.client, &self.lock, change).await
    }
}

#[tokio::test]
async fn to_hand_a_lock_on_is_looked_at_when_anything_else_changes() {
    for (mode, foreign) in [
        (TakeOver::Strict, "only the operator ends a grant"),
        (TakeOver::Peer, "record the incident in the same write"),
    ] {
        let scene = Scene::new(mode, true).await;
        let crowd = &scene.crowd;
        let hand_over = |status: &mut Status| grant(status, &crowd.first);
        for (instead, words) in INSTEAD_OF_A_HAND_OVER {
            let answer = scene.write(&crowd.holder, |status| instead(status, crowd));
            answer.await.refused(words);
        }
        for (beside, words) in BESIDE_A_HAND_OVER.into_iter().chain(INCIDENTS) {
            let write = |status: &mut Status| {
                hand_over(status);
                beside(status, crowd);
            };
            let answer = scene.write(&crowd.holder, write);
            answer.await.refused(words);
        }
        // By somebody whose lock it is not: the receiver, one behind it, and one who does not wait.
        for by in [&crowd.first, &crowd.second, &crowd.stranger] {
            scene.write(by, hand_over).await.refused(foreign);
        }
        let unbound = scene.world.unbound().await;
        let answer = scene.world.write(&unbound, &scene.lock, hand_over);
        answer.await.refused(UNBOUND);

        let handed = scene.write(&crowd.holder, hand_over);
        handed.await.allowed();
        let handed = scene.write(&crowd.first, |status| grant(status, &crowd.second));
        handed.await.allowed();
        let handed = scene.write(&crowd.second, |status| grant(status, &crowd.third));
        handed.await.allowed();
    }
}

#[tokio::test]
async fn to_join_a_queue_is_looked_at_when_anything_else_changes() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let scene = Scene::new(mode, false).await;
        let crowd = &scene.crowd;
        let join = |status: &mut Status| status.waiters.push(waiter(&crowd.third));
        for (beside, words) in BESIDE_JOINING.into_iter().chain(INCIDENTS) {
            let write = |status: &mut Status| {
                join(status);
                beside(status, crowd);
            };
            let answer = scene.write(&crowd.third, write);
            answer.await.refused(words);
        }
        // In the name of one who waits already, by him who gains a place.
        let instead = |status: &mut Status| status.waiters[0] = waiter(&crowd.third);
        let answer = scene.write(&crowd.third, instead).await;
        answer.refused(ITSELF);
        // By anybody but him whom it names.
        for by in [&crowd.holder, &crowd.first, &crowd.stranger] {
            scene.write(by, join).await.refused(ITSELF);
        }
        let unbound = scene.world.unbound().await;
        let answer = scene.world.write(&unbound, &scene.lock, join);
        answer.await.refused(UNBOUND);

        scene.write(&crowd.third, join).await.allowed();
        let first_to_wait = scene.world.held(&crowd.holder, &[]).await;
        let joined = scene.world.write(&crowd.third.client, &first_to_wait, join);
        joined.await.allowed();
    }
}

fn preferred(pod: &User) -> WaiterRecord {
    WaiterRecord {
        preferred: true,
        ..waiter(pod)
    }
}

/// The third pod takes the place behind the only preferred one.
fn behind_the_preferred(status: &mut Status, crowd: &Crowd) {
    status.waiters.insert(1, preferred(&crowd.third));
}

/// Where a preferred candidate may not stand, and who may not be preferred.
const INSTEAD_OF_A_PREFERRED_PLACE: [(Change, &str); 5] = [
    (
        |status, crowd| status.waiters.insert(0, preferred(&crowd.third)),
        ITSELF,
    ),
    (
        |status, crowd| status.waiters.push(preferred(&crowd.third)),
        ITSELF,
    ),
    (
        |status, crowd| status.waiters.insert(1, waiter(&crowd.third)),
        ITSELF,
    ),
    (
        |status, crowd| status.waiters.insert(1, preferred(&crowd.stranger)),
        ITSELF,
    ),
    (|status, _| status.waiters[1].preferred = true, ITSELF),
];

/// What may not be done beside taking a preferred place.
const BESIDE_A_PREFERRED_PLACE: [(Change, &str); 6] = [
    (|status, _| status.waiters[2].preferred = true, ITSELF),
    (|status, _| status.waiters[0].preferred = false, ITSELF),
    (
        |status, crowd| status.waiters.push(second_entry(&crowd.third)),
        ITSELF,
    ),
    (|status, _| status.waiters.swap(0, 2), ITSELF),
    (|status, _| drop(status.waiters.pop()), NOBODY_BUT_ITSELF),
    (|status, _| status.token += 1000, COUNTS),
];

/// A preferred place is what only an election has, and only right behind those that have one.
#[tokio::test]
async fn a_preferred_place_is_behind_the_preferred_ones_and_only_in_an_election() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let scene = Scene::new(mode, false).await;
        let (world, crowd) = (&scene.world, &scene.crowd);
        let mut status = Status::default();
        grant(&mut status, &crowd.holder);
        status.token = TOKEN;
        status.waiters = vec![preferred(&crowd.first), waiter(&crowd.second)];
        let election = world.election(status).await;
        for (instead, words) in INSTEAD_OF_A_PREFERRED_PLACE {
            let write = |status: &mut Status| instead(status, crowd);
            let answer = world.write(&crowd.third.client, &election, write);
            answer.await.refused(words);
        }
        for (beside, words) in BESIDE_A_PREFERRED_PLACE {
            let write = |status: &mut Status| {
                behind_the_preferred(status, crowd);
                beside(status, crowd);
            };
            let answer = world.write(&crowd.third.client, &election, write);
            answer.await.refused(words);
        }
        let enter = |status: &mut Status| behind_the_preferred(status, crowd);
        let by_another = world.write(&crowd.stranger.client, &election, enter);
        by_another.await.refused(ITSELF);
        let entered = world.write(&crowd.third.client, &election, enter);
        entered.await.allowed();
        for (holder, next) in [(&crowd.holder, &crowd.first), (&crowd.first, &crowd.third)] {
            let hand_over = |status: &mut Status| grant(status, next);
            let handed = world.write(&holder.client, &election, hand_over);
            handed.await.allowed();
        }

        // Of any other lock.
        for place in [0, 2] {
            let enter = |status: &mut Status| status.waiters.insert(place, preferred(&crowd.third));
            scene.write(&crowd.third, enter).await.refused(ITSELF);
        }
    }
}

/// As long as a queue can be, with names as long as they can be: the API server gives each
/// policy's evaluation a budget, and who exceeds it is refused.
#[tokio::test]
async fn a_full_queue_is_joined_and_handed_on() {
    let scene = Scene::new(TakeOver::Strict, false).await;
    let crowd = &scene.crowd;
    let head = waiter(&crowd.first);
    let lock = scene.world.held(&crowd.holder, &[]).await;
    let fill = |status: &mut Status| {
        status.waiters = vec![head];
        status
            .waiters
            .extend((0..30).map(|n| longest_entry(n, &crowd.stranger)));
    };
    scene
        .world
        .write(&scene.world.admin, &lock, fill)
        .await
        .allowed();
    let join = |status: &mut Status| status.waiters.push(waiter(&crowd.third));
    let joined = scene.world.write(&crowd.third.client, &lock, join);
    joined.await.allowed();
    let hand_over = |status: &mut Status| grant(status, &crowd.first);
    let handed = scene.world.write(&crowd.holder.client, &lock, hand_over);
    handed.await.allowed();

    // On the record, which is full too: this is looked at from all sides.
    let lock = scene.world.held(&crowd.holder, &[]).await;
    let fill = |status: &mut Status| {
        status.waiters = vec![waiter(&crowd.first)];
        let others = (0..31).map(|n| longest_entry(n, &crowd.stranger));
        status.waiters.extend(others);
        status.incidents = (0..8)
            .map(|n| longest_incident(n, &crowd.stranger))
            .collect();
    };
    let filled = scene.world.write(&scene.world.admin, &lock, fill).await;
    filled.allowed();
    let reason = "x".repeat(1024);
    let wanted = ReleaseRequest {
        reason: reason.clone(),
        ..request(&format!("g-a.{}", "0".repeat(60)), ReleaseMode::Ask)
    };
    let wanted = scene.world.ask(&scene.world.admin, &lock, Some(wanted));
    wanted.await.allowed();
    let asked = |status: &mut Status| {
        let incident = IncidentRecord {
            reason,
            ..incident("ReleasedOnRequest", &crowd.holder, ASKER)
        };
        status.incidents.remove(0);
        status.incidents.push(incident);
        hand_over(status);
    };
    let handed = scene.world.write(&crowd.holder.client, &lock, asked);
    handed.await.allowed();
}

//! What holds the operator itself, whatever rights it has: to whom it gives a lock, and what it must
//! put on record.

use kube::Api;
use kube::api::PostParams;
use leasehold::crd::lock::{
    ConditionRecord, DistributedLock, DistributedLockStatus as Status, IncidentRecord, ReleaseMode,
    ReleaseRequest,
};
use leasehold::k8s::names::object_name;
use leasehold::protocol::ids::Resource;

use super::stage::{
    ASKER, Expect, TIME, TOKEN, bare_lock, free, grant, incident, longest_entry, longest_incident,
    outcome, request, second_entry, waiter,
};
use super::world::{User, World};
use crate::harness::{OPERATOR_NAMESPACE, TakeOver};

/// Who has the lock, who waits for it in this order, and one who has nothing to do with it.
struct Crowd {
    holder: User,
    first: User,
    second: User,
    stranger: User,
}

/// What the operator makes of a status.
type Change = fn(&mut Status, &Crowd);

const NOBODY_BUT: &str = "nobody but the first of status.waiters that is left";
const DROPS: &str = "drops entries of status.waiters and does nothing else";
const LEAVES: &str = "ends a grant or leaves it alone";
const COUNTS: &str = "status.token and status.transitions change with a new grant only";
const RECORD: &str = "status.incidents is a record";
const BY_FORCE: &str = "by force only for a spec.releaseRequest with mode Force";

fn recorded(status: &mut Status, crowd: &Crowd, kind: &str) {
    status.incidents.push(ended(crowd, kind));
}

fn ended(crowd: &Crowd, kind: &str) -> IncidentRecord {
    IncidentRecord {
        lease_id: Some("g-a".to_owned()),
        ..incident(kind, &crowd.holder, "leasehold-operator")
    }
}

/// The dead holder's lock goes to the first, on the record.
fn hand_over(status: &mut Status, crowd: &Crowd) {
    recorded(status, crowd, "Expired");
    grant(status, &crowd.first);
}

/// The first is dead too.
fn hand_over_to_the_second(status: &mut Status, crowd: &Crowd) {
    recorded(status, crowd, "PodEnded");
    grant(status, &crowd.second);
    status.waiters.clear();
}

fn mark(status: &mut Status) {
    status.conditions.push(ConditionRecord {
        r#type: "LongHeld".to_owned(),
        status: "True".to_owned(),
        reason: "HeldTooLong".to_owned(),
        message: "test".to_owned(),
        last_transition_time: TIME.to_owned(),
    });
}

const ITS_WORK: [Change; 6] = [
    hand_over,
    hand_over_to_the_second,
    |status, crowd| {
        recorded(status, crowd, "Expired");
        free(status);
    },
    |status, _| mark(status),
    |status, crowd| {
        mark(status);
        hand_over(status, crowd);
        status.conditions.clear();
    },
    |status, _| drop(status.waiters.remove(0)),
];

const NOT_ITS_WORK: [(Change, &str); 22] = [
    // To somebody who did not wait, or not for so long.
    (
        |status, crowd| {
            recorded(status, crowd, "Expired");
            grant(status, &crowd.stranger);
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            recorded(status, crowd, "Expired");
            grant(status, &crowd.stranger);
            status.waiters.clear();
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            recorded(status, crowd, "Expired");
            grant(status, &crowd.second);
        },
        NOBODY_BUT,
    ),
    // In the name of one who waits, to another.
    (
        |status, crowd| {
            hand_over(status, crowd);
            let holder = status.holder.as_mut().expect("held");
            holder.pod_uid.clone_from(&crowd.stranger.uid);
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            hand_over(status, crowd);
            let holder = status.holder.as_mut().expect("held");
            holder.pod.clone_from(&crowd.stranger.name);
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            hand_over(status, crowd);
            status.holder.as_mut().expect("held").session.push('x');
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            hand_over(status, crowd);
            status.holder.as_mut().expect("held").owner_id.push('x');
        },
        NOBODY_BUT,
    ),
    (
        |status, crowd| {
            hand_over(status, crowd);
            status.lease.as_mut().expect("held").id.push('x');
        },
        NOBODY_BUT,
    ),
    // To the same holder, under another id.
    (
        |status, crowd| {
            recorded(status, crowd, "Expired");
            status.lease.as_mut().expect("held").id.push('x');
            status.token += 1000;
        },
        NOBODY_BUT,
    ),
    // The queue.
    (
        |status, crowd| status.waiters.push(waiter(&crowd.stranger)),
        DROPS,
    ),
    (
        |status, crowd| status.waiters[0] = waiter(&crowd.stranger),
        DROPS,
    ),
    (|status, _| status.waiters.reverse(), DROPS),
    (
        |status, crowd| {
            hand_over(status, crowd);
            status.waiters.push(second_entry(&crowd.stranger));
        },
        DROPS,
    ),
    // The grant, as it lasts.
    (
        |status, _| status.holder.as_mut().expect("held").owner_id.push('x'),
        LEAVES,
    ),
    (
        |status, _| status.lease.as_mut().expect("held").kept = true,
        LEAVES,
    ),
    (|status, _| status.token += 1000, COUNTS),
    (|status, _| status.transitions += 1, COUNTS),
    // The record.
    (|status, crowd| grant(status, &crowd.first), RECORD),
    (|status, _| free(status), RECORD),
    (|status, crowd| recorded(status, crowd, "Expired"), RECORD),
    (|status, _| status.incidents.clear(), RECORD),
    (
        |status, crowd| {
            hand_over(status, crowd);
            status.incidents.remove(0);
        },
        RECORD,
    ),
];

/// What an incident may not say of the grant that ends.
const FALSE_RECORDS: [fn(&mut IncidentRecord); 6] = [
    |incident| incident.lease_id = None,
    |incident| incident.lease_id = Some("g-b".to_owned()),
    |incident| incident.token += 1,
    |incident| incident.owner_id.push('x'),
    |incident| incident.pod.push('x'),
    |incident| "ReleasedOnRequest".clone_into(&mut incident.kind),
];

/// What an incident says of who asked: just that.
const AS_ASKED: fn(&mut IncidentRecord) = |_| ();

/// A lock with a past for which two wait.
async fn scene(world: &World) -> (Crowd, Status) {
    let [holder, first, second, stranger] = world.pods(["a", "b", "c", "d"]).await;
    let mut status = Status::default();
    grant(&mut status, &holder);
    status.token = TOKEN;
    status.waiters = vec![waiter(&first), waiter(&second)];
    status.incidents = vec![incident("Expired", &stranger, "op")];
    let crowd = Crowd {
        holder,
        first,
        second,
        stranger,
    };
    (crowd, status)
}

#[tokio::test]
async fn the_operator_gives_a_lock_to_the_first_who_is_left_and_puts_it_on_record() {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let world = World::new(mode).await;
        let (crowd, status) = scene(&world).await;
        let operator = world.operator().await;
        for change in ITS_WORK {
            let lock = world.lock(Some(status.clone())).await;
            let done = world.write(&operator, &lock, |status| change(status, &crowd));
            done.await.allowed();
        }
        let lock = world.lock(Some(status)).await;
        for (change, words) in NOT_ITS_WORK {
            let answer = world.write(&operator, &lock, |status| change(status, &crowd));
            answer.await.refused(words);
        }
        for falsify in FALSE_RECORDS {
            let write = |status: &mut Status| {
                hand_over(status, &crowd);
                falsify(status.incidents.last_mut().expect("a record"));
            };
            world.write(&operator, &lock, write).await.refused(RECORD);
        }
    }
}

#[tokio::test]
async fn the_operator_gives_nobody_a_free_lock() {
    let world = World::new(TakeOver::Strict).await;
    let (crowd, _) = scene(&world).await;
    let operator = world.operator().await;
    let lock = world.lock(None).await;
    let take = |status: &mut Status| grant(status, &crowd.stranger);
    world
        .write(&operator, &lock, take)
        .await
        .refused(NOBODY_BUT);
}

/// Records are full, and the oldest makes room.
#[tokio::test]
async fn the_operator_drops_the_oldest_record_for_the_newest_and_no_other() {
    let world = World::new(TakeOver::Strict).await;
    let (crowd, mut status) = scene(&world).await;
    let operator = world.operator().await;
    status.incidents = (0..8)
        .map(|token| IncidentRecord {
            token,
            ..incident("Expired", &crowd.stranger, "op")
        })
        .collect();
    let lock = world.lock(Some(status)).await;
    for (dropped, is_fine) in [(7, false), (1, false), (0, true)] {
        let write = |status: &mut Status| {
            hand_over(status, &crowd);
            status.incidents.remove(dropped);
        };
        let answer = world.write(&operator, &lock, write).await;
        if is_fine {
            answer.allowed();
        } else {
            answer.refused(RECORD);
        }
    }
}

#[tokio::test]
async fn the_operator_ends_by_force_only_what_somebody_asked_for() {
    // An operator would do what is asked before it is tried here.
    let world = World::without_operator(TakeOver::Strict).await;
    let (crowd, status) = scene(&world).await;
    let operator = world.operator().await;
    let force = |lease| Some(request(lease, ReleaseMode::Force));
    for (request, record, is_fine) in [
        (None, AS_ASKED, false),
        (Some(request("g-a", ReleaseMode::Ask)), AS_ASKED, false),
        (force("g-b"), AS_ASKED, false),
        (force("g-a1"), AS_ASKED, false),
        (force("g-a1.3"), AS_ASKED, false),
        // One of another grant's, which has a dot in its name.
        (force("g-a.3.0"), AS_ASKED, false),
        (force("g-a"), |incident| incident.actor.push('x'), false),
        (force("g-a"), |incident| incident.actor.clear(), false),
        (force("g-a"), |incident| incident.reason.push('x'), false),
        (force("g-a"), |incident| incident.reason.clear(), false),
        (force("g-a"), AS_ASKED, true),
        // As an app's log has it.
        (force("g-a.3"), AS_ASKED, true),
    ] {
        let lock = world.lock(Some(status.clone())).await;
        world.ask(&world.admin, &lock, request).await.allowed();
        let write = |status: &mut Status| {
            let mut incident = IncidentRecord {
                actor: ASKER.to_owned(),
                ..ended(&crowd, "ForceReleased")
            };
            record(&mut incident);
            status.incidents.push(incident);
            grant(status, &crowd.first);
        };
        let answer = world.write(&operator, &lock, write).await;
        if is_fine {
            answer.allowed();
        } else {
            answer.refused(BY_FORCE);
        }
    }
}

/// As long as a queue and a record can be, with names as long as they can be: the API server gives
/// each policy's evaluation a budget, and who exceeds it is refused.
#[tokio::test]
async fn the_operator_ends_a_grant_for_which_as_many_wait_as_can() {
    // An operator would do what is asked before it is tried here.
    let world = World::without_operator(TakeOver::Strict).await;
    let (crowd, mut status) = scene(&world).await;
    let operator = world.operator().await;
    status.waiters = (0..32).map(|n| longest_entry(n, &crowd.first)).collect();
    status.incidents = (0..8)
        .map(|n| longest_incident(n, &crowd.stranger))
        .collect();
    let forced = ReleaseRequest {
        reason: "x".repeat(1024),
        ..request(&format!("g-a.{}", "0".repeat(60)), ReleaseMode::Force)
    };
    // The first, the last, and nobody gets it.
    for receiver in [Some(0), Some(31), None] {
        let lock = world.lock(Some(status.clone())).await;
        let asked = world.ask(&world.admin, &lock, Some(forced.clone()));
        asked.await.allowed();
        let write = |status: &mut Status| {
            status.incidents.push(IncidentRecord {
                actor: forced.actor.clone(),
                reason: forced.reason.clone(),
                ..ended(&crowd, "ForceReleased")
            });
            status.incidents.remove(0);
            let Some(place) = receiver else {
                return free(status);
            };
            let entry = status.waiters[place].clone();
            status.waiters.drain(..=place);
            grant(status, &crowd.second);
            let holder = status.holder.as_mut().expect("held");
            holder.owner_id = entry.owner_id;
            holder.pod = entry.pod;
            holder.pod_uid = entry.pod_uid;
            holder.session = entry.session;
            status.lease.as_mut().expect("held").id = entry.lease_id;
        };
        world.write(&operator, &lock, write).await.allowed();
    }
}

/// By the lock of its own election its replicas are pods like others. Nothing is written for good:
/// who else runs an operator here keeps its lead.
#[tokio::test]
async fn the_operator_takes_the_lock_of_its_own_election_and_no_other() {
    let world = World::new(TakeOver::Strict).await;
    let (crowd, _) = scene(&world).await;
    let operator = world.bare_operator().await;
    for (namespace, resource, is_fine) in [
        (OPERATOR_NAMESPACE, "election:leasehold-operator", true),
        (OPERATOR_NAMESPACE, "election:leasehold-operator-2", false),
        (OPERATOR_NAMESPACE, "leasehold-operator", false),
        (world.name(), "election:leasehold-operator", false),
    ] {
        let admins: Api<DistributedLock> = Api::namespaced(world.admin.clone(), namespace);
        let its_own: Api<DistributedLock> = Api::namespaced(operator.clone(), namespace);
        let guarded = Resource::parse(resource).expect("a resource");
        let name = object_name(&guarded);
        let mut lock = bare_lock(&name);
        resource.clone_into(&mut lock.spec.resource);
        // It may be there already.
        let _made = admins.create(&PostParams::default(), &lock).await;
        let mut lock = admins.get(&name).await.expect("a lock");
        let status = lock.status.get_or_insert_default();
        status.waiters.clear();
        grant(status, &crowd.stranger);
        let tried = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        println!("{resource} in {namespace}");
        let answer = outcome(its_own.replace_status(&name, &tried, &lock).await);
        if is_fine {
            answer.allowed();
        } else {
            answer.refused(NOBODY_BUT);
        }
    }
}

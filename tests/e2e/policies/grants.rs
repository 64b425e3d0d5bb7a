//! Grants and places in the queue: a pod acts for itself, and ends another's only as its mode says.

use leasehold::crd::lock::{
    DistributedLockStatus as Status, Holder, IncidentRecord, ReleaseMode, WaiterRecord,
};
use leasehold::crd::session::LockSessionStatus as SessionStatus;

use super::stage::{
    ASKER, Expect, TIME, free, grant, holder, incident, request, revocation, second_entry,
    session_of, waiter,
};
use super::world::World;
use crate::harness::TakeOver;

#[tokio::test]
async fn a_pod_takes_a_free_lock_for_itself_only() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let lock = world.lock(None).await;
    world
        .write(&a.client, &lock, |status| grant(status, &b))
        .await
        .refused("status.holder must name pod a");
    let half = |status: &mut Status| {
        grant(status, &a);
        status.holder = Some(Holder {
            pod: b.name.clone(),
            ..holder(&a)
        });
    };
    world
        .write(&a.client, &lock, half)
        .await
        .refused("status.holder must name pod a");
    world
        .write(&a.client, &lock, |status| grant(status, &a))
        .await
        .allowed();
}

#[tokio::test]
async fn a_held_lock_is_nobodys_but_its_holders() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let lock = world.held(&a, &[]).await;
    for theft in [
        grant as fn(&mut Status, &_),
        |status, _| free(status),
        |status, pod| {
            grant(status, pod);
            status.incidents.push(incident("Expired", pod, &pod.name));
        },
    ] {
        let words = "only the operator ends a grant of another pod";
        let answer = world
            .write(&b.client, &lock, |status| theft(status, &b))
            .await;
        // An incident that misnames the holder is refused for that as well.
        assert!(
            answer.is_err_and(|message| message.contains(words)
                || message.contains("status.incidents is a record"))
        );
    }
    let foreign = "this grant is another pod's";
    let keep = |status: &mut Status| {
        status.lease.as_mut().expect("held").kept = true;
    };
    world.write(&b.client, &lock, keep).await.refused(foreign);
    world
        .write(&b.client, &lock, |status| status.token += 1)
        .await
        .refused("status.token");
    world.write(&a.client, &lock, keep).await.allowed();
    world
        .write(&a.client, &lock, |status| status.token += 1000)
        .await
        .allowed();
    world.write(&a.client, &lock, free).await.allowed();
    world
        .write(&b.client, &lock, |status| status.token += 1000)
        .await
        .refused("status.token");
}

#[tokio::test]
async fn a_pod_queues_itself_once_and_at_the_end() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b, c] = world.pods(["a", "b", "c"]).await;
    let lock = world.held(&a, &[&c]).await;
    let words = "a pod queues itself and nobody else";
    let twice = |status: &mut Status| {
        status.waiters.extend([waiter(&b), second_entry(&b)]);
    };
    world
        .write(&b.client, &lock, |status| {
            status.waiters.push(second_entry(&a));
        })
        .await
        .refused(words);
    world
        .write(&b.client, &lock, |status| {
            status.waiters.insert(0, waiter(&b));
        })
        .await
        .refused(words);
    world.write(&b.client, &lock, twice).await.refused(words);
    let same_id = |status: &mut Status| {
        let entry = WaiterRecord {
            lease_id: "g-c".to_owned(),
            ..waiter(&b)
        };
        status.waiters.push(entry);
    };
    world.write(&b.client, &lock, same_id).await.refused(words);
    world
        .write(&b.client, &lock, |status| status.waiters.push(waiter(&b)))
        .await
        .allowed();
    world
        .write(&b.client, &lock, |status| status.waiters.reverse())
        .await
        .refused("the order of status.waiters");
    world
        .write(&b.client, &lock, |status| {
            status.waiters.retain(|entry| entry.pod == "b");
        })
        .await
        .refused("removes nobody but itself");
    world
        .write(&b.client, &lock, |status| {
            status.waiters.retain(|entry| entry.pod != "b");
        })
        .await
        .allowed();
}

#[tokio::test]
async fn a_lock_that_others_wait_for_is_handed_to_the_first() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b, c] = world.pods(["a", "b", "c"]).await;
    let lock = world.held(&a, &[&b, &c]).await;
    let hand = "hand it to the first of status.waiters";
    world
        .write(&a.client, &lock, free)
        .await
        .refused("handing it to the first");
    world
        .write(&a.client, &lock, |status| grant(status, &c))
        .await
        .refused(hand);
    let again = |status: &mut Status| {
        grant(status, &a);
        status.lease.as_mut().expect("held").id = "another".to_owned();
    };
    world.write(&a.client, &lock, again).await.refused(hand);
    let misnamed = |status: &mut Status| {
        grant(status, &b);
        status.holder.as_mut().expect("held").owner_id = "x".to_owned();
    };
    world
        .write(&a.client, &lock, misnamed)
        .await
        .refused("status.holder must name pod a");
    world
        .write(&b.client, &lock, |status| grant(status, &b))
        .await
        .refused("only the operator");
    world
        .write(&a.client, &lock, |status| grant(status, &b))
        .await
        .allowed();
    world
        .write(&b.client, &lock, |status| grant(status, &c))
        .await
        .allowed();
}

#[tokio::test]
async fn the_record_of_incidents_cannot_be_forged() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b] = world.pods(["a", "b"]).await;
    let lock = world.held(&a, &[]).await;
    world
        .write(&world.admin, &lock, |status| {
            status.incidents.push(incident("Expired", &b, "op"));
        })
        .await
        .allowed();
    let words = "status.incidents is a record";
    let add = |status: &mut Status| {
        status
            .incidents
            .push(incident("ReleasedOnRequest", &a, ASKER));
    };
    let asked = async |lock: &str| {
        let asked = Some(request("g-a", ReleaseMode::Ask));
        world.ask(&world.admin, lock, asked).await.allowed();
    };
    asked(&lock).await;
    world
        .write(&a.client, &lock, |status| status.incidents.clear())
        .await
        .refused(words);
    world.write(&a.client, &lock, add).await.refused(words);
    let changes: [fn(&mut Status); 7] = [
        |status| status.incidents.clear(),
        |status| status.incidents[1].lease_id = Some("g-b".to_owned()),
        |status| status.incidents[1].lease_id = Some("g-a.0".to_owned()),
        |status| status.incidents[1].token += 1,
        |status| status.incidents[1].pod = "b".to_owned(),
        |status| status.incidents[1].kind = "ForceReleased".to_owned(),
        |status| status.incidents.reverse(),
    ];
    for change in changes {
        let forge = |status: &mut Status| {
            add(status);
            free(status);
            change(status);
        };
        world.write(&a.client, &lock, forge).await.refused(words);
    }
    // A record of a version that names no grant, and one of ours.
    for lease in [None, Some("g-a".to_owned())] {
        let lock = world.held(&a, &[]).await;
        asked(&lock).await;
        let honest = |status: &mut Status| {
            add(status);
            status.incidents[0].lease_id.clone_from(&lease);
            free(status);
        };
        world.write(&a.client, &lock, honest).await.allowed();
    }
}

#[tokio::test]
async fn in_strict_mode_only_the_operator_takes_over() {
    let world = World::new(TakeOver::Strict).await;
    let [a, b, c] = world.pods(["a", "b", "c"]).await;
    let lock = world.held(&a, &[&b, &c]).await;
    let take_over = |status: &mut Status| {
        let incident = IncidentRecord {
            lease_id: Some("g-a".to_owned()),
            ..incident("Expired", &a, "c")
        };
        status.incidents.push(incident);
        grant(status, &c);
        status.waiters.clear();
    };
    world
        .write(&c.client, &lock, take_over)
        .await
        .refused("only the operator");
    let operator = world.operator().await;
    world.write(&operator, &lock, take_over).await.allowed();

    world
        .create(&a.client, &session_of(&a, "a-0"))
        .await
        .allowed();
    let revoke = |status: &mut SessionStatus| {
        status.revoked = Some(revocation("Expired", "c"));
    };
    world
        .write_session(&c.client, "a-0", revoke)
        .await
        .refused("only the operator revokes");
    world
        .write_session(&operator, "a-0", revoke)
        .await
        .allowed();
}

/// A sidecar that restarted without its state has a new session, and its old one is silent.
#[tokio::test]
async fn a_pod_takes_over_from_its_own_former_session() {
    let world = World::new(TakeOver::Strict).await;
    let a = world.pod("a").await;
    let lock = world.held(&a, &[]).await;
    let take_over = |status: &mut Status, actor| {
        status.incidents.push(incident("Expired", &a, actor));
        grant(status, &a);
        status.lease.as_mut().expect("held").id = "another".to_owned();
        status.holder.as_mut().expect("held").session = "a-1".to_owned();
    };
    // In nobody else's name.
    world
        .write(&a.client, &lock, |status| take_over(status, "person"))
        .await
        .refused("status.incidents is a record");
    world
        .write(&a.client, &lock, |status| take_over(status, "a"))
        .await
        .allowed();
}

#[tokio::test]
async fn in_peer_mode_a_take_over_is_recorded_under_the_takers_name() {
    let world = World::new(TakeOver::Peer).await;
    let [a, b, c] = world.pods(["a", "b", "c"]).await;
    let lock = world.held(&a, &[&b, &c]).await;
    let words = "record the incident in the same write";
    world
        .write(&c.client, &lock, |status| grant(status, &b))
        .await
        .refused(words);
    for (kind, actor) in [
        ("Expired", "b"),
        ("ForceReleased", "c"),
        ("ReleasedOnRequest", "c"),
    ] {
        let take_over = |status: &mut Status| {
            status.incidents.push(incident(kind, &a, actor));
            grant(status, &b);
        };
        world
            .write(&c.client, &lock, take_over)
            .await
            .refused(words);
    }
    let jump = |status: &mut Status| {
        status.incidents.push(incident("Expired", &a, "c"));
        grant(status, &c);
    };
    world
        .write(&c.client, &lock, jump)
        .await
        .refused("others have waited longer");
    // The first waiter is dropped as dead: the second one is the first that is left.
    let take_over = |status: &mut Status| {
        jump(status);
        status.waiters.clear();
    };
    world.write(&c.client, &lock, take_over).await.allowed();
    let lock = world.held(&a, &[&b]).await;
    world
        .write(&a.client, &lock, free)
        .await
        .refused("handing it to the first");
    world
        .write(&a.client, &lock, |status| grant(status, &b))
        .await
        .allowed();
}

#[tokio::test]
async fn in_peer_mode_a_pod_revokes_others_as_expired_and_changes_nothing_else() {
    let world = World::new(TakeOver::Peer).await;
    let [a, b] = world.pods(["a", "b"]).await;
    world
        .create(&a.client, &session_of(&a, "a-0"))
        .await
        .allowed();
    let words = "all that another pod may do is to revoke it";
    world
        .write_session(&b.client, "a-0", |status| status.renewals += 1)
        .await
        .refused(words);
    for (reason, by) in [("Ended", "b"), ("PodEnded", "b"), ("Expired", "a")] {
        world
            .write_session(&b.client, "a-0", |status| {
                status.revoked = Some(revocation(reason, by));
            })
            .await
            .refused(words);
    }
    let renew = |status: &mut SessionStatus| {
        status.revoked = Some(revocation("Expired", "b"));
        status.renewed_at = Some(TIME.to_owned());
    };
    world
        .write_session(&b.client, "a-0", renew)
        .await
        .refused(words);
    world
        .write_session(&a.client, "a-0", |status| status.renewals += 1)
        .await
        .allowed();
    world
        .write_session(&b.client, "a-0", |status| {
            status.revoked = Some(revocation("Expired", "b"));
        })
        .await
        .allowed();
}

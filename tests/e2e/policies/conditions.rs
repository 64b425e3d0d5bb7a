//! The conditions of a lock are the operator's: what a pod may do to them with each kind of write,
//! also with those that are let through without a closer look.

use anyhow::{Result, ensure};
use leasehold::crd::lock::{ConditionRecord, DistributedLockStatus as Status, ReleaseMode};
use serde_json::json;

use super::stage::{ASKER, Expect, TIME, TOKEN, free, grant, incident, request, waiter};
use super::world::{User, World};
use crate::harness::{Cluster, TakeOver};
use crate::support::{Pair, until_queued};

const WORDS: &str = "status.conditions is the operator's";

fn condition(kind: &str) -> ConditionRecord {
    ConditionRecord {
        r#type: kind.to_owned(),
        status: "True".to_owned(),
        reason: "Test".to_owned(),
        message: "test".to_owned(),
        last_transition_time: TIME.to_owned(),
    }
}

/// The pods of a write: the writer, and two others.
type Pods = [User; 3];

/// A write by a pod, from the status that a lock has.
struct Write {
    what: &'static str,
    from: fn(&Pods) -> Status,
    change: fn(&mut Status, &Pods),
    /// Whether a grant begins or ends by it.
    is_turn: bool,
}

const WRITES: [Write; 9] = [
    Write {
        what: "takes a free lock",
        from: |_| Status {
            token: TOKEN,
            ..Status::default()
        },
        change: |status, pods| grant(status, &pods[0]),
        is_turn: true,
    },
    Write {
        what: "frees its lock",
        from: |pods| held(&pods[0], &[]),
        change: |status, _| free(status),
        is_turn: true,
    },
    Write {
        what: "hands its lock on",
        from: |pods| held(&pods[0], &[&pods[1], &pods[2]]),
        change: |status, pods| grant(status, &pods[1]),
        is_turn: true,
    },
    Write {
        what: "frees its lock because somebody asked",
        from: |pods| held(&pods[0], &[]),
        change: |status, pods| {
            free(status);
            let asked = incident("ReleasedOnRequest", &pods[0], ASKER);
            status.incidents.push(asked);
        },
        is_turn: true,
    },
    Write {
        what: "takes over, as a peer",
        from: |pods| held(&pods[1], &[]),
        change: |status, pods| {
            grant(status, &pods[0]);
            let expired = incident("Expired", &pods[1], &pods[0].name);
            status.incidents.push(expired);
        },
        is_turn: true,
    },
    Write {
        what: "is the first to queue",
        from: |pods| held(&pods[1], &[]),
        change: |status, pods| status.waiters.push(waiter(&pods[0])),
        is_turn: false,
    },
    Write {
        what: "queues behind another",
        from: |pods| held(&pods[1], &[&pods[2]]),
        change: |status, pods| status.waiters.push(waiter(&pods[0])),
        is_turn: false,
    },
    Write {
        what: "leaves the queue",
        from: |pods| held(&pods[1], &[&pods[0], &pods[2]]),
        change: |status, _| drop(status.waiters.remove(0)),
        is_turn: false,
    },
    Write {
        what: "raises its token",
        from: |pods| held(&pods[0], &[]),
        change: |status, _| status.token += 1000,
        is_turn: false,
    },
];

/// What becomes of the conditions, which are two at first.
struct Fate {
    what: &'static str,
    of: fn(&mut Vec<ConditionRecord>),
    /// With a write that changes the grant, and with any other.
    is_fine: (bool, bool),
}

const FATES: [Fate; 8] = [
    Fate {
        what: "all dropped",
        of: Vec::clear,
        is_fine: (true, false),
    },
    Fate {
        what: "one dropped",
        of: |conditions| drop(conditions.remove(0)),
        is_fine: (true, false),
    },
    Fate {
        what: "one added",
        of: |conditions| conditions.push(condition("Another")),
        is_fine: (false, false),
    },
    Fate {
        what: "one put in the place of another",
        of: |conditions| conditions[0] = condition("Another"),
        is_fine: (false, false),
    },
    Fate {
        what: "all but a new one dropped",
        of: |conditions| *conditions = vec![condition("Another")],
        is_fine: (false, false),
    },
    Fate {
        what: "one changed",
        of: |conditions| conditions[0].message.push('!'),
        is_fine: (false, false),
    },
    Fate {
        what: "one denied",
        of: |conditions| "False".clone_into(&mut conditions[1].status),
        is_fine: (false, false),
    },
    Fate {
        what: "left as they were",
        of: |_| (),
        is_fine: (true, true),
    },
];

/// A lock whose first pod is asked to let go, which only one of the writes is about.
async fn asked_for(world: &World, status: Status) -> String {
    let lock = world.lock(Some(status)).await;
    let asked = request("g-a", ReleaseMode::Ask);
    let asked = world.ask(&world.admin, &lock, Some(asked));
    asked.await.allowed();
    lock
}

fn held(holder: &User, waiting: &[&User]) -> Status {
    let mut status = Status::default();
    grant(&mut status, holder);
    status.token = TOKEN;
    status.waiters = waiting.iter().map(|pod| waiter(pod)).collect();
    status
}

#[tokio::test]
async fn a_pod_drops_conditions_where_a_grant_changes_and_does_nothing_else_to_them() {
    let world = World::new(TakeOver::Peer).await;
    let pods = world.pods(["a", "b", "c"]).await;
    for write in WRITES {
        let mut status = (write.from)(&pods);
        status.conditions = vec![condition("LongHeld"), condition("Other")];
        // What is refused leaves the lock as it was.
        let mut lock = asked_for(&world, status.clone()).await;
        for fate in FATES {
            println!("a pod {}, conditions {}", write.what, fate.what);
            let change = |status: &mut Status| {
                (write.change)(status, &pods);
                (fate.of)(&mut status.conditions);
            };
            let answer = world.write(&pods[0].client, &lock, change).await;
            let (at_a_turn, else_) = fate.is_fine;
            if if write.is_turn { at_a_turn } else { else_ } {
                answer.allowed();
                lock = asked_for(&world, status.clone()).await;
            } else {
                answer.refused(WORDS);
            }
        }
    }
}

/// Where there were none, too: no pod can say that another's grant lasts too long.
#[tokio::test]
async fn a_pod_adds_no_condition_to_a_lock_that_has_none() {
    let world = World::new(TakeOver::Peer).await;
    let pods = world.pods(["a", "b", "c"]).await;
    for write in WRITES {
        println!("a pod {}", write.what);
        let lock = asked_for(&world, (write.from)(&pods)).await;
        let change = |status: &mut Status| {
            (write.change)(status, &pods);
            status.conditions.push(condition("LongHeld"));
        };
        let answer = world.write(&pods[0].client, &lock, change).await;
        answer.refused(WORDS);
    }
}

/// A mark that the sidecars have not seen, and that goes with the grant: once by a hand-over, once
/// where the lock gets free.
#[tokio::test(flavor = "multi_thread")]
async fn sidecars_give_back_a_lock_that_was_marked_meanwhile() -> Result<()> {
    // One that has no operator: it would take the mark off a free lock itself.
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "marked", 15).await?;
    let mark = json!({"status": {"conditions": [condition("LongHeld")]}});
    let marked = async || {
        let marked = namespace
            .patch("distributedlocks/res/status", &mark)
            .await?;
        ensure!(
            marked["status"]["conditions"][0]["type"] == "LongHeld",
            "{marked}"
        );
        Ok(())
    };
    let first = a.acquire("res").await?.granted()?;
    let waiting = b.wait_for("res", 60).await?;
    until_queued(&namespace, "res", 1).await?;
    marked().await?;
    a.release_for_good(&first.id).await?;
    let second = waiting.answer().await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");

    marked().await?;
    b.release_for_good(&second.id).await?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");

    // As an older version leaves it behind.
    marked().await?;
    a.acquire("res").await?.granted()?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    assert!(lock["status"].get("conditions").is_none(), "{lock}");
    Ok(())
}

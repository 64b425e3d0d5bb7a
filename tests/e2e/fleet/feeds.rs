//! The events of feeds without faults.

use anyhow::Result;
use leasehold::store::fleet::{ContainerReport, FleetStore as _};
use serde_json::json;

use super::{fleet, lines_until, make_lock, make_session, next_of, place, report, succeeded};
use crate::harness::{Cluster, TakeOver};

#[tokio::test(flavor = "multi_thread")]
async fn feed_lists_locks_and_delivers_their_changes() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let a = cluster.namespace("fleet").await?;
    let b = cluster.namespace("fleet").await?;
    make_lock(&a, "before", "before").await?;
    let mut locks = fleet(&cluster, &a.name).await?.locks();
    let first = lines_until(&mut locks, "complete").await?;
    assert_eq!(first[0], "anew");
    assert!(
        first.contains(&format!("there {}/before", a.name)),
        "{first:?}"
    );

    make_lock(&b, "after", "after").await?;
    let made = next_of(&mut locks, &place(&b, "after")).await?;
    let object = b.lock("after").await?.unwrap_or_default();
    assert_eq!(object["metadata"]["uid"], *made.uid);
    let version = made.stored.version.to_string();
    assert_eq!(object["metadata"]["resourceVersion"], version);

    b.patch(
        "distributedlocks/after/status",
        &json!({"status": {"token": 5000}}),
    )
    .await?;
    let changed = next_of(&mut locks, &place(&b, "after")).await?;
    assert_eq!(changed.stored.value.token.get(), 5000);
    assert!(changed.stored.version > made.stored.version);

    b.kubectl(&["delete", "dlock", "after"]).await?.ok()?;
    lines_until(&mut locks, &format!("gone {}/after", b.name)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn feed_lists_sessions_and_delivers_their_changes() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("fleet").await?;
    make_session(&namespace, "before").await?;
    let mut sessions = fleet(&cluster, &namespace.name).await?.sessions();
    let before = next_of(&mut sessions, &place(&namespace, "before")).await?;
    assert_eq!(&*before.stored.value.pod.uid, "u");
    lines_until(&mut sessions, "complete").await?;
    namespace
        .patch(
            "locksessions/before/status",
            &json!({"status": {"renewals": 1}}),
        )
        .await?;
    let renewed = next_of(&mut sessions, &place(&namespace, "before")).await?;
    assert_eq!(renewed.stored.value.renewals, 1);
    namespace
        .kubectl(&["delete", "locksession", "before"])
        .await?
        .ok()?;
    lines_until(&mut sessions, &format!("gone {}/before", namespace.name)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn feed_delivers_only_ended_pods() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("fleet").await?;
    let (runs, ends) = (namespace.pod("runs").await?, namespace.pod("ends").await?);
    report(&runs, &namespace, &json!({"phase": "Running"})).await?;
    let fleet = fleet(&cluster, &namespace.name).await?;
    let mut pods = fleet.ended_pods();
    let ours = |lines: &[String]| lines.iter().any(|line| line.contains(&namespace.name));
    assert!(!ours(&lines_until(&mut pods, "complete").await?));

    report(&ends, &namespace, &succeeded()).await?;
    let told = next_of(&mut pods, &place(&namespace, "ends")).await?;
    assert!(told.is_terminal && !told.is_deleted && !told.is_presumed);
    assert_eq!(*told.uid, *ends.uid);
    assert_eq!(
        (told.declared, &*told.containers),
        (1, &[ContainerReport::Terminated][..])
    );
    assert_eq!(fleet.pod(&told.object_ref).await?, Some(told));

    let alive = fleet.pod(&place(&namespace, "runs")).await?;
    let alive = alive.map(|pod| (pod.is_terminal, pod.containers.len()));
    assert_eq!(alive, Some((false, 0)));
    assert_eq!(fleet.pod(&place(&namespace, "none")).await?, None);

    namespace
        .kubectl(&["delete", "pod", "ends", "--force"])
        .await?
        .ok()?;
    lines_until(&mut pods, &format!("gone {}/ends", namespace.name)).await?;
    Ok(())
}

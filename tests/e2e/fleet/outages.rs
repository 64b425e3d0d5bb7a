//! Feeds outlive the API server, and relist what they may have missed.

use anyhow::{Context, Result};
use leasehold::store::fleet::FleetStore as _;

use super::{fleet, lines_until, make_lock, next_of, place};
use crate::harness::{Cluster, TakeOver};

#[tokio::test(flavor = "multi_thread")]
async fn feed_continues_after_an_api_server_restart() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("restarts").await?;
    make_lock(&namespace, "a", "a").await?;
    let mut locks = fleet(&cluster, &namespace.name).await?.locks();
    lines_until(&mut locks, "complete").await?;

    // First killed, then stopped in good order.
    for (number, name) in ["b", "c"].iter().enumerate() {
        match number {
            0 => cluster.control_plane().kill_api_server().await?,
            _ => cluster.control_plane().stop_api_server().await?,
        }
        lines_until(&mut locks, "interrupted").await?;
        cluster.control_plane().start_api_server().await?;
        make_lock(&namespace, name, name).await?;
        let told = next_of(&mut locks, &place(&namespace, name)).await?;
        assert_eq!(told.stored.value.resource.as_str(), *name);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn feed_relists_after_history_was_compacted() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("compacted").await?;
    make_lock(&namespace, "goes", "goes").await?;
    make_lock(&namespace, "stays", "stays").await?;
    let mut locks = fleet(&cluster, &namespace.name).await?.locks();
    lines_until(&mut locks, "complete").await?;

    let control_plane = cluster.control_plane();
    control_plane.kill_api_server().await?;
    let gone = format!("distributedlocks/{}/goes", namespace.name);
    control_plane.remove_from_etcd(&gone).await?;
    control_plane.compact_etcd().await?;
    control_plane.start_api_server().await?;

    // No event reports the deletion; only the complete list shows it.
    let lines = lines_until(&mut locks, "complete").await?;
    let anew = lines.iter().rposition(|line| line == "anew");
    let anew = anew.with_context(|| format!("nothing anew: {lines:?}"))?;
    let stays = format!("there {}/stays", namespace.name);
    assert_eq!(
        lines[anew..],
        ["anew".to_owned(), stays, "complete".to_owned()]
    );
    assert!(lines.iter().any(|line| line == "interrupted"), "{lines:?}");
    make_lock(&namespace, "later", "later").await?;
    next_of(&mut locks, &place(&namespace, "later")).await?;
    Ok(())
}

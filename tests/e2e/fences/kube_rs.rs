//! The client of kube-rs that adds the token to each write, on objects that the policy guards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Error};
use leasehold_client::{Election, Unsent};
use serde_json::json;

use super::objects::guard;
use crate::harness::{PATIENCE, TakeOver, eventually};
use crate::support::Pair;

/// Writes in each way that a controller writes.
async fn write(maps: &Api<ConfigMap>) -> kube::Result<()> {
    let object = maps.get("guarded").await?;
    maps.replace("guarded", &PostParams::default(), &object)
        .await?;
    let data = json!({"data": {"text": "x"}});
    let none = PatchParams::default();
    maps.patch("guarded", &none, &Patch::Merge(&data)).await?;
    let operation = json!([{"op": "add", "path": "/data/text", "value": "y"}]);
    let operations = serde_json::from_value(operation).map_err(Error::SerdeError)?;
    maps.patch("guarded", &none, &Patch::<()>::Json(operations))
        .await?;
    let labels = &object.metadata.labels;
    let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "labels": labels}});
    let manager = PatchParams::apply("controller");
    maps.patch("owned", &manager, &Patch::Apply(&owned)).await?;
    maps.delete("owned", &DeleteParams::default()).await?;
    Ok(())
}

/// A candidate, with its token while it leads.
struct Lead(Option<u64>);

impl Lead {
    fn token(&self) -> Option<u64> {
        self.0
    }
}

/// Returns a client as docs/fencing-kubernetes.md shows it.
fn fenced(client: &Client, election: Lead, stale: &Arc<AtomicU64>) -> Client {
    let stale = Arc::clone(stale);
    let stop = move |token| stale.store(token, Ordering::Relaxed);
    leasehold_client::fenced(client.clone(), move || election.token(), stop)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn stale_controller_of_kube_rs_cannot_write() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("fence-kube", TakeOver::Peer, 60).await?;
    guard(&namespace, "guarded", "report").await?;
    let stale = Arc::default();
    let client = |token| fenced(&namespace.client, Lead(Some(token)), &stale);
    let maps = |token| Api::<ConfigMap>::namespaced(client(token), &namespace.name);
    let old = a.acquire("report").await?.granted()?;
    write(&maps(old.token)).await?;
    a.release_for_good(&old.id).await?;
    let new = b.acquire("report").await?.granted()?;
    write(&maps(new.token)).await?;
    ensure!(stale.load(Ordering::Relaxed) == 0, "no token was stale");
    let refused = write(&maps(old.token)).await.err();
    let refused = refused.context("a stale write was accepted")?;
    ensure!(
        matches!(&refused, Error::Api(status) if status.code == 403),
        "{refused:?}"
    );
    ensure!(stale.load(Ordering::Relaxed) == old.token, "{refused:?}");
    // An unstamped patch would leave the newer token, and pass.
    let stale = maps(old.token);
    let none = PatchParams::default();
    let data = json!({"data": {"text": "stale"}});
    let merged = stale.patch("guarded", &none, &Patch::Merge(&data)).await;
    let deleted = stale.delete("guarded", &DeleteParams::default()).await;
    for error in [merged.err(), deleted.err()] {
        ensure!(
            matches!(&error, Some(Error::Api(status)) if status.code == 403),
            "{error:?}"
        );
    }
    let plain = Api::<ConfigMap>::namespaced(namespace.client.clone(), &namespace.name);
    plain.patch("guarded", &none, &Patch::Merge(&data)).await?;
    Ok(())
}

/// Runs for an election through a sidecar, and returns once it leads.
async fn leader(sidecar: &str) -> Result<Election> {
    let client = leasehold_client::Client::new(sidecar)?;
    let election = client.elect("controller", |lease, election| election.wait(lease));
    eventually("the lead", PATIENCE, async || election.token()).await?;
    Ok(election)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn only_the_leader_of_an_election_writes() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("fence-lead", TakeOver::Peer, 5).await?;
    guard(&namespace, "guarded", "election:controller").await?;
    let maps = |election: &Election| {
        let election = election.clone();
        let client = namespace.client.clone();
        let fenced = leasehold_client::fenced(client, move || election.token(), drop::<u64>);
        Api::<ConfigMap>::namespaced(fenced, &namespace.name)
    };

    let first = leader(&a.url).await?;
    let of_first = maps(&first);
    write(&of_first).await?;
    a.kill9()?;
    let lost = async || first.token().is_none().then_some(());
    eventually("the end of the first lead", PATIENCE, lost).await?;
    let unsent = write(&of_first).await.err();
    let unsent = unsent.context("a write without the lead was sent")?;
    ensure!(
        matches!(&unsent, Error::Service(why) if why.downcast_ref() == Some(&Unsent::NoToken)),
        "{unsent:?}"
    );

    let second = leader(&b.url).await?;
    write(&maps(&second)).await?;
    for election in [first, second] {
        election.stop();
    }
    Ok(())
}

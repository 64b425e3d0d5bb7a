//! Random writers that read a guarded `ConfigMap` and replace it, as controllers do, while the API server is killed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Error};
use serde_json::json;

use super::guard;
use crate::fences::random::{run, run_with_violation};
use crate::fences::store::{Append, Store, Written};
use crate::harness::{Cluster, Namespace, TakeOver};
use crate::history::Entry;

/// The lock, and the key of the data that has the log.
const LOG: &str = "log";
const ANNOTATION: &str = "leasehold.dev/fencing-token";
/// How long a writer waits until it repeats a write that the API server could not judge yet.
const PAUSE: Duration = Duration::from_millis(50);

/// A `ConfigMap` with a line for each entry.
struct Log {
    namespace: Namespace,
    map: &'static str,
}

impl Log {
    /// Creates a guarded `ConfigMap` in this cluster, and an unguarded one.
    async fn start(cluster: Arc<Cluster>, map: &'static str) -> Result<Self> {
        let namespace = cluster.namespace("fence-log").await?;
        guard(&namespace, "guarded", LOG).await?;
        let create = ["create", "configmap", "unguarded"];
        namespace.kubectl(&create).await?.ok()?;
        Ok(Self { namespace, map })
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.namespace.client.clone(), &self.namespace.name)
    }
}

impl Store for Log {
    type Connection = Api<ConfigMap>;

    /// As an agent grants the lock. The policy reads no other field.
    async fn grant(&self, token: u64) -> Result<()> {
        let path = format!("distributedlocks/{LOG}/status");
        let change = json!({"status": {"token": token}});
        self.namespace.patch(&path, &change).await.map(drop)
    }

    async fn connect(&self) -> Result<Api<ConfigMap>> {
        Ok(self.maps())
    }

    async fn append(&self, maps: &mut Api<ConfigMap>, append: &Append) -> Result<Written> {
        let entry = format!("{} {}\n", append.token, append.value);
        loop {
            let mut map = maps.get(self.map).await?;
            let data = map.data.get_or_insert_default();
            let log = data.entry(LOG.to_owned()).or_default();
            if !log.contains(&entry) {
                log.push_str(&entry);
            }
            let annotations = map.metadata.annotations.get_or_insert_default();
            annotations.insert(ANNOTATION.to_owned(), append.token.to_string());
            tokio::time::sleep(append.pause).await;
            match maps.replace(self.map, &PostParams::default(), &map).await {
                Ok(_map) => return Ok(Written::Accepted),
                Err(Error::Api(status)) if is_stale(&status.message) => return Ok(Written::Stale),
                // Another writer was faster.
                Err(Error::Api(status)) if status.code == 409 => tokio::time::sleep(PAUSE).await,
                // This API server has not seen the grant, or has just started.
                Err(Error::Api(status))
                    if status.message.contains("repeat the write")
                        || status.message.contains("paramKind") =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn entries(&self) -> Result<Vec<Entry>> {
        let map = self.maps().get(self.map).await?;
        let log = map.data.unwrap_or_default().remove(LOG);
        let entry = |line: &str| {
            let (token, value) = line.split_once(' ').context("a token and a value")?;
            Ok(Entry {
                token: token.parse()?,
                value: value.to_owned(),
            })
        };
        log.unwrap_or_default().lines().map(entry).collect()
    }

    async fn crash(&self) -> Result<()> {
        let control_plane = self.namespace.cluster.control_plane();
        control_plane.kill_api_server().await?;
        control_plane.start_api_server().await
    }
}

fn is_stale(message: &str) -> bool {
    message.contains("stale fencing token")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn no_older_token_passes_the_policy_after_a_newer_one() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    run(&Log::start(cluster, "guarded").await?, 2).await?;
    Ok(())
}

/// The control: the same run on the unguarded `ConfigMap` has violations.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn run_without_policy_is_noticed() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let log = Log::start(cluster, "unguarded").await?;
    run_with_violation(&log, 0, "back to token").await
}

//! `leasehold operator`: reconciles the locks of a whole cluster. It wires the stores, the
//! operator, and the agent that elects the active replica, and decides nothing.

mod args;
mod webhook;

use std::io;
use std::sync::Arc;

use anyhow::Context;
use async_trait::async_trait;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::cluster::Cluster;
use super::serve::{block_on, run_while_serving};
use super::{file_limit, listen, output};
use crate::admin::{self, AdminStatus};
use crate::agent::{Agent, Campaign, Config, OnTerm};
use crate::clock::SystemClock;
use crate::http::serve::{Bounds, serve};
use crate::k8s::{
    K8sCandidates, K8sEvents, K8sFleet, K8sLockStore, K8sNamespaces, K8sPodLabels, K8sSessionStore,
};
use crate::operator::{AuditLog, Leadership, Operator, OwnPod, Ports};
use crate::protocol::election::ElectionName;
use crate::random::Random;
use crate::shutdown;
use crate::store::fleet::ObjectRef;

pub(super) use args::{Args, Settings};
use webhook::Webhook;

/// The election of the active replica, in the operator's own namespace.
pub(super) const ELECTION: &str = "leasehold-operator";

/// Runs until a signal.
pub(super) fn run(args: &Args, settings: Settings) -> anyhow::Result<()> {
    args.log.start()?;
    block_on(run_until_signal(args, settings))
}

async fn run_until_signal(args: &Args, settings: Settings) -> anyhow::Result<()> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let cluster = args.cluster.connect().await?;
    let config = settings.agent;
    let webhook = match settings.webhook {
        Some(webhook) => Some(Webhook::bind(webhook).await?),
        None => None,
    };
    let admin = listen::bind_any(args.listen(), listen::ADMIN).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), pod = %config.pod.name,
        namespace = cluster.namespace, server = cluster.server, "operator starting"
    );
    file_limit::raise();
    let election = ElectionName::parse(ELECTION).context("the operator's own election")?;
    let pod = config.pod.name.clone();
    let own_pod = OwnPod {
        object_ref: ObjectRef {
            namespace: cluster.namespace.as_str().into(),
            name: pod.clone(),
        },
        uid: config.pod.uid.clone(),
    };
    let agent = agent(config, &cluster);
    let (is_eligible, eligibility) = watch::channel(false);
    let fleet = Arc::new(K8sFleet::new(cluster.client.clone()));
    let elected = ElectedLeadership {
        agent: agent.clone(),
        election: election.clone(),
        is_eligible,
    };
    let operator = Operator::new(
        args.rules(&pod, &cluster.namespace),
        ports(&cluster, &pod, fleet.clone(), elected),
    );
    let stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    let replica = Replica {
        webhook: webhook.map(|webhook| webhook.start(&cluster, &mut servers, stop.clone())),
        operator,
        agent: agent.clone(),
    };
    listen::announce(&admin, "admin")?;
    let router = admin::router(replica.clone());
    servers.spawn(serve(admin, router, Bounds::ADMIN, stop.clone()));
    let campaign = Campaign {
        election,
        preferred: false,
    };
    agent.run_for_while(campaign, eligibility);
    tokio::spawn(async move {
        if let Some(reason) = own_pod.mismatch(&*fleet).await {
            tracing::error!(reason, "pod identity mismatch");
        }
    });
    run_while_serving(&mut servers, replica.run(&signalled)).await??;
    stop.cancel();
    while let Some(ended) = servers.join_next().await {
        ended.context("a server failed while it stopped")?;
    }
    tracing::info!("stopped");
    Ok(())
}

/// The parts of one replica.
#[derive(Clone)]
struct Replica {
    operator: Operator,
    agent: Agent,
    webhook: Option<webhook::Handle>,
}

impl Replica {
    /// Runs until the signal, then stops in order.
    async fn run(&self, signalled: &CancellationToken) -> anyhow::Result<()> {
        let operated = async {
            // The actions end before the lead is released.
            let ran = self.operator.run(signalled.clone()).await;
            ran.context("a task of the operator failed")?;
            self.agent.shut_down(OnTerm::AppsEnded).await;
            anyhow::Ok(())
        };
        let drained = async {
            if let Some(webhook) = &self.webhook {
                webhook.drained(signalled).await;
            }
            anyhow::Ok(())
        };
        tokio::try_join!(operated, drained).map(drop)
    }
}

impl AdminStatus for Replica {
    fn ready(&self) -> Result<(), String> {
        self.agent.ready()?;
        self.operator.ready()?;
        self.webhook.as_ref().map_or(Ok(()), webhook::Handle::ready)
    }

    fn metrics(&self) -> String {
        let webhook = self.webhook.as_ref().map(webhook::Handle::metrics);
        self.operator.metrics() + &AdminStatus::metrics(&self.agent) + &webhook.unwrap_or_default()
    }
}

/// Returns the agent that runs for the election; its locks are in the operator's own namespace.
fn agent(config: Config, cluster: &Cluster) -> Agent {
    let namespace = &cluster.namespace;
    let locks = Arc::new(K8sLockStore::new(cluster.client.clone(), namespace));
    let sessions = cluster.session_client.clone();
    let sessions = Arc::new(K8sSessionStore::new(sessions, namespace));
    Agent::new(config, locks, sessions, Arc::new(SystemClock))
}

struct ElectedLeadership {
    agent: Agent,
    election: ElectionName,
    /// Whether the replica runs for the election.
    is_eligible: watch::Sender<bool>,
}

#[async_trait]
impl Leadership for ElectedLeadership {
    fn leads(&self) -> bool {
        self.agent.leads(&self.election)
    }

    async fn changed(&self) {
        self.agent.elections_changed().await;
    }

    fn set_eligible(&self, is_fit: bool) {
        let is_new = |is_eligible: &mut bool| std::mem::replace(is_eligible, is_fit) != is_fit;
        if !self.is_eligible.send_if_modified(is_new) {
            return;
        }
        if is_fit {
            tracing::info!("locks and sessions synced; running for leader");
        } else {
            tracing::error!("locks or sessions forbidden; not running for leader");
        }
    }
}

fn ports(cluster: &Cluster, pod: &str, fleet: Arc<K8sFleet>, elected: ElectedLeadership) -> Ports {
    let client = &cluster.client;
    Ports {
        fleet,
        events: Arc::new(K8sEvents::new(client.clone(), pod)),
        labels: Arc::new(K8sPodLabels::new(client.clone())),
        candidates: Arc::new(K8sCandidates::new(client.clone(), &cluster.namespace)),
        namespaces: Arc::new(K8sNamespaces::new(client.clone())),
        audit: Arc::new(StandardOutput),
        leadership: Arc::new(elected),
        clock: Arc::new(SystemClock),
        random: Random::system(),
        pause: None,
    }
}

/// Writes the audit log to standard output; logs go to standard error.
struct StandardOutput;

#[async_trait]
impl AuditLog for StandardOutput {
    async fn write(&self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        // It blocks while the reader of the pipe does not read.
        let written = tokio::task::spawn_blocking(move || output::print(&line));
        written.await.map_err(io::Error::other)?
    }
}

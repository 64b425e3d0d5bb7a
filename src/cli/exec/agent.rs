//! The third process of `leasehold exec`, if no sidecar is configured: the agent for this command.
//!
//! It is the sidecar's agent with the same API, on a socket that only this user can reach. It is a process
//! of its own: the other two are clients in each case, and if they are killed, it releases the lock.
//! Invariant: it ends when none of them is left.

use std::os::unix::net::UnixListener;

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::acquire::RETRY_FOR;
use super::keeper::{block_signals, receive, registered};
use super::link::{Link, Message};
use super::{Failure, report};
use crate::agent::{Config, OnTerm};
use crate::cli::client::retry_pause;
use crate::cli::flags::session_ttl;
use crate::cli::serve::{block_on, run_while_serving};
use crate::cli::{cluster, pod};
use crate::clock::{Clock as _, SystemClock};
use crate::http::serve::{Bounds, serve};
use crate::http::{self, HttpOptions};
use crate::k8s::{Identity, identity};
use crate::protocol::session::PodRef;
use crate::protocol::time::SessionTtl;
use crate::protocol::token::MAX_BASE;
use crate::store::StoreError;

/// The flags for an exec without a sidecar.
#[derive(Debug, clap::Args)]
#[group(id = "exec-agent")]
pub(super) struct Args {
    #[command(flatten)]
    cluster: cluster::Args,
    /// The session TTL in seconds, 3 to 120: how long after the last renewal the lock can be taken over.
    /// Default: 15, or the sidecar's.
    #[arg(
        long, env = "LEASEHOLD_SESSION_TTL", value_name = "SECONDS", value_parser = session_ttl,
    )]
    session_ttl: Option<SessionTtl>,
    /// Added to every fencing token. Must be the same in the whole installation, and never lowered.
    /// Default: 0, or the sidecar's.
    #[arg(
        long, env = "LEASEHOLD_TOKEN_FLOOR", value_name = "TOKEN",
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_BASE),
    )]
    token_floor: Option<u64>,
}

impl Args {
    /// Returns whether a flag was given, which would have no effect with a sidecar.
    pub(super) fn is_given(&self) -> bool {
        self.cluster.is_given() || self.session_ttl.is_some() || self.token_floor.is_some()
    }

    fn config(&self, pod: PodRef) -> Config {
        let default = Config::new(pod);
        Config {
            session_ttl: self.session_ttl.unwrap_or(default.session_ttl),
            token_floor: self.token_floor.unwrap_or(default.token_floor),
            ..default
        }
    }
}

/// Serves until the other processes have ended. An error is reported to the keeper as an exit code.
pub(super) fn run(args: &super::Args) -> anyhow::Result<()> {
    block_signals().context("signals cannot be handled")?;
    let link = Link::inherited().context("no link to the first process")?;
    let received = link.wait();
    let Some(Message::Listener(listener)) =
        received.context("this role is for `leasehold exec` itself")?
    else {
        anyhow::bail!("the first process has ended");
    };
    let log = args.log.start_for_agent_of("leasehold::cli::exec")?;
    block_on(async {
        let link = registered(link)?;
        // Open until the keeper has received the failure: it would report that it cannot connect.
        let listener = listener.into();
        if let Err(failure) = serve_until_unused(&args.agent, &link, &listener).await {
            report(&failure);
            let _ended = link.get_ref().send(&Message::Done(failure.code));
            until_unused(&link).await;
        }
        Ok(())
    })?;
    drop(log);
    Ok(())
}

async fn serve_until_unused(
    args: &Args,
    link: &AsyncFd<Link>,
    listener: &UnixListener,
) -> Result<(), Failure> {
    let configured = args.cluster.connect().await;
    let cluster = configured.map_err(|error| {
        Failure::usage(error.context("LEASEHOLD_URL is not set, so exec needs a cluster"))
    })?;
    let identity = tokio::select! {
        biased;
        () = until_unused(link) => return Ok(()),
        identity = identify(&cluster) => identity?,
    };
    let Identity { user, pod } = identity;
    let config = args.config(pod.unwrap_or_else(no_pod));
    tracing::info!(
        server = cluster.server, namespace = cluster.namespace, user, pod = %config.pod.name,
        sessionTtlSeconds = config.session_ttl.as_secs(), "using the API server"
    );
    let agent = cluster.agent(config, None);
    let router = http::over_unix_socket(http::router(agent.clone(), HttpOptions::default()));
    listener.set_nonblocking(true).context("no socket")?;
    let listener = listener
        .try_clone()
        .and_then(tokio::net::UnixListener::from_std);
    let listener = listener.context("no socket")?;
    let stop = CancellationToken::new();
    let mut servers = JoinSet::new();
    servers.spawn(serve(listener, router, Bounds::API, stop.clone()));
    run_while_serving(&mut servers, until_unused(link)).await?;
    run_while_serving(&mut servers, agent.shut_down(OnTerm::AppsEnded)).await?;
    Ok(())
}

/// Without a uid a session has no owner: it ends by its TTL alone.
fn no_pod() -> PodRef {
    PodRef {
        name: pod::host_name().into(),
        uid: "".into(),
        node: None,
    }
}

/// Returns who this process is for the API server. Retries for as long as for a sidecar.
async fn identify(cluster: &cluster::Cluster) -> anyhow::Result<Identity> {
    let started = SystemClock.now();
    let mut failures = 0;
    loop {
        let error = match identity(cluster.client.clone()).await {
            Ok(identity) => return Ok(identity),
            Err(error @ StoreError::Unavailable(_)) => error,
            Err(error) => return Err(not_identified(cluster, error)),
        };
        if SystemClock.now().since(started) >= RETRY_FOR {
            return Err(not_identified(cluster, error));
        }
        if failures == 0 {
            tracing::warn!(server = cluster.server, %error, "API server not reached; retrying");
        }
        failures += 1;
        tokio::time::sleep(retry_pause(failures, fastrand::f64())).await;
    }
}

fn not_identified(cluster: &cluster::Cluster, error: StoreError) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("the API server at {}", cluster.server))
}

/// Waits until no other process of exec has the link.
async fn until_unused(link: &AsyncFd<Link>) {
    while let Ok(Some(_)) = receive(link).await {}
}

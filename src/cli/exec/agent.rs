//! The third process of `leasehold exec`, if no sidecar is configured: the agent for this command.
//!
//! It is the sidecar's agent with the same API, on a socket that only this user can reach. It is a process
//! of its own: the other two are clients in each case, and if they are killed, it releases the lock.
//! Invariant: it ends when none of them is left.

use std::fs;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use nix::sys::signal::SigSet;
use rustix::process::{Signal, kill_current_process_group};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::acquire::RETRY_FOR;
use super::link::{Link, Message, receive, registered};
use super::local;
use super::{Failure, report};
use crate::agent::{Agent, Config, OnTerm};
use crate::cli::client::retry_pause;
use crate::cli::cluster::{self, Cluster};
use crate::cli::flags::session_ttl;
use crate::cli::pod;
use crate::cli::serve::{block_on, run_while_serving};
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
    /// A data directory, as of `leasehold dev`: the locks of this machine, without a cluster. The first exec
    /// starts a server for it, unless `leasehold dev` uses it. The server ends with the last exec.
    #[arg(long, value_name = "DIR", value_parser = local::data_dir)]
    pub(super) data_dir: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// The settings of an agent without a sidecar.
#[derive(Clone, Copy, Debug, clap::Args)]
#[group(id = "exec-settings")]
pub(super) struct Settings {
    /// The session TTL in seconds, 3 to 3600: how long after the last renewal the lock can be taken over.
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

/// The ids of the flags for an agent of this exec alone.
pub(super) const FLAGS: [&str; 5] = [
    "kubeconfig",
    "context",
    "namespace",
    "session_ttl",
    "token_floor",
];
/// The id of the flag for a server that other execs share.
pub(super) const DATA_DIR: &str = "data_dir";

impl Args {
    /// Returns whether it is clear which locks are meant.
    pub(super) fn names_a_cluster(&self) -> bool {
        self.cluster.names_a_cluster()
    }
}

impl Settings {
    pub(super) fn config(self, pod: PodRef) -> Config {
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
    let link = Link::inherited().context("no link to the first process")?;
    let received = link.wait();
    let Some(Message::Listener(listener)) =
        received.context("this role is for `leasehold exec` itself")?
    else {
        anyhow::bail!("the first process has ended");
    };
    let log = args
        .log
        .start_for_agent_of("leasehold::cli::exec", args.quiet)?;
    block_on(async {
        ignore_signals().context("signals cannot be handled")?;
        let link = registered(link)?;
        // Open until the keeper has received a failure: it would report that it cannot connect.
        let listener = UnixListener::from(listener);
        if let Err(failure) = serve_until_unused(&args.agent, &link, &listener).await {
            let _ended = link.get_ref().send(&Message::Failed(failure.code));
            // Second, because nothing may read standard error. The first process waits for this one.
            report(&failure);
            until_unused(&link).await;
        }
        // If the first process was killed, the directory is left.
        if let Some(socket) = listener.local_addr()?.as_pathname() {
            let _removed = socket.parent().map(fs::remove_dir_all);
        }
        Ok(())
    })?;
    drop(log);
    // A credential plugin that hangs is in this process's group. The first process may have been killed.
    Ok(kill_current_process_group(Signal::KILL)?)
}

/// Its link ends this process, and no signal. By handlers, and not by a mask: a credential plugin would
/// inherit that.
fn ignore_signals() -> io::Result<()> {
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ] {
        // The handler stays.
        let _unread = signal(kind)?;
    }
    Ok(SigSet::empty().thread_set_mask()?)
}

async fn serve_until_unused(
    args: &Args,
    link: &AsyncFd<Link>,
    listener: &UnixListener,
) -> Result<(), Failure> {
    let prepared = async {
        let cluster = connect(&args.cluster).await?;
        let Identity { user, pod } = identify(&cluster).await?;
        if let Some(error) = foreign_pod(&user, pod.as_ref(), &cluster.namespace) {
            return Err(Failure::usage(error));
        }
        let config = args.settings.config(pod.unwrap_or_else(no_pod));
        Ok((cluster, user, config))
    };
    let (cluster, user, config) = tokio::select! {
        biased;
        () = until_unused(link) => return Ok(()),
        prepared = prepared => prepared?,
    };
    tracing::info!(
        server = cluster.server, namespace = cluster.namespace, user, pod = %config.pod.name,
        sessionTtlSeconds = config.session_ttl.as_secs(), "using the API server"
    );
    let agent = cluster.agent(config, None);
    listener.set_nonblocking(true).context("no socket")?;
    let listener = listener
        .try_clone()
        .and_then(tokio::net::UnixListener::from_std);
    let listener = listener.context("no socket")?;
    let ready = link.get_ref().send(&Message::Ready);
    ready.context("no link to the keeper")?;
    let mut serving = Serving::start(&agent, listener);
    serving.during(until_unused(link)).await?;
    let ended = serving.during(agent.shut_down(OnTerm::AppsEnded)).await;
    Ok(ended?)
}

/// An agent that is served on a socket.
pub(super) struct Serving {
    servers: JoinSet<()>,
    stop: CancellationToken,
}

impl Serving {
    pub(super) fn start(agent: &Agent, listener: tokio::net::UnixListener) -> Self {
        let router = http::over_unix_socket(http::router(agent.clone(), HttpOptions::default()));
        let (stop, mut servers) = (CancellationToken::new(), JoinSet::new());
        servers.spawn(serve(listener, router, Bounds::API, stop.clone()));
        Self { servers, stop }
    }

    /// Awaits `work`.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> anyhow::Result<T> {
        run_while_serving(&mut self.servers, work).await
    }

    /// Ends all connections.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.servers.join_all().await;
    }
}

/// Connects in another thread: a credential plugin may take long, or hang, and the end of the other
/// processes is noticed meanwhile.
async fn connect(args: &cluster::Args) -> Result<Cluster, Failure> {
    let (args, runtime) = (args.clone(), Handle::current());
    let connected = spawn_blocking(move || {
        let config = runtime.block_on(args.config());
        let config = config.map_err(Failure::usage)?;
        let _within = runtime.enter();
        Ok(args.connect_to(&config)?)
    });
    connected.await.context("the connection panicked")?
}

/// A session is owned by its pod, and an owner in another namespace counts as deleted. Returns the error for
/// a token of a pod of another namespace.
fn foreign_pod(user: &str, pod: Option<&PodRef>, namespace: &str) -> Option<anyhow::Error> {
    let account = user.strip_prefix("system:serviceaccount:")?;
    let (own, _) = account.split_once(':')?;
    pod.filter(|_| own != namespace)?;
    Some(anyhow::anyhow!(
        "these credentials are a pod's of the namespace {own}, and a pod's locks live in its own \
         namespace, not in {namespace}; leave --namespace out, or correct the kubeconfig"
    ))
}

/// Without a uid a session has no owner: it ends by its TTL alone.
fn no_pod() -> PodRef {
    PodRef {
        name: pod::host_name().into(),
        uid: "".into(),
        node: None,
    }
}

/// Returns the identity of the credentials. Retries for as long as for a sidecar.
async fn identify(cluster: &Cluster) -> anyhow::Result<Identity> {
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

fn not_identified(cluster: &Cluster, error: StoreError) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("the API server at {}", cluster.server))
}

/// Waits until no other process of exec has the link.
async fn until_unused(link: &AsyncFd<Link>) {
    loop {
        match receive(link).await {
            Ok(None) => return,
            Ok(Some(_)) => {}
            Err(error) => {
                // A command may run, and its lock must not be released.
                tracing::error!(%error, "link not readable");
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_of_another_namespace_is_refused() {
        let pod = no_pod();
        let user = "system:serviceaccount:ci:runner";
        assert!(foreign_pod(user, Some(&pod), "ci").is_none());
        let error = foreign_pod(user, Some(&pod), "team-a").unwrap();
        assert!(error.to_string().contains("namespace ci"), "{error}");
        assert!(foreign_pod(user, None, "team-a").is_none());
        assert!(foreign_pod("anna", Some(&pod), "team-a").is_none());
    }
}

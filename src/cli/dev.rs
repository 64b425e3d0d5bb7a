//! `leasehold dev`: the same agent, HTTP API and protocol on a local directory, without a cluster.
//! It wires the embedded store, the agent and the servers.
//!
//! It has no pods. The process is one agent, and a new one at every start: it takes over the locks
//! of its predecessor as those of any crashed agent.

mod args;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use super::listen::AdminDefault;
use super::output;
use super::serve::{BoundAddresses, Listeners, block_on};
use crate::agent::{Agent, Config};
use crate::clock::{Clock, SystemClock};
use crate::protocol::token::Revision;
use crate::store::embedded::{EmbeddedStore, OpenError};
use crate::store::faulty::{FaultyStore, TimedFaults};
use crate::{http, shutdown};

pub(super) use args::{Args, new_agent};

/// The maximum first revision of a new store (in the year 2109): above 2^43, revisions count as
/// nanoseconds.
const FIRST_MAX: u64 = 1 << 42;

/// Runs until a signal.
pub(super) fn run(args: &Args, config: Config) -> anyhow::Result<()> {
    args.flags.log.start()?;
    block_on(serve_until_signal(args, config))
}

async fn serve_until_signal(args: &Args, config: Config) -> anyhow::Result<()> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let directory = args.data_dir()?;
    let store = open(&directory)?;
    let mut listeners = Listeners::bind(&args.flags, AdminDefault::Local).await?;
    listeners.listen_by_default(&socket(&directory)).await;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), pod = %config.pod.name, podUid = %config.pod.uid,
        directory = %directory.display(), faultApi = args.fault_api,
        sessionTtlSeconds = config.session_ttl.as_secs(), "dev starting"
    );
    let (agent, router) = agent_and_router(args, config, store);
    observe_holders(&agent).await;
    let directory = directory.display().to_string();
    output::print(&greeting(
        &directory,
        &listeners.addresses()?,
        args.fault_api,
    ))
    .context("standard output cannot be written")?;
    listeners.serve(agent, router, &args.flags, signalled).await
}

fn agent_and_router(args: &Args, config: Config, store: EmbeddedStore) -> (Agent, http::Router) {
    let (clock, options) = (Arc::new(SystemClock), args.flags.http_options());
    if args.fault_api {
        let faults = TimedFaults::new(|| SystemClock.now());
        let store = Arc::new(FaultyStore::new(store, faults.clone()));
        let agent = Agent::new(config, store.clone(), store, clock);
        let router = http::router_with_faults(agent.clone(), options, faults);
        return (agent, router);
    }
    let agent = agent(config, store);
    (agent.clone(), http::router(agent, options))
}

/// Returns the socket of a data directory, for clients that know only the directory.
pub(super) fn socket(directory: &Path) -> PathBuf {
    directory.join("socket")
}

/// Opens a data directory.
pub(super) fn open(directory: &Path) -> Result<EmbeddedStore, OpenError> {
    EmbeddedStore::open(directory, first_revision())
}

/// Returns an agent on a data directory.
pub(super) fn agent(config: Config, store: EmbeddedStore) -> Agent {
    let store = Arc::new(store);
    Agent::new(config, store.clone(), store, Arc::new(SystemClock))
}

/// Observes the holders that an earlier process has left, so that the wait for their locks begins.
pub(super) async fn observe_holders(agent: &Agent) {
    if let Err(error) = agent.observe_holders().await {
        tracing::warn!(%error, "reading lock holders failed");
    }
}

/// A new store starts at the milliseconds since 1970. So tokens keep rising if its directory was
/// deleted, at less than a thousand writes a second.
fn first_revision() -> Revision {
    let milliseconds = SystemClock.wall().0 / 1_000;
    Revision(
        u64::try_from(milliseconds)
            .unwrap_or_default()
            .clamp(1, FIRST_MAX),
    )
}

fn greeting(directory: &str, addresses: &BoundAddresses, fault_api: bool) -> String {
    let mut urls: Vec<_> = addresses
        .api
        .iter()
        .map(|address| format!("http://{address}"))
        .collect();
    let mut first = urls.first().cloned().unwrap_or_default();
    if let Some(path) = &addresses.socket {
        let path = path.display();
        if first.is_empty() {
            first = format!("--unix-socket {path} http://localhost");
        }
        urls.push(format!("unix://{path}"));
    }
    let admin = addresses.admin.map_or_else(String::new, |admin| {
        format!(" (health and metrics: http://{admin})")
    });
    let faults = if fault_api {
        "Faults can be injected at /dev/faults (docs/dev.md), for tests only.\n"
    } else {
        ""
    };
    format!(
        "Leasehold without a cluster. Locks are kept in {directory}\n\
         Listening on {}{admin}\n{faults}\n\
         Take a lock, in another shell:\n\n  \
         curl -s {first}/v1/locks/acquire -H 'content-type: application/json' \\\n    \
         -d '{{\"resource\":\"demo\",\"ttlSeconds\":300}}'\n\n",
        urls.join(" and "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_revision_of_a_store_is_the_time_in_milliseconds() {
        let first = first_revision();
        assert!(first.0 > 1_700_000_000_000 && first.0 <= FIRST_MAX);
        assert_eq!(first.scale(), u128::from(first.0) * 1_000);
    }

    #[test]
    fn the_greeting_says_where_it_listens() {
        let tcp = BoundAddresses {
            api: vec![
                "127.0.0.1:7373".parse().unwrap(),
                "[::1]:7373".parse().unwrap(),
            ],
            socket: None,
            admin: Some("127.0.0.1:7374".parse().unwrap()),
        };
        let said = greeting("/data", &tcp, false);
        assert!(
            said.contains("http://127.0.0.1:7373 and http://[::1]:7373 (health"),
            "{said}"
        );
        let socket = BoundAddresses {
            api: vec![],
            socket: Some("/run/l.sock".into()),
            admin: None,
        };
        let by_socket = greeting("/data", &socket, false);
        assert!(by_socket.contains("Listening on unix:///run/l.sock\n"));
        assert!(by_socket.contains("curl -s --unix-socket /run/l.sock http://localhost/v1/"));
        assert!(
            said.contains("/data") && !said.contains("/dev/faults"),
            "{said}"
        );
    }
}

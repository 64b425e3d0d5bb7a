//! `leasehold sidecar`: serves locks to the apps of one pod. It wires the stores, the agent and the
//! servers, and decides nothing.

mod args;

use std::path::Path;

use anyhow::Context;

use super::listen::AdminDefault;
use super::serve::{Listeners, block_on};
use crate::agent::{Config, Memory};
use crate::clock;
use crate::http::HttpOptions;
use crate::state_file::StateFile;
use crate::{http, shutdown};

pub(super) use args::Args;

/// Runs until a signal.
pub(super) fn run(args: &Args, config: Config) -> anyhow::Result<()> {
    args.flags.log.start()?;
    block_on(serve_until_signal(args, config))
}

async fn serve_until_signal(args: &Args, config: Config) -> anyhow::Result<()> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let cluster = args.cluster.connect().await?;
    let listeners = Listeners::bind(&args.flags, AdminDefault::Everywhere).await?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), pod = %config.pod.name, podUid = %config.pod.uid,
        namespace = cluster.namespace, server = cluster.server,
        sessionTtlSeconds = config.session_ttl.as_secs(), "sidecar starting"
    );
    let memory = args
        .state_dir
        .as_deref()
        .map(|directory| memory(directory, &cluster.namespace));
    let options = HttpOptions {
        namespace: Some(cluster.namespace.clone()),
        ..args.flags.http_options()
    };
    let agent = cluster.agent(config, memory.transpose()?.flatten());
    let router = http::router(agent.clone(), options);
    listeners.serve(agent, router, &args.flags, signalled).await
}

/// Returns the content of the state directory; `None` while another process uses it.
fn memory(directory: &Path, namespace: &str) -> anyhow::Result<Option<Memory>> {
    let boot_id = clock::boot_id().context("--state-dir needs to know the run of the machine")?;
    let Some(mut file) = StateFile::open(directory)? else {
        tracing::warn!(
            directory = %directory.display(),
            "state directory in use; resumption disabled"
        );
        return Ok(None);
    };
    let past = file.read()?;
    Ok(Some(Memory {
        journal: Box::new(file),
        past,
        boot_id,
        namespace: namespace.to_owned(),
    }))
}

//! The flags of `leasehold dev`: those of every role, the data directory, and faults on demand.

use std::env;
use std::path::PathBuf;

use anyhow::Context;

use crate::agent::Config;
use crate::cli::flags::Flags;
use crate::cli::pod;
use crate::protocol::session::PodRef;

/// The flags.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) flags: Flags,
    /// The data directory, created if it is missing; for one process at a time. Default: `leasehold` in
    /// `$XDG_STATE_HOME` or `~/.local/state`.
    #[arg(long, env = "LEASEHOLD_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Also serves /dev/faults, with which tests end leases and make the store unavailable. Every client
    /// that can reach the API can then do so.
    #[arg(long, env = "LEASEHOLD_FAULT_API")]
    pub(super) fault_api: bool,
}

impl Args {
    /// Returns the configuration of the agent, or a usage error.
    pub(in crate::cli) fn agent_config(&self) -> Result<Config, String> {
        self.flags.check()?;
        Ok(self.flags.agent_config(new_agent()))
    }

    /// Returns the data directory.
    pub(super) fn data_dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(directory) = &self.data_dir {
            return Ok(directory.clone());
        }
        let set = |name: &str| {
            env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        set("XDG_STATE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".local/state")))
            .map(|state| state.join("leasehold"))
            .context("neither XDG_STATE_HOME nor HOME is set; give --data-dir")
    }
}

/// Returns what identifies a new process without a pod.
pub(in crate::cli) fn new_agent() -> PodRef {
    PodRef {
        name: pod::host_name().into(),
        uid: uuid::Uuid::new_v4().to_string().into(),
        node: None,
    }
}

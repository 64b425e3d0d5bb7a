//! The flags of `leasehold sidecar`: those of every role, the cluster and the pod.

use std::path::PathBuf;

use clap::ValueEnum;

use crate::agent::Config;
use crate::cli::cluster;
use crate::cli::flags::Flags;
use crate::cli::pod;

/// The flags.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) flags: Flags,
    #[command(flatten)]
    pub(super) cluster: cluster::Args,
    #[command(flatten)]
    pod: pod::Args,
    /// The directory of the state file, with which a restarted sidecar resumes its leases. It must
    /// outlive the container and belong to this pod alone: best an emptyDir with `medium: Memory`.
    /// Default: no state file.
    #[arg(long, env = "LEASEHOLD_STATE_DIR", value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,
    /// Which process takes over the locks of crashed holders.
    #[arg(long, env = "LEASEHOLD_TAKE_OVER", value_enum, default_value_t = TakeOver::Auto)]
    take_over: TakeOver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TakeOver {
    /// This process, if the admission policies allow it. It reads the sessions of the holders that it
    /// waits for.
    Auto,
    /// Only the operator, as with the policies of `strict` mode. This process does not read sessions of
    /// other pods.
    Strict,
}

impl Args {
    /// Returns the configuration of the agent, or a usage error.
    pub(in crate::cli) fn agent_config(&self) -> Result<Config, String> {
        self.flags.check()?;
        Ok(Config {
            takes_over: self.take_over == TakeOver::Auto,
            ..self.flags.agent_config(self.pod.pod()?)
        })
    }
}

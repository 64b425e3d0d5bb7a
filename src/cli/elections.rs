//! The flags about elections: what the process runs for by itself, and in whose words it says so.

use clap::ValueEnum;

use crate::agent::{Agent, Campaign};
use crate::http::Compat;
use crate::protocol::election::ElectionName;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "elections")]
pub(super) struct Args {
    /// An election that this process runs for from its start on, until it stops; apps ask who leads
    /// with GET /v1/elections/NAME. Can be repeated or comma-separated.
    #[arg(
        long, env = "LEASEHOLD_ELECT", value_name = "NAME", value_delimiter = ',',
        value_parser = name,
    )]
    elect: Vec<ElectionName>,
    /// Runs as a preferred candidate: the lead is handed to it before others that wait and are not
    /// preferred, and taken from nobody.
    #[arg(long, env = "LEASEHOLD_ELECT_PREFERRED", requires = "elect")]
    elect_preferred: bool,
    /// Answers apps also as an older sidecar did, about the one election of --elect, on
    /// --compat-port: leader-elector (GET / names the leader) or nais (`ELECTOR_GET_URL` is
    /// `http://localhost:4040/`, `ELECTOR_SSE_URL` `http://localhost:4040/sse`). There is no token
    /// and no validity in such an answer.
    #[arg(
        long,
        env = "LEASEHOLD_COMPAT",
        value_name = "WHOSE",
        value_delimiter = ',',
        value_enum,
        requires = "elect"
    )]
    compat: Vec<CompatFlag>,
    /// The port of --compat, on 127.0.0.1 and, where there is IPv6, `[::1]`.
    // Not LEASEHOLD_COMPAT_PORT: the kubelet sets that where there is a Service `leasehold-compat`.
    #[arg(
        long,
        env = "LEASEHOLD_COMPAT_PORT_NUMBER",
        value_name = "PORT",
        default_value_t = 4040,
        requires = "compat"
    )]
    compat_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CompatFlag {
    /// The retired leader-elector of kubernetes/contrib.
    LeaderElector,
    /// The elector of NAIS.
    Nais,
}

impl Args {
    /// What is wrong with the flags together.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.compat.is_empty() || self.elect.len() == 1 {
            return Ok(());
        }
        Err(format!(
            "--compat speaks of one election, and --elect names {}; give one",
            self.elect.len()
        ))
    }

    /// The older API that is to be served, and on which port.
    pub(super) fn compat(&self) -> Option<(Compat, u16)> {
        let election = self.elect.first().filter(|_| !self.compat.is_empty())?;
        let compat = Compat {
            election: election.clone(),
            nais: self.compat.contains(&CompatFlag::Nais),
        };
        Some((compat, self.compat_port))
    }

    /// Begins to run.
    pub(super) fn run(&self, agent: &Agent) {
        for election in &self.elect {
            tracing::info!(%election, "running for the lead");
            agent.run_for(Campaign {
                election: election.clone(),
                preferred: self.elect_preferred,
            });
        }
    }
}

fn name(text: &str) -> Result<ElectionName, String> {
    ElectionName::parse(text).map_err(|error| error.to_string())
}

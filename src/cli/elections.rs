//! The flags about elections: what the process runs for by itself.

use crate::agent::{Agent, Campaign};
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
}

impl Args {
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

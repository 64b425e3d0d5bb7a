//! The flags of elections: what the process runs for, and which older API it serves.

use std::collections::BTreeSet;

use clap::ValueEnum;

use crate::agent::{Agent, Campaign};
use crate::http::Compat;
use crate::protocol::election::ElectionName;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "elections")]
pub(super) struct Args {
    /// An election that this process runs for while an app polls GET /v1/elections/NAME or reads its
    /// events: from the first request on, until none has come for two session TTLs (four minutes at most). Can be repeated or
    /// comma-separated.
    #[arg(
        long, env = "LEASEHOLD_ELECT", value_name = "NAME", value_delimiter = ',',
        value_parser = name,
    )]
    elect: Vec<ElectionName>,
    /// An election that this process runs for from its start until it stops, whether or not an app polls
    /// it. Takes precedence over --elect. Can be repeated or comma-separated.
    #[arg(
        long, env = "LEASEHOLD_ELECT_ALWAYS", value_name = "NAME", value_delimiter = ',',
        value_parser = name,
    )]
    elect_always: Vec<ElectionName>,
    /// Runs as a preferred candidate: it is queued before candidates that are not preferred. A current
    /// leader is not interrupted.
    #[arg(long, env = "LEASEHOLD_ELECT_PREFERRED")]
    elect_preferred: bool,
    /// Also serves the API of an older elector on --compat-port, for the one election of --elect or
    /// --elect-always: leader-elector (GET / names the leader) or nais (`ELECTOR_GET_URL` is
    /// `http://localhost:4040/`, `ELECTOR_SSE_URL` `http://localhost:4040/sse`). Its responses have
    /// neither a token nor a validity.
    #[arg(
        long,
        env = "LEASEHOLD_COMPAT",
        value_name = "WHOSE",
        value_delimiter = ',',
        value_enum
    )]
    compat: Vec<CompatFlag>,
    /// The port of --compat, on 127.0.0.1 and, if IPv6 is available, `[::1]`.
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
    /// Checks the combination of the flags.
    pub(super) fn check(&self) -> Result<(), String> {
        let count = self.elections().len();
        if count == 0 && self.elect_preferred {
            return Err("--elect-preferred requires --elect or --elect-always".into());
        }
        if !self.compat.is_empty() && count != 1 {
            return Err(format!(
                "--compat serves one election, and --elect names {count}; name one"
            ));
        }
        Ok(())
    }

    /// Returns all elections that the process runs for.
    fn elections(&self) -> BTreeSet<&ElectionName> {
        self.elect.iter().chain(&self.elect_always).collect()
    }

    /// Returns the older API to serve, and its port.
    pub(super) fn compat(&self) -> Option<(Compat, u16)> {
        let election = self.elections().into_iter().next();
        let election = election.filter(|_| !self.compat.is_empty())?;
        let compat = Compat {
            election: election.clone(),
            nais: self.compat.contains(&CompatFlag::Nais),
        };
        Some((compat, self.compat_port))
    }

    /// Starts the campaigns.
    pub(super) fn run(&self, agent: &Agent) {
        for election in self.elections() {
            let campaign = Campaign {
                election: election.clone(),
                preferred: self.elect_preferred,
            };
            if self.elect_always.contains(election) {
                tracing::info!(%election, "campaign started");
                agent.run_for(campaign);
            } else {
                tracing::info!(%election, "campaign configured; starts when an app polls it");
                agent.run_for_while_asked(campaign);
            }
        }
    }
}

fn name(text: &str) -> Result<ElectionName, String> {
    ElectionName::parse(text).map_err(|error| error.to_string())
}

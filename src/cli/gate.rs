//! `leasehold gate NAME`: exits with 0 once this pod leads an election, for an init container that
//! delays an app.
//!
//! It acquires no lock and runs for no election. The sidecar does, and keeps the lead
//! (`--elect-always`, because nothing polls after this process has ended). Invariant: it exits with
//! 0 only if the sidecar returned a lead that was still valid when the response arrived
//! (`evaluate`). It waits without a limit, and retries after all errors of the sidecar.

mod evaluate;

use std::time::Duration;

use anyhow::{Context as _, bail};

use super::client::{Server, jittered, retry_pause};
use super::serve::block_on;
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::election::ElectionName;
use crate::shutdown;
use evaluate::{GateState, Reason, evaluate};

/// The sidecar answers within a second; a request that hangs is repeated.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two successful requests, which the sidecar answers from memory.
const PAUSE: Duration = Duration::from_millis(400);

/// The flags.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// An election that the sidecar of this pod runs for.
    #[arg(value_name = "NAME", value_parser = name)]
    election: ElectionName,
    /// The URL of the sidecar: `http://HOST:PORT`, or `unix:///PATH`.
    #[arg(
        long, env = "LEASEHOLD_URL", value_name = "URL", default_value = "http://127.0.0.1:7373",
        value_parser = Server::parse,
    )]
    url: Server,
    #[command(flatten)]
    log: super::log::Args,
}

fn name(text: &str) -> Result<ElectionName, String> {
    ElectionName::parse(text).map_err(|error| error.to_string())
}

/// Waits for the lead, or for a signal.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    args.log.start()?;
    block_on(async {
        // The first process of a container ignores signals without a handler.
        let signalled = shutdown::on_signal().context("signals cannot be handled")?;
        tracing::info!(election = %args.election, sidecar = %args.url, "waiting to lead");
        tokio::select! {
            biased;
            () = signalled.cancelled() => {
                bail!("ended by a signal before this pod led {}", args.election)
            }
            () = until_leads(&args.url, &args.election) => Ok(()),
        }
    })
}

async fn until_leads(sidecar: &Server, election: &ElectionName) {
    let path = format!("/v1/elections/{election}");
    let mut logged = None;
    let mut failures = 0;
    loop {
        let sent = SystemClock.now();
        let reason = match sidecar.get(&path, ANSWER_LIMIT).await {
            Ok(answer) => {
                let response = (answer.status, answer.body.as_slice());
                match evaluate(election, response, (sent, SystemClock.now())) {
                    GateState::Leads { token } => {
                        tracing::info!(%election, fencingToken = token, "this pod leads");
                        return;
                    }
                    GateState::Waits(reason) => reason,
                }
            }
            Err(error) => Reason::Unknown(format!("{error:#}")),
        };
        failures = if matches!(reason, Reason::Unknown(_)) {
            failures + 1
        } else {
            0
        };
        if logged.as_ref() != Some(&reason) {
            if matches!(reason, Reason::Unknown(_)) {
                tracing::warn!(%election, %reason, "not leading");
            } else {
                tracing::info!(%election, %reason, "not leading");
            }
            logged = Some(reason);
        }
        let pause = match failures {
            0 => jittered(PAUSE, fastrand::f64()),
            failures => retry_pause(failures, fastrand::f64()),
        };
        tokio::time::sleep(pause).await;
    }
}

//! `leasehold gate NAME`: ends well when this pod leads an election, and not before; for an init
//! container that keeps an app from starting.
//!
//! It takes no lock of its own and runs for nothing: the sidecar does (`--elect-always`, because no
//! caller asks after this has ended), and continues to lead. Invariant: it ends with 0 only on the sidecar's
//! yes that was valid for longer than the answer took (`verdict`). It waits without a limit: whatever goes wrong with the
//! sidecar is ridden out.

mod verdict;

use std::time::Duration;

use anyhow::{Context as _, bail};

use super::ask::Server;
use super::serve::block_on;
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::election::ElectionName;
use crate::shutdown;
use verdict::{Reason, Verdict, judge};

/// The sidecar takes a second at most, and one that hangs is to be asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Between two questions to a sidecar that answers: that costs it a look into its memory.
const PAUSE: Duration = Duration::from_millis(400);
/// After the first failure, which is likely a start that is not over.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(3);

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
        // The first process of a container ends by no signal that it does not handle.
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
    let mut said = None;
    let mut failures = 0;
    loop {
        let sent = SystemClock.now();
        let reason = match sidecar.get(&path, ANSWER_LIMIT).await {
            Ok(answer) => {
                let told = (answer.status, answer.body.as_slice());
                match judge(election, told, (sent, SystemClock.now())) {
                    Verdict::Leads { token } => {
                        tracing::info!(%election, fencingToken = token, "this pod leads");
                        return;
                    }
                    Verdict::Waits(reason) => reason,
                }
            }
            Err(error) => Reason::NotTold(format!("{error:#}")),
        };
        failures = if matches!(reason, Reason::NotTold(_)) {
            failures + 1
        } else {
            0
        };
        if said.as_ref() != Some(&reason) {
            if matches!(reason, Reason::NotTold(_)) {
                tracing::warn!(%election, %reason, "not leading");
            } else {
                tracing::info!(%election, %reason, "not leading");
            }
            said = Some(reason);
        }
        tokio::time::sleep(pause(failures, fastrand::f64())).await;
    }
}

/// Between half and the whole of a bound that grows with the failures; `random` is from 0 to 1. Many
/// pods that were started together do not ask their API server together.
fn pause(failures: u32, random: f64) -> Duration {
    let bound = match failures {
        0 => PAUSE,
        _ => FIRST_RETRY * 2_u32.pow(failures.min(8) - 1),
    };
    bound.min(PAUSE_MAX).mul_f64(0.5 + random / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded_and_differ() {
        assert_eq!(pause(0, 0.0), PAUSE / 2);
        assert_eq!(pause(0, 1.0), PAUSE);
        assert_eq!(pause(1, 1.0), FIRST_RETRY);
        assert!(pause(4, 0.5) > pause(3, 0.5));
        assert_eq!(pause(u32::MAX, 1.0), PAUSE_MAX);
    }
}

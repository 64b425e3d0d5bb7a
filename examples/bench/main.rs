//! `make bench`: what a lock costs, beside what the API server costs, in one run against one API
//! server.
//!
//! The machines that it runs on are shared and noisy, so it prints medians and ratios and asserts
//! nothing. The kinds of call take turns in a new order each round, so that noise falls on all of
//! them alike.

#[path = "../../tests/harness.rs"]
mod harness;

mod aims;
mod baseline;
mod one_pod;
mod rows;

use anyhow::{Context, Result};
use baseline::{ByAdministrator, ByPod};
use harness::{Cluster, Sidecar, TakeOver};
use rows::Rows;

/// How often each call is measured.
const ROUNDS: usize = 500;
/// How many rounds come first and are not counted.
const WARM_UP: usize = 50;

/// What takes turns.
#[derive(Clone, Copy)]
enum Turn {
    ByAdministrator,
    ByPod,
    KnownLock,
    NewLock,
}

// On one thread, as the sidecar itself: hops between threads of the instrument would be in each row.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let binary = std::env::args()
        .nth(1)
        .context("usage: bench PATH-OF-LEASEHOLD; or `make bench`")?;
    let cluster = Cluster::measured(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bench").await?;
    let pod = namespace.pod("bench").await?;
    let sidecar = Sidecar::launch(&binary, &pod).default_log().start().await?;
    let mut by_administrator = ByAdministrator::new(&namespace).await?;
    let mut by_pod = ByPod::new(&pod).await?;

    let mut turns = [
        Turn::ByAdministrator,
        Turn::ByPod,
        Turn::KnownLock,
        Turn::NewLock,
    ];
    let mut rows = Rows::default();
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            rows = Rows::default();
        }
        fastrand::shuffle(&mut turns);
        for turn in turns {
            match turn {
                Turn::ByAdministrator => by_administrator.put(&mut rows).await?,
                Turn::ByPod => by_pod.take_and_free(&mut rows).await?,
                Turn::KnownLock => one_pod::known_lock(&sidecar, &mut rows).await?,
                Turn::NewLock => one_pod::new_lock(&sidecar, round, &mut rows).await?,
            }
        }
    }
    rows.print(&[baseline::ROWS, one_pod::ROWS].concat(), baseline::PUT);
    aims::print(&rows, sidecar.rss_kib()?, std::fs::metadata(&binary)?.len());
    Ok(())
}

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
mod client_go;
mod departures;
mod one_pod;
mod rows;
mod transfer;
mod written;

use anyhow::Result;
use baseline::{ByAdministrator, ByPod};
use harness::{Cluster, Namespace, Sidecar, TakeOver};
use rows::Rows;
use transfer::{Before, Pair, Watched};

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
    Watched(Before),
    Transfer(Before),
}

// On one thread, as the sidecar itself: hops between threads of the instrument would be in each row.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(ours), Some(theirs)) = (args.next(), args.next()) else {
        anyhow::bail!("usage: bench PATH-OF-LEASEHOLD PATH-OF-LEADERELECTION; or `make bench`");
    };
    let cluster = Cluster::measured(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bench").await?;
    let sidecar_pod = namespace.pod("bench").await?;
    let launch = Sidecar::launch(&ours, &sidecar_pod).default_log();
    let sidecar = launch.start().await?;
    let mut rows = take_turns(&ours, &namespace, &sidecar).await?;
    departures::measure(&ours, &theirs, &namespace, &mut rows).await?;

    rows.print(&[baseline::ROWS, one_pod::ROWS].concat(), baseline::PUT);
    rows.print(transfer::ROWS, transfer::PUT_AND_EVENT);
    rows.print(transfer::ROWS_IDLE, transfer::PUT_AND_EVENT_IDLE);
    rows.print_beside(["leasehold", "client-go leaderelection"], departures::LINES);
    aims::print(&rows, sidecar.rss_kib()?, std::fs::metadata(&ours)?.len());
    Ok(())
}

/// The calls of which there are many.
async fn take_turns(binary: &str, namespace: &Namespace, sidecar: &Sidecar) -> Result<Rows> {
    let mut by_administrator = ByAdministrator::new(namespace).await?;
    let mut by_pod = ByPod::new(&sidecar.pod).await?;
    let mut watched = Watched::new(namespace).await?;
    let mut pair = Pair::new(binary, namespace).await?;

    let mut turns = [
        Turn::ByAdministrator,
        Turn::ByPod,
        Turn::KnownLock,
        Turn::NewLock,
        Turn::Watched(Before::Reads),
        Turn::Transfer(Before::Reads),
        Turn::Watched(Before::Idle),
        Turn::Transfer(Before::Idle),
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
                Turn::KnownLock => one_pod::known_lock(sidecar, &mut rows).await?,
                Turn::NewLock => one_pod::new_lock(sidecar, round, &mut rows).await?,
                Turn::Watched(before) => watched.put(before, &mut rows).await?,
                Turn::Transfer(before) => pair.transfer(before, &mut rows).await?,
            }
        }
    }
    Ok(rows)
}

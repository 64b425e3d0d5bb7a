//! `make bench`: the cost of a lock compared with the cost of the API server, in one run against
//! one API server.
//!
//! The machines that it runs on are shared and noisy, so it prints medians and ratios and asserts
//! nothing. The kinds of call take turns in a new order each round, so that noise affects all of
//! them equally.

#[path = "../../tests/harness.rs"]
mod harness;

mod aims;
mod app_death;
mod baseline;
mod client_go;
mod clients;
mod departures;
mod etcd_mutex;
mod exec;
mod fleet;
mod kept_alive;
mod many_locks;
mod many_pods;
mod one_pod;
mod operator;
mod peers;
mod redis;
mod rows;
mod transfer;
mod written;

use std::path::Path;

use anyhow::{Result, bail};
use baseline::{ByAdministrator, ByPod};
use harness::{Cluster, Namespace, Sidecar, TakeOver};
use rows::Rows;
use transfer::{Before, Pair, Watched};

/// The number of measured rounds of each call.
const ROUNDS: usize = 500;
/// The number of rounds that run first and are not counted.
const WARM_UP: usize = 50;

/// The kinds of call that take turns.
#[derive(Clone, Copy)]
enum Turn {
    ByAdministrator,
    ByPod,
    KnownLock,
    NewLock,
    Watched(Before),
    Transfer(Before),
}

/// The programs that are measured.
struct Programs {
    ours: String,
    leaderelection: String,
    etcd_mutex: String,
    /// The directory of the clients' drivers.
    drivers: String,
}

/// The parts that can be selected separately, in this order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The frequent calls, the stops of holders, and the aims of both.
    Calls,
    /// The cost of other locks, and the time after an app is killed.
    Peers,
    /// What a lock adds to a command.
    Exec,
    /// What a client library adds to HTTP.
    Clients,
    /// One pod with many locks.
    ManyLocks,
    /// Many pods with a lock each. It runs last on its control plane, because it leaves many
    /// objects in the store.
    ManyPods,
    /// The operator with a fleet, on a separate control plane in strict mode.
    Operator,
}

const PARTS: &[(&str, Part)] = &[
    ("calls", Part::Calls),
    ("peers", Part::Peers),
    ("exec", Part::Exec),
    ("clients", Part::Clients),
    ("many-locks", Part::ManyLocks),
    ("many-pods", Part::ManyPods),
    ("operator", Part::Operator),
];

// On one thread, like the sidecar: otherwise each row would include switches between this process's
// threads.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let (programs, parts) = asked(std::env::args().skip(1))?;
    let (with_operator, by_peers): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|part| *part == Part::Operator);
    if !by_peers.is_empty() {
        let cluster = Cluster::measured(TakeOver::Peer).await?;
        for part in by_peers {
            let namespace = cluster.namespace("bench").await?;
            measure(part, &programs, &namespace).await?;
        }
    }
    if !with_operator.is_empty() {
        let cluster = Cluster::measured(TakeOver::Strict).await?;
        let namespace = cluster.namespace("bench").await?;
        measure(Part::Operator, &programs, &namespace).await?;
    }
    Ok(())
}

async fn measure(part: Part, programs: &Programs, namespace: &Namespace) -> Result<()> {
    let ours = &programs.ours;
    match part {
        Part::Calls => calls(programs, namespace).await,
        Part::Peers => {
            peers::measure(ours, &programs.etcd_mutex, namespace).await?;
            app_death::measure(ours, namespace).await
        }
        Part::Exec => exec::measure(ours, namespace).await,
        Part::Clients => clients::measure(ours, Path::new(&programs.drivers)).await,
        Part::ManyLocks => many_locks::measure(ours, namespace).await,
        Part::ManyPods => many_pods::measure(ours, namespace).await,
        Part::Operator => operator::measure(ours, namespace).await,
    }
}

/// Returns the programs and the named parts, or all parts if none is named.
fn asked(mut args: impl Iterator<Item = String>) -> Result<(Programs, Vec<Part>)> {
    let names = PARTS.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    let (Some(ours), Some(leaderelection), Some(etcd_mutex), Some(drivers)) =
        (args.next(), args.next(), args.next(), args.next())
    else {
        bail!("usage: bench LEASEHOLD LEADERELECTION ETCDMUTEX DRIVERS [PART...]; or `make bench`");
    };
    let mut parts = Vec::new();
    for arg in args {
        let Some((_, part)) = PARTS.iter().find(|(name, _)| *name == arg) else {
            bail!(
                "{arg:?} is no part of the bench; there are {}",
                names.join(", ")
            );
        };
        parts.push(*part);
    }
    if parts.is_empty() {
        parts = PARTS.iter().map(|(_, part)| *part).collect();
    }
    let programs = Programs {
        ours,
        leaderelection,
        etcd_mutex,
        drivers,
    };
    Ok((programs, parts))
}

async fn calls(programs: &Programs, namespace: &Namespace) -> Result<()> {
    let ours = &programs.ours;
    let sidecar_pod = namespace.pod("bench").await?;
    let launch = Sidecar::launch(ours, &sidecar_pod).default_log();
    let sidecar = launch.start().await?;
    let mut rows = take_turns(ours, namespace, &sidecar).await?;
    departures::measure(ours, &programs.leaderelection, namespace, &mut rows).await?;

    rows.print(&[baseline::ROWS, one_pod::ROWS].concat(), baseline::PUT);
    rows.print(transfer::ROWS, transfer::PUT_AND_EVENT);
    rows.print(transfer::ROWS_IDLE, transfer::PUT_AND_EVENT_IDLE);
    rows.print_beside(["leasehold", "client-go leaderelection"], departures::LINES);
    aims::print(&rows, sidecar.rss_kib()?, std::fs::metadata(ours)?.len());
    Ok(())
}

/// Measures the frequent calls.
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

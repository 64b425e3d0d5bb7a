//! client-go's leader election and ours with the same faults: how often two lead at the same time,
//! and for how long.
//!
//! A renewal reaches the API server, its answer is late, and no later message arrives. client-go
//! counts from the answer: it waits for its retry period, and then uses a whole renew deadline
//! again (`LeaderElector.renew` in `k8s.io/client-go/tools/leaderelection`). The other candidates
//! count from when they observed the renewal. Our agent counts from before the request was sent. It
//! waits for the answer at most a quarter of the remaining time, and ignores a later answer.

#![cfg(test)]

#[path = "../harness.rs"]
mod harness;
#[path = "../history.rs"]
mod history;

mod client_go;
mod ours;

use std::future::Future;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use harness::{Cluster, TakeOver};
use history::{History, Op};

/// The number of concurrent rounds of each row.
const ROUNDS: usize = 3;
/// Longer than any take-over.
const LIMIT: Duration = Duration::from_secs(90);

/// The fault of a renewal: how late its answer is, and the client's timeout.
#[derive(Clone, Copy)]
struct Luck {
    answer_late: Duration,
    /// The timeout of client-go. Our agent sets its own.
    request_timeout: Duration,
}

/// In kube-controller-manager, kube-scheduler and controller-runtime, the timeout of a request is
/// half of the renew deadline.
const AS_IN_COMPONENTS: Luck = Luck {
    answer_late: Duration::from_millis(4_700),
    request_timeout: Duration::from_secs(5),
};
/// A program that creates its client like client-go's own example.
const AS_IN_THE_EXAMPLE: Luck = Luck {
    answer_late: Duration::from_millis(8_000),
    request_timeout: Duration::ZERO,
};

/// A late answer that our agent still uses. The delay is longer than the tenth of a TTL by which
/// challengers wait longer than the holder counts.
const IN_TIME: Luck = Luck {
    answer_late: Duration::from_millis(1_800),
    request_timeout: Duration::ZERO,
};

/// The results of some rounds.
struct Row {
    what: &'static str,
    histories: Vec<History>,
}

impl Row {
    /// Returns the longest time that two led at the same time, for each round in which two did.
    fn two_led(&self) -> Vec<Duration> {
        let longest = self.histories.iter().filter_map(|history| {
            let overlaps = history.overlaps();
            overlaps.iter().map(|overlap| overlap.lasted_ns).max()
        });
        longest.map(Duration::from_nanos).collect()
    }

    fn told(&self) -> String {
        let two_led = self.two_led();
        let longest = two_led.iter().max().copied().unwrap_or_default();
        format!(
            "| {} | {} of {} | {:.1} s |\n",
            self.what,
            two_led.len(),
            self.histories.len(),
            longest.as_secs_f64()
        )
    }
}

/// Runs the rounds of a row concurrently.
async fn row<F: Future<Output = Result<History>>>(
    what: &'static str,
    round: impl Fn(usize) -> F,
) -> Result<Row> {
    let histories = try_join_all((0..ROUNDS).map(round)).await?;
    Ok(Row { what, histories })
}

/// The directory that keeps the table and the histories, for inspection.
fn directory() -> PathBuf {
    harness::target_directory().join("comparison")
}

/// Creates the directory of a round's histories.
fn kept_in(name: &str) -> Result<PathBuf> {
    let kept = directory().join(name);
    if kept.exists() {
        std::fs::remove_dir_all(&kept)?;
    }
    std::fs::create_dir_all(&kept)?;
    Ok(kept)
}

/// Whether an app was promised more time than its grant gave it: after a renewal.
fn told_more(history: &History) -> bool {
    let mut granted = 0;
    history.events.iter().any(|event| match &event.op {
        Op::Acquire {
            believes_until: Some(until),
            ..
        } if granted == 0 => {
            granted = *until;
            false
        }
        Op::Renew {
            believes_until: Some(until),
            ..
        } => *until > granted + 1_000_000_000,
        _ => false,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lead_by_client_go_where_none_do_by_ours() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = &cluster.namespace("comparison").await?;
    let (components, example) = (AS_IN_COMPONENTS, AS_IN_THE_EXAMPLE);
    let (first, second, third, fourth, fifth) = tokio::try_join!(
        row("client-go, requests of 5 s at most", |round| {
            client_go::round(namespace, format!("components-{round}"), components)
        }),
        row("client-go, without a limit on requests", |round| {
            client_go::round(namespace, format!("example-{round}"), example)
        }),
        row("Leasehold, answer late by 1.8 s", |round| {
            ours::round(namespace, format!("in-time-{round}"), IN_TIME)
        }),
        row("Leasehold, answer late by 4.7 s", |round| {
            ours::round(namespace, format!("short-{round}"), components)
        }),
        row("Leasehold, answer late by 8 s", |round| {
            ours::round(namespace, format!("long-{round}"), example)
        }),
    )?;
    let rows = [first, second, third, fourth, fifth];
    let told: String = rows.iter().map(Row::told).collect();
    let head = "| a renewal's answer is late, then nothing arrives | two led | for at most |\n| --- | --: | --: |\n";
    std::fs::write(directory().join("table.md"), format!("{head}{told}"))?;
    println!("{head}{told}");
    for history in rows[2..].iter().flat_map(|row| &row.histories) {
        let summary = history.check()?;
        ensure!(
            summary.leases == 2,
            "the lock did not change hands: {summary:?}"
        );
    }
    ensure!(
        rows[2].histories.iter().any(told_more),
        "no late answer was used"
    );
    // Otherwise the fault was too weak, and the absence of two leaders in our rounds shows nothing.
    ensure!(
        !rows[1].two_led().is_empty(),
        "client-go never had two leaders"
    );
    Ok(())
}

//! Waiters behind expired sessions: where agents may take over, and where only an operator may.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{WAIT_SECONDS, writes_of};
use crate::harness::{Cluster, Lease, LongPoll, Namespace, Served, Sidecar, TakeOver, now};
use crate::support::{Pair, sidecar, until_queued, until_renewed, with_operator};

const TTL: Duration = Duration::from_secs(6);

/// A holder, three waiters, and a fifth pod behind them.
struct Queue {
    namespace: Namespace,
    ahead: Vec<Sidecar>,
    /// The calls of the three, whose answers are never read.
    _polls: Vec<LongPoll>,
    fifth: Sidecar,
    waiting: LongPoll,
}

struct Outlived {
    /// Every state that the lock went through.
    told: Vec<Value>,
    lease: Lease,
    /// The writes to the lock that the fifth made itself.
    written: Vec<Served>,
    /// How long it took, in TTLs.
    ttls: f64,
}

impl Queue {
    /// After all of them were renewed for a while: no silence began long ago. The fifth's session has a TTL of its
    /// own.
    async fn form(cluster: &Arc<Cluster>, fifths_ttl: Duration) -> Result<Self> {
        let namespace = cluster.namespace("skipped").await?;
        let mut ahead: Vec<Sidecar> = Vec::new();
        let mut polls = Vec::new();
        for name in ["holder", "w1", "w2", "w3"] {
            let pod = sidecar(&namespace.pod(name).await?, TTL.as_secs()).await?;
            if ahead.is_empty() {
                pod.acquire("res").await?.granted()?;
            } else {
                polls.push(pod.wait_for("res", WAIT_SECONDS).await?);
                until_queued(&namespace, "res", polls.len()).await?;
            }
            ahead.push(pod);
        }
        let fifth = sidecar(&namespace.pod("fifth").await?, fifths_ttl.as_secs()).await?;
        let waiting = fifth.wait_for("res", WAIT_SECONDS).await?;
        until_queued(&namespace, "res", 4).await?;
        until_renewed(&namespace, "res", 2).await?;
        Ok(Self {
            namespace,
            ahead,
            _polls: polls,
            fifth,
            waiting,
        })
    }

    /// All but the fifth are killed at once, and that one gets the lock.
    async fn outlives_those_ahead(self) -> Result<Outlived> {
        let to_the_lock = || -> Result<Vec<Served>> {
            let writes = writes_of(&self.namespace, &self.fifth)?.into_iter();
            Ok(writes
                .filter(|one| one.uri.contains("/distributedlocks/"))
                .collect())
        };
        let history = self.namespace.follow("res").await?;
        let before = to_the_lock()?.len();
        let killed = now();
        for pod in &self.ahead {
            pod.kill9()?;
        }
        let lease = self.waiting.answer().await?.granted()?;
        let ttls = now().since(killed).as_secs_f64() / TTL.as_secs_f64();
        Ok(Outlived {
            told: self.namespace.up_to_now(&history, "res").await?,
            lease,
            written: to_the_lock()?.split_off(before),
            ttls,
        })
    }
}

/// The holder and then the waiters, in each of the states.
fn queues(told: &[Value]) -> Vec<Vec<&str>> {
    fn pods(state: &Value) -> Vec<&str> {
        let status = &state["status"];
        let waiters = status["waiters"].as_array().into_iter().flatten();
        let pods = std::iter::once(&status["holder"]).chain(waiters);
        pods.map(|one| one["pod"].as_str().unwrap_or_default())
            .collect()
    }
    told.iter().map(pods).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_waiters_ahead_are_skipped_together() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let queue = Queue::form(&cluster, TTL).await?;
    let Outlived {
        told,
        lease,
        written,
        ttls,
    } = queue.outlives_those_ahead().await?;
    println!("measured: the fifth got the lock after {ttls:.2} TTL");
    // The holder's death is proven when its first waiter's is not yet; that one is handed the lock.
    // By the time it is proven dead itself the others are too, and go with it in the same write.
    let queue = queues(&told);
    ensure!(
        queue[0] == ["holder", "w1", "w2", "w3", "fifth"],
        "{queue:?}"
    );
    ensure!(queue[1] == ["w1", "w2", "w3", "fifth"], "{queue:?}");
    ensure!(queue[2] == ["fifth"] && queue.len() == 3, "{queue:?}");
    ensure!(told[2]["status"]["token"] == lease.token, "{}", told[2]);
    ensure!(written.len() == 2, "{written:?}");
    Ok(())
}

/// Each session expires at a time of its own, and may have had the lock until then. The incidents show that the
/// operator wrote: one for each state of the lock. A waiter may try to write when it sees a session that the operator
/// has revoked; the policies refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn operator_skips_expired_waiters_and_serves_a_live_one() -> Result<()> {
    let (cluster, operator) = with_operator().await?;
    let queue = Queue::form(&cluster, 10 * TTL).await?;
    let Outlived {
        told, lease, ttls, ..
    } = queue.outlives_those_ahead().await?;
    println!("measured: the fifth got the lock after {ttls:.2} TTL");
    let queue = queues(&told);
    ensure!(
        queue[0] == ["holder", "w1", "w2", "w3", "fifth"],
        "{queue:?}"
    );
    for (before, after) in queue.iter().zip(&queue[1..]) {
        // In their order, without the holder, and perhaps without more expired waiters.
        let mut left = before[1..].iter();
        ensure!(
            after.iter().all(|pod| left.any(|one| one == pod)),
            "{queue:?}"
        );
    }
    ensure!(
        queue.last().is_some_and(|last| last == &["fifth"]),
        "{queue:?}"
    );

    let status = &told[told.len() - 1]["status"];
    ensure!(status["token"] == lease.token, "{status}");
    let incidents = status["incidents"].as_array().context("incidents")?;
    ensure!(incidents.len() == queue.len() - 1, "{queue:?}: {status}");
    for (incident, held) in incidents.iter().zip(&queue) {
        let of_the_expired = incident["kind"] == "Expired" && incident["pod"] == held[0];
        ensure!(
            of_the_expired && incident["actor"] == *operator.pod.name,
            "{status}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_mode_without_operator_never_takes_over() -> Result<()> {
    // Strict mode, without an operator.
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "unproven", 3).await?;
    let first = a.acquire("res").await?.granted()?;
    a.kill9()?;
    let held = namespace.lock("res").await?.unwrap_or_default();
    // Three TTLs, and enough for one more read.
    let waiting = b.wait_for("res", 10).await?;
    let refused = waiting.answer().await?.problem(409, "lock_held")?;
    ensure!(refused.took >= Duration::from_secs(10), "{refused:?}");
    let hint = refused.json["hint"].as_str().unwrap_or_default();
    ensure!(hint.contains("only the operator"), "{}", refused.json);
    ensure!(refused.json["holder"]["fencingToken"] == first.token);

    until_queued(&namespace, "res", 0).await?;
    let lock = namespace.lock("res").await?.unwrap_or_default();
    let grant = |lock: &Value| -> [Value; 4] {
        let status = &lock["status"];
        ["holder", "lease", "token", "transitions"].map(|field| status[field].clone())
    };
    ensure!(grant(&lock) == grant(&held), "{lock}");
    // Into the queue and out of it; nothing else was even tried.
    let writes = writes_of(&namespace, &b)?;
    let to_the_lock: Vec<_> = writes
        .iter()
        .filter(|one| one.uri.contains("/distributedlocks/"))
        .collect();
    ensure!(to_the_lock.len() == 2, "{to_the_lock:?}");
    Ok(())
}

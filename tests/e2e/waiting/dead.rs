//! Who waits behind the dead: where agents may take over, and where only an operator may.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{WAIT_SECONDS, writes_of};
use crate::harness::{Cluster, Served, Sidecar, TakeOver, now};
use crate::support::{Pair, sidecar, until_queued, until_renewed};

#[tokio::test(flavor = "multi_thread")]
async fn the_dead_ahead_are_skipped_together() -> Result<()> {
    const TTL: Duration = Duration::from_secs(6);
    let cluster = Cluster::shared(TakeOver::Peer).await?;
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
    let fifth = sidecar(&namespace.pod("fifth").await?, TTL.as_secs()).await?;
    let waiting = fifth.wait_for("res", WAIT_SECONDS).await?;
    until_queued(&namespace, "res", 4).await?;
    // All of them live on for a while: nobody's silence began long ago.
    until_renewed(&namespace, "res", 2).await?;
    let history = namespace.follow("res").await?;
    let of_the_lock = |one: &Served| one.uri.contains("/distributedlocks/");
    let before = writes_of(&namespace, &fifth)?
        .into_iter()
        .filter(of_the_lock)
        .count();

    let killed = now();
    for pod in &ahead {
        pod.kill9()?;
    }
    let lease = waiting.answer().await?.granted()?;
    let took = now().since(killed);
    let ttls = took.as_secs_f64() / TTL.as_secs_f64();
    println!("the fifth got the lock after {ttls:.2} TTL");
    ensure!(ttls < 2.5, "{ttls} TTL");

    // The holder's death is proven when its first waiter's is not yet; that one is handed the lock.
    // By the time it is proven dead itself the others are too, and go with it in the same write.
    let told = namespace.up_to_now(&history, "res").await?;
    let pods = |state: &Value| -> Vec<String> {
        let status = &state["status"];
        let waiters = status["waiters"].as_array().into_iter().flatten();
        let pods = std::iter::once(&status["holder"]).chain(waiters);
        pods.map(|one| one["pod"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let line: Vec<Vec<String>> = told.iter().map(pods).collect();
    ensure!(line[0] == ["holder", "w1", "w2", "w3", "fifth"], "{line:?}");
    ensure!(line[1] == ["w1", "w2", "w3", "fifth"], "{line:?}");
    ensure!(line[2] == ["fifth"] && line.len() == 3, "{line:?}");
    ensure!(told[2]["status"]["token"] == lease.token, "{}", told[2]);
    let written = writes_of(&namespace, &fifth)?;
    ensure!(
        written.iter().filter(|one| of_the_lock(one)).count() == before + 2,
        "{written:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_operator_nobody_gets_what_cannot_be_proven_free() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("unproven", TakeOver::Strict, 3).await?;
    let first = a.acquire("res").await?.granted()?;
    a.kill9()?;
    let held = namespace.lock("res").await?.unwrap_or_default();
    // Three TTLs, and enough for one more look.
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

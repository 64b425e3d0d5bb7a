//! Elections on a real API server: each candidate learns whether it leads, and two never lead at one time.

mod beliefs;
mod candidates;
mod rolling;
mod storm;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, Namespace, PATIENCE, Pod, Sidecar, TakeOver, eventually, now};
use crate::support::{BINARY, Pair, with_operator};

const LIMIT: Duration = PATIENCE;

impl Sidecar {
    /// The leader, as this sidecar reports it.
    async fn election(&self, name: &str) -> Result<Answer> {
        let path = format!("/v1/elections/{name}");
        self.call(Method::GET, &path, None).await
    }

    /// Waits until this sidecar leads; returns its answer.
    pub(crate) async fn until_leader(&self, name: &str) -> Result<Value> {
        let what = format!("{} to lead", self.pod.name);
        eventually(&what, LIMIT, async || {
            let answer = self.election(name).await.ok()?;
            (answer.json["leader"] == true).then_some(answer.json)
        })
        .await
    }
}

/// A sidecar that always runs for an election, whether or not its app asks.
pub(crate) async fn candidate(pod: &Pod, name: &str, ttl_seconds: u64) -> Result<Sidecar> {
    let launch = Sidecar::launch(BINARY, pod).session_ttl(ttl_seconds);
    launch.arg("--elect-always").arg(name).start().await
}

/// The lock object of an election.
pub(crate) async fn lock_of(namespace: &Namespace, name: &str) -> Result<Value> {
    let locks = namespace.all("distributedlocks").await?;
    let resource = format!("election:{name}");
    let mut locks = locks.into_iter();
    let lock = locks.find(|lock| lock["spec"]["resource"] == *resource);
    lock.context("the lock of the election")
}

/// Waits until one candidate leads and all the others wait. Killed processes may have left queue entries.
pub(crate) async fn until_all_run(namespace: &Namespace, name: &str, count: usize) -> Result<()> {
    let what = format!("{count} pods that lead or wait");
    eventually(&what, LIMIT, async || {
        let status = lock_of(namespace, name).await.ok()?["status"].take();
        let waiting = status["waiters"].as_array().cloned().unwrap_or_default();
        let entries = waiting.iter().chain([&status["holder"]]);
        let pods: BTreeSet<_> = entries.filter_map(|entry| entry["pod"].as_str()).collect();
        (pods.len() == count).then_some(())
    })
    .await
}

async fn until_waiting(namespace: &Namespace, name: &str, count: usize) -> Result<()> {
    let what = format!("{count} who wait for the lead");
    eventually(&what, LIMIT, async || {
        let lock = lock_of(namespace, name).await.ok()?;
        let waiting = lock["status"]["waiters"].as_array().map_or(0, Vec::len);
        (waiting == count).then_some(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn lead_of_a_closed_connection_ends_with_its_readers_validity() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("election-hold", TakeOver::Peer, 15).await?;
    let path = "/v1/elections/jobs";
    a.election("jobs").await?.problem(404, "election_unknown")?;
    let app = a.curl_stream(&format!("{path}/candidacy"), &json!({"ownerId": "app"}))?;
    let held = app.until("acquired").await?;
    let next = b.curl_stream(&format!("{path}/candidacy"), &json!({}))?;
    next.until("waiting").await?;
    until_waiting(&namespace, "jobs", 1).await?;
    let follower = b.election("jobs").await?.expect(200)?.json;
    ensure!(follower["leader"] == false, "{follower}");
    ensure!(follower["holder"]["pod"] == "a", "{follower}");

    let sent = now();
    let told = a.election("jobs").await?.expect(200)?.json;
    ensure!(told["leader"] == true, "{told}");
    ensure!(told["fencingToken"] == held.data["fencingToken"], "{told}");
    let token = told["fencingToken"].as_u64().context("a token")?;
    a.verify("election:jobs", token).await?.expect(200)?;
    let told_until = sent.after(Duration::from_millis(
        told["validForMs"].as_u64().context("a validity")?,
    ));
    app.kill9()?;
    next.until("acquired").await?;
    let gone = now();
    ensure!(gone >= told_until, "{:?} early", told_until.since(gone));
    println!("succeeded {:?} after what was told", gone.since(told_until));
    let led = b.election("jobs").await?.expect(200)?.json;
    ensure!(led["fencingToken"].as_u64() > Some(token), "{led}");
    ensure!(a.election("jobs").await?.json["leader"] == false);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_removed_by_force_reports_it_and_runs_again() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("election-force", TakeOver::Peer, 15).await?;
    drop((a, b));
    let (a, b) = (namespace.pod("c").await?, namespace.pod("d").await?);
    let a = candidate(&a, "jobs", 15).await?;
    let first = a.until_leader("jobs").await?;
    let b = candidate(&b, "jobs", 15).await?;
    until_waiting(&namespace, "jobs", 1).await?;
    let events = a.curl_events("/v1/elections/jobs/events")?;
    events.until("leader").await?;

    let lock = lock_of(&namespace, "jobs").await?;
    let object = lock["metadata"]["name"].as_str().context("a name")?;
    let free = json!({"status": {"holder": null, "lease": null, "waiters": null}});
    let path = format!("distributedlocks/{object}/status");
    namespace.patch(&path, &free).await?;
    events.until("follower").await?;
    // Both run again; recorded incidents are not repeated.
    let is_newer =
        |answer: &Value| answer["fencingToken"].as_u64() > first["fencingToken"].as_u64();
    eventually("somebody to lead again", LIMIT, async || {
        let answers = [
            a.election("jobs").await.ok()?,
            b.election("jobs").await.ok()?,
        ];
        let mut leads = answers.iter().map(|answer| &answer.json);
        leads
            .find(|answer| answer["leader"] == true && is_newer(answer))
            .map(|_| ())
    })
    .await?;
    until_waiting(&namespace, "jobs", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn preferred_candidate_leads_next_and_preempts_no_leader() -> Result<()> {
    let (cluster, _operator) = with_operator().await?;
    let namespace = cluster.namespace("election-preferred").await?;
    let pods = [
        namespace.pod("a").await?,
        namespace.pod("b").await?,
        namespace.pod("c").await?,
    ];
    let a = candidate(&pods[0], "jobs", 15).await?;
    let first = a.until_leader("jobs").await?;
    let b = candidate(&pods[1], "jobs", 15).await?;
    until_waiting(&namespace, "jobs", 1).await?;
    let launch = Sidecar::launch(BINARY, &pods[2]).arg("--elect-preferred");
    let c = launch.arg("--elect-always").arg("jobs").start().await?;
    until_waiting(&namespace, "jobs", 2).await?;
    let waiters = lock_of(&namespace, "jobs").await?["status"]["waiters"].take();
    ensure!(
        waiters[0]["pod"] == "c" && waiters[0]["preferred"] == true,
        "{waiters}"
    );
    ensure!(
        waiters[1]["pod"] == "b" && waiters[1]["preferred"].is_null(),
        "{waiters}"
    );
    let still = a.election("jobs").await?.json;
    ensure!(
        still["leader"] == true && still["leaseId"] == first["leaseId"],
        "{still}"
    );

    let lease = first["leaseId"].as_str().context("a lease")?;
    a.release(lease).await?.expect(204)?;
    c.until_leader("jobs").await?;
    ensure!(b.election("jobs").await?.json["leader"] == false);
    Ok(())
}

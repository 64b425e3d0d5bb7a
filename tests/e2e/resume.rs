//! A sidecar that is killed and started again with its state directory, within the deadline: the leases of its apps
//! are resumed. If that may be wrong it starts a new session, logs the reason, and leaves the old grants alone until
//! their deadline.

mod crash_points;
mod many;
mod refused;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use serde_json::{Value, json};

use crate::harness::{
    Cluster, Launch, Lease, Namespace, Pod, Sidecar, TakeOver, directory, eventually, now,
};
use crate::support::{BINARY, acquire_in_time, sidecar};

/// Long enough to be killed and started again on a busy machine.
const TTL_SECONDS: u64 = 8;
const LIMIT: Duration = Duration::from_secs(40);

/// A pod whose sidecar keeps its state in a directory.
struct Node {
    namespace: Namespace,
    pod: Pod,
    state: PathBuf,
}

impl Node {
    async fn new(about: &str) -> Result<Self> {
        let cluster = Cluster::shared(TakeOver::Peer).await?;
        let namespace = cluster.namespace(about).await?;
        let pod = namespace.pod("a").await?;
        let state = directory()?.join(format!("{}-state", namespace.name));
        std::fs::create_dir(&state)?;
        Ok(Self {
            namespace,
            pod,
            state,
        })
    }

    fn launch(&self, pod: &Pod) -> Launch {
        self.launch_with(pod, TTL_SECONDS)
    }

    fn launch_with(&self, pod: &Pod, ttl_seconds: u64) -> Launch {
        let launch = Sidecar::launch(BINARY, pod).session_ttl(ttl_seconds);
        launch
            .arg("--state-dir")
            .arg(&self.state.display().to_string())
    }

    async fn start(&self) -> Result<Sidecar> {
        self.launch(&self.pod).start().await
    }

    /// Another pod of the namespace.
    async fn other(&self) -> Result<Sidecar> {
        sidecar(&self.namespace.pod("b").await?, TTL_SECONDS).await
    }

    fn file(&self) -> PathBuf {
        self.state.join("state")
    }

    /// The session that holds a lock.
    async fn session_of(&self, lock: &str) -> Result<String> {
        let lock = self.namespace.lock(lock).await?.unwrap_or_default();
        let session = lock["status"]["holder"]["session"].as_str();
        Ok(session.with_context(|| format!("{lock}"))?.to_owned())
    }
}

/// Kills a sidecar and waits until it is gone.
async fn kill(sidecar: Sidecar) -> Result<()> {
    sidecar.kill9()?;
    sidecar.ended().await?;
    Ok(())
}

/// Takes a lock, and says until when its app may believe in it.
async fn acquire(sidecar: &Sidecar, resource: &str) -> Result<(Lease, Moment)> {
    let asked = now();
    let lease = sidecar.acquire(resource).await?.granted()?;
    let told_until = asked.after(lease.valid_for);
    Ok((lease, told_until))
}

/// The answer to a renewal, once it is known which leases continue; until then it is 503 with Retry-After.
async fn renewed(sidecar: &Sidecar, lease: &Lease) -> Result<crate::harness::Answer> {
    let answer = eventually("it is known what goes on", LIMIT, async || {
        let answer = sidecar.renew(&lease.id).await.ok()?;
        let is_unclear = answer.status == 503 && answer.code() == "resuming";
        assert!(!is_unclear || answer.retry_after.is_some(), "{answer:?}");
        (!is_unclear).then_some(answer)
    });
    answer.await
}

/// The lines of a log with these words in their message.
fn lines(sidecar: &Sidecar, words: &str) -> Vec<Value> {
    let log = sidecar.log();
    let lines = log.lines().flat_map(serde_json::from_str::<Value>);
    let message = |line: &Value| line["message"].as_str().map(str::to_owned);
    let of_it = |line: &Value| message(line).is_some_and(|text| text.contains(words));
    lines.filter(of_it).collect()
}

const RESUMED: &str = "resumed session from state file";
const STARTS_NEW_SESSION: &str = "ignoring state file";

#[tokio::test(flavor = "multi_thread")]
async fn leases_are_resumed_after_two_crashes() -> Result<()> {
    let node = Node::new("resumed").await?;
    let mut a = node.start().await?;
    let body = json!({"resource": "res-0", "ownerId": "worker", "ttlSeconds": 60,
        "requestId": "id-1", "metadata": {"job": "7"}});
    let mut leases = vec![a.acquire_with(&body).await?.granted()?];
    for number in 1..5 {
        leases.push(acquire(&a, &format!("res-{number}")).await?.0);
    }
    let released = acquire(&a, "released").await?.0;
    a.release_for_good(&released.id).await?;
    let session = node.session_of("res-0").await?;
    let other = node.other().await?;
    for _death in 0..2 {
        kill(a).await?;
        a = node.start().await?;
        for lease in &leases {
            let again = renewed(&a, lease).await?.granted()?;
            ensure!((&again.id, again.token) == (&lease.id, lease.token));
            ensure!(
                again.valid_for > Duration::from_secs(TTL_SECONDS / 2),
                "{again:?}"
            );
        }
        let repeated = a.acquire_with(&body).await?.expect(200)?;
        ensure!(repeated.json["replayed"] == true, "{repeated:?}");
        ensure!(repeated.json["leaseId"] == leases[0].id, "{repeated:?}");
        ensure!(repeated.json["ownerId"] == "worker", "{repeated:?}");
        a.release_for_good(&released.id).await?;
        ensure!(node.session_of("res-0").await? == session);
        ensure!(lines(&a, RESUMED).len() == 1, "{}", a.log());
        let goes_on = &lines(&a, RESUMED)[0];
        ensure!(goes_on["leases"] == 5 && goes_on["lost"] == 0, "{goes_on}");
        other.acquire("res-1").await?.problem(409, "lock_held")?;
    }
    let checked = a.verify("res-1", leases[1].token).await?.expect(200)?;
    ensure!(checked.json["exact"] == true, "{checked:?}");
    // Renewed, and released as usual.
    tokio::time::sleep(Duration::from_secs(TTL_SECONDS)).await;
    a.renew(&leases[1].id).await?.granted()?;
    a.release(&leases[1].id).await?.expect(204)?;
    let next = other.acquire("res-1").await?.granted()?;
    ensure!(next.token > leases[1].token);
    ensure!(node.namespace.all("locksessions").await?.len() == 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_sidecar_leaves_nothing_to_resume() -> Result<()> {
    let node = Node::new("stopped").await?;
    let a = node
        .launch(&node.pod)
        .arg("--on-term=apps-ended")
        .start()
        .await?;
    let lease = acquire(&a, "res").await?.0;
    ensure!(node.file().exists());
    a.sigterm()?;
    ensure!(a.ended().await?.success());
    ensure!(!node.file().exists());
    let a = node.start().await?;
    a.renew(&lease.id).await?.problem(404, "lease_unknown")?;
    ensure!(acquire(&a, "res").await?.0.token > lease.token);
    ensure!(lines(&a, STARTS_NEW_SESSION).is_empty(), "{}", a.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hold_is_kept_until_its_promise_ends_after_a_crash() -> Result<()> {
    let node = Node::new("held").await?;
    let a = node.start().await?;
    let asked = now();
    let held = a.curl_hold(&json!({"resource": "res"}))?;
    let acquired = held.until("acquired").await?;
    let told_until = asked.after(acquired.valid_for().context("validForMs")?);
    let lease = acquired.data["leaseId"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let session = node.session_of("res").await?;
    kill(a).await?;
    let a = node.start().await?;
    let b = node.other().await?;
    let next = acquire_in_time(&b, "res", LIMIT).await?;
    ensure!(now() >= told_until, "it was given on too early");
    ensure!(next.token > acquired.data["fencingToken"].as_u64().unwrap_or(u64::MAX));
    let lost = a.get(&lease).await?.problem(410, "lease_lost")?;
    ensure!(lost.json["reason"] == "agent_restarted", "{lost:?}");
    // Released, and not taken over.
    let old = node.namespace.session(&session).await?.unwrap_or_default();
    ensure!(old["status"].get("revoked").is_none(), "{old}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unusable_state_directory_is_reported_at_the_start() -> Result<()> {
    let node = Node::new("unusable").await?;
    std::fs::remove_dir(&node.state)?;
    let error = node.start().await.err().context("it must not start")?;
    let words = format!("{error:#}");
    ensure!(words.contains("does not exist"), "{words}");
    // A file is not a directory.
    std::fs::write(&node.state, "")?;
    let error = node.start().await.err().context("it must not start")?;
    ensure!(format!("{error:#}").contains("does not exist"), "{error:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn second_process_has_its_own_session_beside_the_first() -> Result<()> {
    let node = Node::new("second").await?;
    let first = node.start().await?;
    let lease = acquire(&first, "res").await?.0;
    let second = node.start().await?;
    ensure!(lines(&second, "state directory in use").len() == 1);
    let its = acquire(&second, "its").await?.0;
    ensure!(node.session_of("its").await? != node.session_of("res").await?);
    second
        .renew(&lease.id)
        .await?
        .problem(404, "lease_unknown")?;
    first.renew(&lease.id).await?.granted()?;
    kill(first).await?;
    kill(second).await?;
    let third = node.start().await?;
    renewed(&third, &lease).await?.granted()?;
    third.renew(&its.id).await?.problem(404, "lease_unknown")?;
    Ok(())
}

//! The story that fences are for: a worker gets a token and is paused for longer than its TTL, another one works, and
//! the first one continues and writes.

use std::process::Command;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{PATIENCE, Process, TakeOver, directory, eventually};
use crate::support::Pair;

/// The commands of a store. They have the token in `$TOKEN` and what to write in `$VALUE`. In Kubernetes, the namespace
/// is `$NAMESPACE`, and `$KUBECTL` is kubectl for it.
pub(super) struct Story<'s> {
    /// What precedes the acquire.
    pub(super) prepare: &'s str,
    /// Writes, and passes the fence.
    pub(super) fenced: String,
    /// Writes without the fence.
    pub(super) unfenced: String,
    /// Prints what was written last.
    pub(super) read: String,
    /// What a stale writer gets, in its error.
    pub(super) refusal: &'static str,
}

/// Plays the story on a real control plane, and once more without the fence: then the stale write lands.
pub(super) async fn stale_writer_is_refused(story: &Story<'_>) -> Result<()> {
    stale_writer_is_refused_by(story, async |_sidecar| Ok(())).await
}

/// The same with a server that needs the URL of a sidecar.
pub(super) async fn stale_writer_is_refused_by<T>(
    story: &Story<'_>,
    start: impl AsyncFn(&str) -> Result<T>,
) -> Result<()> {
    let (stale, printed) = play(story, &story.fenced, &start).await?;
    ensure!(!stale, "the fence accepted a stale token:\n{printed}");
    ensure!(
        printed.contains(story.refusal),
        "the refusal is unclear:\n{printed}"
    );
    let (stale, printed) = play(story, &story.unfenced, &start).await?;
    ensure!(
        stale,
        "without the fence nothing went wrong, so the story shows nothing:\n{printed}"
    );
    Ok(())
}

/// Returns whether the stale write landed, and what the stale worker printed.
async fn play<T>(
    story: &Story<'_>,
    write: &str,
    start: &impl AsyncFn(&str) -> Result<T>,
) -> Result<(bool, String)> {
    let pair = Pair::start("fences", TakeOver::Peer, 5).await?;
    let _server = start(&pair.b.url).await?;
    // The worker acquires, and stops itself before it writes, as a paused process is stopped.
    let script = format!(
        "TOKEN=$(curl -sS --fail-with-body {}/v1/locks/acquire -H 'content-type: application/json' \
         -d '{{\"resource\":\"report\",\"ttlSeconds\":1}}' | jq -er .fencingToken) || exit 1
         echo \"token $TOKEN\"\nkill -STOP $$\n{write}",
        pair.a.url
    );
    let admin = pair.namespace.cluster.control_plane().admin();
    let kubectl = format!(
        "{} --kubeconfig {} --namespace {}",
        admin.kubectl.display(),
        admin.path.display(),
        pair.namespace.name
    );
    let shell = |command: &str, token: u64, value: &str| {
        let mut shell = Command::new("bash");
        shell.env("TOKEN", token.to_string()).env("VALUE", value);
        shell
            .env("NAMESPACE", &pair.namespace.name)
            .env("KUBECTL", &kubectl);
        shell.args(["-c", command]);
        shell
    };
    let prepared = shell(story.prepare, 0, "").output()?;
    ensure!(prepared.status.success(), "{prepared:?}");
    let log = directory()?.join(format!("worker-{}", pair.namespace.name));
    let worker = Process::spawn("worker", &mut shell(&script, 0, "stale"), &log)?;
    let token: u64 = eventually("the token of the worker", PATIENCE, async || {
        let printed = worker.log();
        printed
            .lines()
            .find_map(|line| line.strip_prefix("token ")?.parse().ok())
    })
    .await?;
    let body = json!({"resource": "report", "ttlSeconds": 30, "waitSeconds": 60});
    let next = pair.b.acquire_with(&body).await?.granted()?;
    ensure!(next.token > token, "{next:?} after {token}");
    let newer = shell(write, next.token, "new").output()?;
    ensure!(newer.status.success(), "the newer write failed: {newer:?}");
    worker.signal(Signal::CONT)?;
    let ended = worker.wait(PATIENCE).await?;
    let value = shell(&story.read, 0, "").output()?;
    let value = String::from_utf8(value.stdout)?;
    let landed = value.trim() == "stale";
    ensure!(landed || value.trim() == "new", "{value:?}");
    ensure!(
        landed == ended.success(),
        "{ended} with {value:?}:\n{}",
        worker.log()
    );
    Ok((landed, worker.log()))
}

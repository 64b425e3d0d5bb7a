//! `wait` and `list --watch`: what the plugin prints as the locks change.

use anyhow::{Context, Result, bail, ensure};
use tokio::task::JoinHandle;

use super::{PLUGIN, contains, row};
use crate::harness::{
    Cluster, Kubeconfig, Namespace, Output, PATIENCE, Sidecar, TakeOver, eventually,
};
use crate::support::Pair;

/// Starts `wait` as a pod, whose requests the API server records, and returns once it watches.
async fn start_wait(
    namespace: &Namespace,
    user: &Kubeconfig,
    condition: &str,
) -> Result<JoinHandle<Result<Output>>> {
    let control_plane = namespace.cluster.control_plane();
    let watches = || {
        let served = control_plane.served().unwrap_or_default();
        let ours = served.iter().filter(|one| one.verb == "watch");
        let ours = ours.filter(|one| one.uri.contains("metadata.name%3Dres"));
        ours.count()
    };
    let before = watches();
    let (user, condition) = (user.clone(), condition.to_owned());
    let task = tokio::spawn(async move {
        let args = ["wait", "res", "--for", &condition, "--timeout", "10m"];
        user.kubectl_leasehold(PLUGIN, &args).await
    });
    eventually("wait to watch the lock", PATIENCE, async || {
        (watches() > before || task.is_finished()).then_some(())
    })
    .await?;
    goes_on(task).await
}

/// Fails with the output of a command that has ended.
async fn goes_on(wait: JoinHandle<Result<Output>>) -> Result<JoinHandle<Result<Output>>> {
    if wait.is_finished() {
        bail!("the condition is not met: {:?}", wait.await??);
    }
    Ok(wait)
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_ends_with_its_condition_across_a_restart() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let Pair { namespace, a, b } = Pair::start_in(&cluster, "plugin-wait", 60).await?;
    // A pod may read locks; it is a service account.
    let user = namespace.pod("user").await?.kubeconfig;
    let held = start_wait(&namespace, &user, "held").await?;
    let by_b = start_wait(&namespace, &user, "holder=b").await?;
    let of_a = a.acquire_for_long("res").await?.granted()?;
    contains(
        &held.await??.ok()?,
        &["distributedlock.leasehold.dev/res condition met"],
    )?;

    let free = start_wait(&namespace, &user, "free").await?;
    // One that is starting refuses watches, before it has read the roles.
    cluster.control_plane().stop_api_server().await?;
    cluster.control_plane().start_api_server().await?;
    cluster.control_plane().kill_api_server().await?;
    cluster.control_plane().start_api_server().await?;
    let (free, by_b) = (goes_on(free).await?, goes_on(by_b).await?);
    a.release_for_good(&of_a.id).await?;
    contains(&free.await??.ok()?, &["condition met"])?;
    let by_b = goes_on(by_b).await?;
    b.acquire_for_long("res").await?.granted()?;
    contains(&by_b.await??.ok()?, &["condition met"])?;

    let args = ["wait", "res", "--for", "free", "--timeout", "0"];
    let late = user.plugin(PLUGIN, &args).await?.refused()?;
    contains(&late, &["timed out waiting", "kubectl leasehold why res"])?;
    watched_list_shows_each_change(&namespace, &b).await
}

/// In the same cluster, which nobody else uses.
async fn watched_list_shows_each_change(namespace: &Namespace, holder: &Sidecar) -> Result<()> {
    let admin = namespace.cluster.control_plane().admin();
    let args = ["list", "-w", "--namespace", &namespace.name];
    let list = admin.start_plugin(PLUGIN, &args)?;
    let until_last_row = async |lock: &str, pod: Option<&str>| {
        let what = format!("a row of {lock} with {pod:?}");
        let shown = eventually(&what, PATIENCE, async || {
            let log = list.log();
            // The headers once, and the lock's last row: a table like any other.
            let newest = log.lines().rfind(|row| row.starts_with(lock))?;
            let table = format!("{}\n{newest}", log.lines().next()?);
            let cells = row(&table, lock).ok()?;
            (cells["POD"] == pod.unwrap_or("<none>")).then_some(())
        });
        shown.await.with_context(|| list.log())
    };
    until_last_row("res", Some("b")).await?;
    let other = holder.acquire_for_long("other").await?.granted()?;
    // As soon as its object exists, and again when it has a holder.
    until_last_row("other", Some("b")).await?;
    holder.release_for_good(&other.id).await?;
    until_last_row("other", None).await?;
    list.must_run()?;
    ensure!(
        list.log().matches("RESOURCE").count() == 1,
        "{}",
        list.log()
    );
    Ok(())
}

//! What an app receives when the cluster does not let its agent acquire a lock, or is not ready for any. Each leaves
//! the store unchanged.

use std::time::Duration;

use anyhow::Result;

use crate::harness::{Cluster, Exec, TakeOver, eventually};
use crate::support::{BINARY, sidecar};

/// The exit code of `leasehold exec` if its command was not run for such a reason.
const UNAVAILABLE: i32 = 202;

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bare").await?;
    namespace.service_account("bare").await?;
    let a = sidecar(&namespace.pod_of("a", "bare").await?, 15).await?;
    let refused = a.acquire("res").await?.problem(403, "forbidden")?;
    let right = "list distributedlocks in leasehold.dev";
    assert_eq!(refused.json["missingRight"], right);
    let exec = Exec::start(BINARY, &a, &["--lock", "res"], "echo ran now")?;
    exec.ends_with(UNAVAILABLE).await?;
    let advice = "bind this ServiceAccount or user to the ClusterRole leasehold-sidecar";
    assert!(exec.log().contains(advice), "{}", exec.log());
    assert!(exec.printed("ran").is_none(), "{}", exec.log());
    // Without a sidecar, and for a ServiceAccount that is not a pod's.
    let alone = Exec::alone(
        BINARY,
        &a.pod.kubeconfig,
        &["--lock", "res"],
        "echo ran now",
    )?;
    alone.ends_with(UNAVAILABLE).await?;
    assert!(alone.log().contains(advice), "{}", alone.log());
    let user = namespace.kubeconfig("no-pod", &namespace.token("app", None).await?)?;
    let alone = Exec::alone(BINARY, &user, &["--lock", "res"], "echo ran now")?;
    alone.ends_with(UNAVAILABLE).await?;
    let advice = "this ServiceAccount token is not bound to a pod";
    assert!(alone.log().contains(advice), "{}", alone.log());
    let user = namespace.kubeconfig("wrong", "no-token")?;
    let alone = Exec::alone(BINARY, &user, &["--lock", "res"], "echo ran now")?;
    alone.ends_with(UNAVAILABLE).await?;
    let advice = "does not accept the credentials (401)";
    assert!(alone.log().contains(advice), "{}", alone.log());
    assert!(namespace.all("distributedlocks").await?.is_empty());
    assert!(namespace.all("locksessions").await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_crds_are_named_with_the_install_command() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("bare").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let delete = ["delete", "-f", "crds", "--wait=false"];
    namespace.kubectl(&delete).await?.ok()?;

    // The API server forgets them a moment after they are gone.
    let limit = Duration::from_secs(30);
    let refused = eventually("the definitions to be missed", limit, async || {
        let answer = a.acquire("res").await.ok()?;
        (answer.code() == "not_installed").then_some(answer)
    });
    let refused = refused.await?.problem(503, "not_installed")?;
    let detail = refused.json["detail"].to_string();
    assert!(detail.contains(leasehold::crd::INSTALL_COMMAND), "{detail}");
    assert_eq!(refused.retry_after, None);
    let exec = Exec::start(BINARY, &a, &["--lock", "res"], "true")?;
    exec.ends_with(UNAVAILABLE).await?;
    assert!(
        exec.log().contains(leasehold::crd::INSTALL_COMMAND),
        "{}",
        exec.log()
    );
    let alone = Exec::alone(BINARY, &a.pod.kubeconfig, &["--lock", "res"], "true")?;
    alone.ends_with(UNAVAILABLE).await?;
    let log = alone.log();
    assert!(log.contains(leasehold::crd::INSTALL_COMMAND), "{log}");
    let list = a.list("").await?.problem(503, "not_installed")?;
    assert_eq!(list.retry_after, None);
    Ok(())
}

//! The oldest supported Kubernetes: definitions, policies and the basic calls.

use anyhow::Result;

use crate::harness::{Cluster, KubeVersion, TakeOver};
use crate::kubectl::health::renewals_are_stamped;
use crate::support::{Pair, acquire_in_time};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "Kubernetes 1.33; `make floor` runs it"]
async fn a_lock_moves_from_pod_to_pod_on_the_promised_floor() -> Result<()> {
    let cluster = Cluster::fresh_on(KubeVersion::Floor, TakeOver::Peer).await?;
    let version = cluster.admin().await?.apiserver_version().await?;
    assert!(version.git_version.starts_with("v1.33."), "{version:?}");

    let Pair { namespace, a, b } = Pair::start_in(&cluster, "floor", 3).await?;
    let first = a.acquire("res").await?.granted()?;
    b.acquire("res").await?.problem(409, "lock_held")?;
    renewals_are_stamped(&namespace, "res").await?;
    a.release_for_good(&first.id).await?;
    let second = b.acquire("res").await?.granted()?;
    assert!(second.token > first.token);
    a.verify("res", first.token)
        .await?
        .problem(409, "stale_token")?;

    // The rules and the policies are in force there too.
    let refused = namespace.kubectl(&["delete", "dlock", "res"]).await?;
    assert!(refused.refused()?.contains("the lock is held by b"));
    let patch = r#"{"status":{"token":1}}"#;
    let back = [
        "patch",
        "dlock",
        "res",
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ];
    assert!(
        namespace
            .kubectl(&back)
            .await?
            .refused()?
            .contains("status.token")
    );
    let of_another = a.pod.kubectl(&back).await?;
    assert!(of_another.refused()?.contains("forbidden"));

    b.kill9()?;
    let third = acquire_in_time(&a, "res", std::time::Duration::from_secs(20)).await?;
    assert!(third.token > second.token);
    Ok(())
}

//! `fence-object` with the real policy: it refuses what the page says, and the wrong uses are named.

use anyhow::{Result, ensure};

use super::{contains, run, run_as};
use crate::harness::{
    Cluster, Namespace, Output, PATIENCE, TakeOver, apply, eventually, read_file, repository,
};
use crate::support::{bind, sidecar};

/// Writes a token to an object, and data. The API server may not have seen a grant yet, and says so.
async fn write(namespace: &Namespace, object: &str, token: u64) -> Result<Output> {
    let patch = format!(
        r#"{{"metadata":{{"annotations":{{"leasehold.dev/fencing-token":"{token}"}}}},"data":{{"by":"{token}"}}}}"#
    );
    let args = ["patch", object, "--type=merge", "-p", &patch];
    eventually("an answer other than to repeat it", PATIENCE, async || {
        let answer = namespace.kubectl(&args).await.ok()?;
        (!answer.stderr.contains("repeat the write")).then_some(answer)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn object_fenced_by_command_refuses_stale_writer() -> Result<()> {
    let cluster = Cluster::fresh(TakeOver::Strict).await?;
    let namespace = cluster.namespace("plugin-fence").await?;
    let create = async |what: &[&str]| namespace.kubectl(&[&["create"], what].concat()).await;
    create(&["configmap", "settings"]).await?.ok()?;
    create(&["secret", "generic", "second"]).await?.ok()?;
    let fence = ["fence-object", "cm", "settings", "--lock", "Settings/1"];
    let no_policy = run(&namespace, &fence).await?.refused()?;
    contains(&no_policy, &["admissionPolicy.fencedObjects=true"])?;
    let policy = repository("charts/leasehold/files/fencing/objects.yaml");
    for object in read_file(&policy)? {
        apply(&namespace.client, &object).await?;
    }
    wrong_uses_are_named(&namespace).await?;

    let fenced = run(&namespace, &fence).await?;
    contains(&fenced.stderr, &["leasehold.dev/fencing-token"])?;
    contains(&fenced.ok()?, &["created", "configmap/settings labeled"])?;
    let retained = "jsonpath={.items[*].spec.retainSeconds}";
    let locks = ["get", "distributedlocks", "--output", retained];
    contains(&namespace.kubectl(&locks).await?.ok()?, &["315360000"])?;
    let repeated = run(&namespace, &fence).await?.ok()?;
    ensure!(repeated.matches(" unchanged").count() == 4, "{repeated}");
    let unstamped = write(&namespace, "configmap/settings", 0).await?;
    contains(&unstamped.refused()?, &["is not a fencing token"])?;

    let (a, b) = (namespace.pod("a").await?, namespace.pod("b").await?);
    let (a, b) = (sidecar(&a, 60).await?, sidecar(&b, 60).await?);
    let old = a.acquire("Settings/1").await?.granted()?;
    write(&namespace, "configmap/settings", old.token)
        .await?
        .ok()?;
    // Another kind, when the lock has a token.
    let second = ["fence-object", "secrets", "second", "--lock", "Settings/1"];
    run(&namespace, &second).await?.ok()?;
    a.release_for_good(&old.id).await?;
    let new = b.acquire("Settings/1").await?.granted()?;
    write(&namespace, "configmap/settings", new.token)
        .await?
        .ok()?;
    let stale = write(&namespace, "configmap/settings", old.token).await?;
    contains(&stale.refused()?, &["stale fencing token"])?;
    let deleted = namespace
        .kubectl(&["delete", "configmap", "settings"])
        .await?;
    contains(&deleted.refused()?, &["preconditions.resourceVersion"])?;

    // Another object, when the bindings are enforced: the label is written with the grant's first token.
    create(&["configmap", "third"]).await?.ok()?;
    run(
        &namespace,
        &["fence-object", "configmap", "third", "--lock", "Settings/1"],
    )
    .await?
    .ok()?;
    let stale = write(&namespace, "configmap/third", old.token).await?;
    contains(&stale.refused()?, &["stale fencing token"])?;
    write(&namespace, "configmap/third", new.token)
        .await?
        .ok()?;
    ends_with_its_bindings(&namespace).await
}

async fn wrong_uses_are_named(namespace: &Namespace) -> Result<()> {
    for (kind, name, words) in [
        ("gadgets", "settings", "no kind \"gadgets\""),
        ("cm", "missing", "configmaps \"missing\" not found"),
        ("clusterrole", "view", "are cluster-scoped"),
    ] {
        let used = ["fence-object", kind, name, "--lock", "Settings/1"];
        contains(&run(namespace, &used).await?.refused()?, &[words])?;
    }
    bind(namespace, "jane", ("ClusterRole", "leasehold-view")).await?;
    let fence = ["fence-object", "cm", "settings", "--lock", "Settings/1"];
    let forbidden = run_as(namespace, "jane", &fence).await?.refused()?;
    contains(
        &forbidden,
        &["cannot get resource \"validatingadmissionpolicies\""],
    )?;
    let locks = namespace.kubectl(&["get", "dlock", "-o", "name"]).await?;
    ensure!(
        locks.ok()?.is_empty(),
        "a refused command must write nothing"
    );
    Ok(())
}

/// The commands of docs/fencing-kubernetes.md that remove the guard.
async fn ends_with_its_bindings(namespace: &Namespace) -> Result<()> {
    let bindings = namespace
        .kubectl(&["get", "validatingadmissionpolicybindings", "-o", "name"])
        .await?
        .ok()?;
    let of_settings = bindings.lines().filter(|one| {
        one.contains(&format!(".{}.", namespace.name)) && one.ends_with(".configmaps")
    });
    let of_settings: Vec<_> = of_settings.collect();
    ensure!(of_settings.len() == 2, "{bindings}");
    let delete = [&["delete"], of_settings.as_slice()].concat();
    namespace.kubectl(&delete).await?.ok()?;
    let label = ["label", "configmap", "settings", "leasehold.dev/fenced-by-"];
    eventually("the guard to end", PATIENCE, async || {
        let answer = namespace.kubectl(&label).await.ok()?;
        answer.success.then_some(())
    })
    .await
}

//! A cluster without the definitions, one with older definitions, and a lock that vanishes.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{PLUGIN, contains, row, run, why};
use crate::harness::{
    Cluster, KubeVersion, Namespace, PATIENCE, apply, eventually, read_file, repository,
};

#[tokio::test(flavor = "multi_thread")]
async fn absent_and_old_definitions_are_understood() -> Result<()> {
    let cluster = Cluster::bare(KubeVersion::from_env()?).await?;
    let namespace = cluster.bare_namespace("bare", &json!({})).await?;
    for command in [
        &["list"][..],
        &["list", "-w"],
        &["why", "res"],
        &["describe", "res"],
        &["history", "res"],
        &["wait", "res", "--for", "free"],
        &["release", "res", "--yes", "--reason", "x"],
        &["sessions"],
        &["elections"],
        &["top"],
        &["tree"],
        &["version"],
    ] {
        let said = run(&namespace, command).await?.refused()?;
        contains(&said, &["Leasehold is not installed"])?;
    }
    run(&namespace, &["version", "--client"]).await?.ok()?;
    install_old_definitions(&namespace).await?;
    old_lock_is_shown(&namespace).await?;
    deleted_lock_ends_a_release(&namespace).await
}

/// As an older version had them, without the fields that came later.
async fn install_old_definitions(namespace: &Namespace) -> Result<()> {
    for (kind, later) in [
        (
            "distributedlocks",
            &[
                "/spec/properties/longHeldSeconds",
                "/status/properties/completed",
                "/status/properties/incidents",
                "/status/properties/conditions",
            ][..],
        ),
        ("locksessions", &[]),
    ] {
        let file = repository(&format!("crds/{kind}.leasehold.dev.yaml"));
        for mut definition in read_file(&file)? {
            let schema =
                &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
            for path in later {
                let (parent, field) = path.rsplit_once('/').context("a path")?;
                let parent = schema.pointer_mut(parent).context("a field")?;
                let removed = parent
                    .as_object_mut()
                    .and_then(|fields| fields.remove(field));
                removed.with_context(|| format!("{path} is in no definition"))?;
            }
            apply(&namespace.client, &definition).await?;
        }
        eventually("the kind to be served", PATIENCE, async || {
            namespace.all(kind).await.ok()
        })
        .await?;
    }
    Ok(())
}

/// Makes a lock as an agent would: no agent runs here.
async fn old_lock_is_shown(namespace: &Namespace) -> Result<()> {
    let meta = json!({"name": "res"});
    let object = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "metadata": meta, "spec": {"resource": "res"}});
    namespace.create(&object).await?;
    let status = json!({"status": {"token": 1007, "transitions": 1,
        "holder": {"ownerId": "app", "pod": "a", "podUid": "u", "session": "s",
            "sessionTtlSeconds": 15},
        "lease": {"id": "grant-1", "acquiredAt": "2026-01-01T00:00:00Z", "ttlSeconds": 60}}});
    namespace
        .patch("distributedlocks/res/status", &status)
        .await?;
    let listed = row(&run(namespace, &["list"]).await?.ok()?, "res")?;
    ensure!(
        listed["POD"] == "a" && listed["SESSION"] == "missing",
        "{listed}"
    );
    let seen = why(namespace, "res").await?;
    ensure!(seen["chain"][0]["fencingToken"] == 1007, "{seen}");
    let described = run(namespace, &["describe", "res"]).await?.ok()?;
    contains(
        &described,
        &["held by app in pod a", "no lock of its election exists"],
    )?;
    let history = run(namespace, &["history", "res"]).await?;
    ensure!(history.success, "{history:?}");
    contains(&history.stderr, &["Nothing is on record"])
}

/// No policy keeps its object here, and no operator does what was requested.
async fn deleted_lock_ends_a_release(namespace: &Namespace) -> Result<()> {
    let admin = namespace.cluster.control_plane().admin().clone();
    let place = namespace.name.clone();
    let release = tokio::spawn(async move {
        let args = [
            "release",
            "res",
            "--yes",
            "--reason",
            "x",
            "--namespace",
            &place,
            "--timeout",
            "10m",
        ];
        admin.plugin(PLUGIN, &args).await
    });
    eventually("the request", PATIENCE, async || {
        let lock: Option<Value> = namespace.lock("res").await.ok()?;
        (!lock?["spec"]["releaseRequest"].is_null()).then_some(())
    })
    .await?;
    namespace.kubectl(&["delete", "dlock", "res"]).await?.ok()?;
    let done = release.await??.ok()?;
    contains(&done, &["object of res was deleted"])?;
    let gone = run(namespace, &["why", "res"]).await?.refused()?;
    contains(&gone, &["no lock has the name res"])
}

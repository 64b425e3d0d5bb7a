//! Notes are Events that `kubectl describe` shows with the lock.

use anyhow::{Context, Result};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use kube::Api;
use kube::api::{ListParams, PostParams};
use leasehold::k8s::K8sEvents;
use leasehold::protocol::time::WallTime;
use leasehold::store::StoreError;
use leasehold::store::cluster::{Event, EventStore as _, Regarding};
use leasehold::store::fleet::ObjectRef;
use serde_json::json;

use super::{make_lock, operator, place};
use crate::harness::{Cluster, KubeVersion, Namespace, TakeOver};

async fn note(namespace: &Namespace, name: &str) -> Result<Event> {
    let lock = namespace.lock("res").await?.context("a lock")?;
    Ok(Event {
        name: name.into(),
        regarding: Regarding::Lock,
        object_ref: place(namespace, "res"),
        uid: lock["metadata"]["uid"].as_str().context("a uid")?.into(),
        pod: Some(("app-1".into(), None)),
        is_warning: true,
        reason: "Expired",
        action: "Revoke",
        message: "the session of app-1 was not renewed".to_owned(),
        at: WallTime(1_767_225_600_123_456),
    })
}

async fn events(namespace: &Namespace) -> Result<Vec<ApiEvent>> {
    let api = Api::<ApiEvent>::namespaced(namespace.client.clone(), &namespace.name);
    Ok(api.list(&ListParams::default()).await?.items)
}

#[tokio::test(flavor = "multi_thread")]
async fn event_is_shown_with_its_lock_and_found_again() -> Result<()> {
    noted_and_known(KubeVersion::from_env()?).await
}

/// The field selector by which notes are known is the API server's own.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "Kubernetes 1.33; `make floor` runs it"]
async fn event_is_found_again_on_the_promised_floor() -> Result<()> {
    noted_and_known(KubeVersion::Floor).await
}

async fn noted_and_known(version: KubeVersion) -> Result<()> {
    let cluster = Cluster::fresh_on(version, TakeOver::Strict).await?;
    let namespace = cluster.namespace("notes").await?;
    make_lock(&namespace, "res", "res").await?;
    let notes = K8sEvents::new(operator(&cluster, &namespace.name).await?, "operator-0");
    foreign_event(&namespace).await?;
    assert_eq!(notes.list_own().await?, [].into());

    let note = note(&namespace, "res.expired").await?;
    notes.write(&note).await?;
    let described = namespace
        .kubectl(&["describe", "dlock", "res"])
        .await?
        .ok()?;
    let shown = described.split_once("Events:").context("no events")?.1;
    let is_shown = shown.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.starts_with(&["Warning", "Expired"])
            && words
                .join(" ")
                .ends_with("leasehold.dev/operator the session of app-1 was not renewed")
    });
    assert!(is_shown, "{described}");
    assert_eq!(
        notes.list_own().await?,
        [place(&namespace, "res.expired")].into()
    );
    Ok(())
}

/// Another controller's Event about the same lock.
async fn foreign_event(namespace: &Namespace) -> Result<()> {
    let lock = json!({"apiVersion": "leasehold.dev/v1alpha1", "kind": "DistributedLock",
        "namespace": namespace.name, "name": "res"});
    let event = json!({"metadata": {"name": "foreign"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "another", "reportingInstance": "a", "type": "Normal",
        "reason": "Seen", "action": "Look", "note": "n", "regarding": lock});
    let api = Api::<ApiEvent>::namespaced(namespace.client.clone(), &namespace.name);
    let event = serde_json::from_value(event)?;
    api.create(&PostParams::default(), &event).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn event_written_twice_exists_once() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("notes").await?;
    make_lock(&namespace, "res", "res").await?;
    let notes = K8sEvents::new(operator(&cluster, &namespace.name).await?, "operator-0");
    let first = note(&namespace, "res.expired").await?;
    notes.write(&first).await?;
    let second = Event {
        message: "another text".to_owned(),
        ..first.clone()
    };
    notes.write(&second).await?;
    let events = events(&namespace).await?;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].note, Some(first.message));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn longest_event_is_accepted() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("notes").await?;
    make_lock(&namespace, "res", "res").await?;
    let client = operator(&cluster, &namespace.name).await?;
    let notes = K8sEvents::new(client, &"operator-".repeat(40));
    let long = Event {
        message: "é".repeat(2000),
        pod: None,
        is_warning: false,
        ..note(&namespace, "res.long").await?
    };
    notes.write(&long).await?;
    assert_eq!(events(&namespace).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn event_of_a_terminating_namespace_is_written_outside_it() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("notes").await?;
    make_lock(&namespace, "res", "res").await?;
    let notes = K8sEvents::new(operator(&cluster, &namespace.name).await?, "operator-0");
    let note = note(&namespace, "res.expired").await?;
    // The deletion is not finished here: a controller would do that.
    let deletion = ["delete", "namespace", &namespace.name, "--wait=false"];
    namespace.kubectl(&deletion).await?.ok()?;
    for _ in 0..2 {
        notes.write(&note).await?;
    }
    assert!(events(&namespace).await?.is_empty());
    let known = notes.list_own().await?;
    assert!(known.contains(&place(&namespace, "res.expired")));
    let outside = Api::<ApiEvent>::namespaced(namespace.client.clone(), "default");
    let about = ListParams::default().fields(&format!("regarding.name={}", namespace.name));
    let told = outside.list(&about).await?.items;
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].reason.as_deref(), Some("Expired"));

    let nowhere = Event {
        object_ref: ObjectRef {
            namespace: "no-such-namespace".into(),
            ..note.object_ref.clone()
        },
        ..note.clone()
    };
    notes.write(&nowhere).await?;
    let about = ListParams::default().fields("regarding.name=no-such-namespace");
    assert!(outside.list(&about).await?.items.is_empty());

    // Another refusal is one.
    let bystander = namespace.pod_of("bystander", "default").await;
    assert!(bystander.is_err(), "the namespace takes new objects");
    let elsewhere = cluster.namespace("notes").await?;
    let pod = elsewhere.pod("a").await?;
    let notes = K8sEvents::new(super::client_of(&pod).await?, "a");
    let refusal = notes
        .write(&Event {
            object_ref: place(&elsewhere, "res"),
            ..note
        })
        .await;
    assert!(matches!(refusal, Err(StoreError::Denied(_))), "{refusal:?}");
    Ok(())
}

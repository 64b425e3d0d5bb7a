//! The injecting webhook as the API server calls it: real pods get the sidecar, also while certificates change,
//! replicas crash and objects are edited.

mod directory;
mod fixture;
mod rotation;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::webhook::certs::authorities;

use crate::harness::{PATIENCE, eventually};
use fixture::{Fixture, NINETY_DAYS};

/// How long the things here may take on a busy machine.
const LIMIT: Duration = PATIENCE;

#[tokio::test(flavor = "multi_thread")]
async fn annotated_pod_is_injected_and_a_bad_one_refused() -> Result<()> {
    let fixture = Fixture::new().await?;
    let operator = fixture.operator("a", NINETY_DAYS).await?;
    let made = fixture.make_pod().await?;
    let first = &made["spec"]["initContainers"][0];
    ensure!(first["name"] == "leasehold", "{made:#}");
    ensure!(first["image"] == "registry.example/leasehold:test");
    ensure!(made["metadata"]["labels"]["leasehold.dev/injected"] == "true");
    // One that is wrong is refused in our words.
    let refusal = fixture.make(&fixture::asking("ports", "api=x")).await;
    let refusal = format!("{:#}", refusal.err().context("it was made")?);
    ensure!(refusal.contains("config.leasehold.dev/ports"), "{refusal}");

    let secret = fixture.secret().await?.context("a Secret")?;
    ensure!(secret["type"] == "kubernetes.io/tls", "{secret:#}");
    let keys = secret["data"].as_object().context("data")?.keys();
    ensure!(keys.eq(["ca.crt", "tls.crt", "tls.key"]));
    for bundle in fixture.bundles().await? {
        ensure!(authorities(&bundle).is_some_and(|trusted| trusted.len() == 1));
    }
    let injected = "leasehold_webhook_reviews_total{outcome=\"injected\"}";
    ensure!(operator.metric(injected).await? >= 1.0);
    let not_after = operator.metric(fixture::NOT_AFTER).await?;
    let not_before = operator.metric(fixture::NOT_BEFORE).await?;
    let life = NINETY_DAYS + 3_600;
    ensure!((not_after - not_before - f64::from(life)).abs() < 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_damaged_or_edited_certificates_are_repaired() -> Result<()> {
    let fixture = Fixture::new().await?;
    let a = fixture.operator("a", NINETY_DAYS).await?;
    let b = fixture.operator("b", NINETY_DAYS).await?;
    // Pods are made all the time: nothing here may refuse one.
    let pods = fixture.make_pods();
    let first = fixture.until_served_by_all(&[&a, &b], None).await?;
    fixture.delete_secret().await?;
    let second = fixture.until_served_by_all(&[&a, &b], Some(&first)).await?;
    fixture.damage_secret().await?;
    fixture
        .until_served_by_all(&[&a, &b], Some(&second))
        .await?;
    let made = pods.end().await?;
    ensure!(made > 10, "only {made} pods were made");
    // Removing the trust does cause refusals, until it is restored.
    for bundle in [b"nothing".as_slice(), b""] {
        fixture.set_bundles(bundle).await?;
        eventually("trust to be mended", LIMIT, async || {
            let bundles = fixture.bundles().await.ok()?;
            let mut each = bundles.iter();
            each.all(|bundle| authorities(bundle).is_some())
                .then_some(())
        })
        .await?;
        fixture.until_made().await?;
    }
    for operator in [&a, &b] {
        ensure!(operator.admin("/readyz").await?.0 == 200);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_or_killed_replica_causes_no_refusal() -> Result<()> {
    let fixture = Fixture::new().await?;
    let a = fixture.operator("a", NINETY_DAYS).await?;
    let b = fixture.operator("b", NINETY_DAYS).await?;
    let both = fixture.leave_out(&b);
    let pods = fixture.make_pods();
    fixture.until_reviewed_by(&a, 1).await?;
    // Endpoints are still sent to it for a while after it was stopped; so does the front here.
    a.sigterm()?;
    eventually("the stopping one to be unready", LIMIT, async || {
        let (status, _) = a.admin("/readyz").await.ok()?;
        (status == 503).then_some(())
    })
    .await?;
    fixture.until_reviewed_by(&a, 3).await?;
    // None of its connections is left, so all goes to the other one at once.
    fixture.send_to(both);
    fixture.leave_out(&a);
    fixture.until_reviewed_by(&b, 3).await?;
    ensure!(a.ended().await?.success());
    let made = pods.end().await?;
    ensure!(made > 5, "only {made} pods were made");

    // A request to a killed one is lost; the next is not.
    let c = fixture.operator("c", NINETY_DAYS).await?;
    b.kill9()?;
    fixture.until_made().await?;
    let pods = fixture.make_pods();
    fixture.until_reviewed_by(&c, 10).await?;
    pods.end().await?;
    Ok(())
}

//! Every write of the operator is a compare-and-swap.

use anyhow::{Context, Result};
use leasehold::k8s::K8sFleet;
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::{Revocation, RevokeReason, Session};
use leasehold::protocol::time::WallTime;
use leasehold::store::StoreError;
use leasehold::store::fleet::{FleetStore as _, Object, ObjectRef};
use serde_json::json;

use super::{fleet, make_lock, make_session, place};
use crate::harness::{Cluster, Namespace, TakeOver};

const AT: WallTime = WallTime(1_767_225_600_123_456);

async fn start() -> Result<(Namespace, K8sFleet)> {
    let cluster = Cluster::shared(TakeOver::Strict).await?;
    let namespace = cluster.namespace("writes").await?;
    let fleet = fleet(&cluster, &namespace.name).await?;
    Ok((namespace, fleet))
}

async fn lock(fleet: &K8sFleet, place: &ObjectRef) -> Result<Object<Lock>> {
    fleet.lock(place).await?.context("a lock must be there")
}

async fn session(fleet: &K8sFleet, place: &ObjectRef) -> Result<Object<Session>> {
    let session = fleet.session(place).await?;
    session.context("a session must be there")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_revoked_only_at_the_version_that_was_seen() -> Result<()> {
    let (namespace, fleet) = start().await?;
    make_session(&namespace, "s").await?;
    let place = place(&namespace, "s");
    let seen = session(&fleet, &place).await?;
    let revocation = Revocation {
        at: AT,
        by: "operator".into(),
        reason: RevokeReason::Expired,
    };
    let revoked = seen.stored.value.revoked(revocation);
    let revoked = revoked.context("a session that can be revoked")?;
    // Its agent renews first.
    let renewal = json!({"status": {"renewals": 1}});
    namespace.patch("locksessions/s/status", &renewal).await?;
    let late = fleet.update_session(&seen, &revoked).await;
    assert_eq!(late.err(), Some(StoreError::Conflict));
    assert_eq!(session(&fleet, &place).await?.stored.value.revoked, None);

    let seen = session(&fleet, &place).await?;
    let next = Session {
        renewals: 1,
        ..revoked
    };
    let written = fleet.update_session(&seen, &next).await?;
    assert_eq!((&written.object_ref, &written.uid), (&place, &seen.uid));
    assert!(written.stored.version > seen.stored.version);
    assert_eq!(session(&fleet, &place).await?.stored.value, next);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_written_only_at_the_version_that_was_seen() -> Result<()> {
    let (namespace, fleet) = start().await?;
    make_lock(&namespace, "l", "l").await?;
    let place = place(&namespace, "l");
    let status = json!({"status": {"token": 5000, "transitions": 1,
        "lease": {"id": "g", "acquiredAt": "2026-01-01T00:00:00.000000Z"},
        "holder": {"ownerId": "o", "pod": "p", "podUid": "u", "session": "s",
            "sessionTtlSeconds": 15}}});
    namespace
        .patch("distributedlocks/l/status", &status)
        .await?;
    let seen = lock(&fleet, &place).await?;
    let marked = seen.stored.value.marked_long_held(Some(AT));
    let marked = marked.context("a lock that can be marked")?;
    let written = fleet.update_lock(&seen, &marked).await?;
    assert_eq!(written.stored.value, marked);
    // The feed has not delivered it yet.
    let again = fleet.update_lock(&seen, &marked).await;
    assert_eq!(again.err(), Some(StoreError::Conflict));
    assert_eq!(lock(&fleet, &place).await?.stored.value.long_held, Some(AT));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_version_seen_is_deleted() -> Result<()> {
    let (namespace, fleet) = start().await?;
    make_lock(&namespace, "l", "l").await?;
    make_session(&namespace, "s").await?;
    let (at_lock, at_session) = (place(&namespace, "l"), place(&namespace, "s"));
    let stale = lock(&fleet, &at_lock).await?;
    let stale_session = session(&fleet, &at_session).await?;
    let (token, renewals) = (
        json!({"status": {"token": 5000}}),
        json!({"status": {"renewals": 1}}),
    );
    namespace.patch("distributedlocks/l/status", &token).await?;
    namespace.patch("locksessions/s/status", &renewals).await?;
    assert_eq!(
        fleet.delete_lock(&stale.object_version()).await,
        Err(StoreError::Conflict)
    );
    assert_eq!(
        fleet.delete_session(&stale_session).await,
        Err(StoreError::Conflict)
    );

    let seen = lock(&fleet, &at_lock).await?;
    let another = Object {
        uid: "another".into(),
        ..seen.clone()
    };
    assert_eq!(
        fleet.delete_lock(&another.object_version()).await,
        Err(StoreError::Conflict)
    );
    fleet.delete_lock(&seen.object_version()).await?;
    let seen_session = session(&fleet, &at_session).await?;
    fleet.delete_session(&seen_session).await?;
    assert!(fleet.lock(&at_lock).await?.is_none());
    assert!(fleet.session(&at_session).await?.is_none());
    for again in [
        fleet.delete_lock(&seen.object_version()).await,
        fleet.delete_session(&seen_session).await,
    ] {
        assert!(matches!(again, Err(StoreError::NotFound(_))), "{again:?}");
    }
    // On 1.33 the API server compares the uid first, and finds another one.
    let late = fleet.update_lock(&seen, &seen.stored.value).await.err();
    let is_told = matches!(late, Some(StoreError::NotFound(_) | StoreError::Conflict));
    assert!(is_told, "{late:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_lock_of_the_same_name_is_another_lock() -> Result<()> {
    let (namespace, fleet) = start().await?;
    make_lock(&namespace, "l", "l").await?;
    let place = place(&namespace, "l");
    let before = lock(&fleet, &place).await?;
    fleet.delete_lock(&before.object_version()).await?;
    make_lock(&namespace, "l", "l").await?;
    let write = fleet.update_lock(&before, &before.stored.value).await;
    assert_eq!(write.err(), Some(StoreError::Conflict));
    assert_eq!(
        fleet.delete_lock(&before.object_version()).await,
        Err(StoreError::Conflict)
    );
    assert_ne!(lock(&fleet, &place).await?.uid, before.uid);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_revision_is_at_least_that_of_the_last_write() -> Result<()> {
    let (namespace, fleet) = start().await?;
    make_lock(&namespace, "l", "l").await?;
    let made = lock(&fleet, &place(&namespace, "l")).await?;
    assert!(fleet.revision().await? >= made.stored.version);
    Ok(())
}

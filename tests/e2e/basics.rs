//! One lock between two pods: acquired, refused, read, renewed, released, acquired again.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::harness::TakeOver;
use crate::support::{Pair, acquire_in_time, until_lost};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_moves_from_pod_to_pod_with_a_rising_token() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("moves", TakeOver::Peer, 15).await?;
    let resource = "tenant_123:billing-close:2026-04";
    let body = json!({"resource": resource, "ownerId": "worker-7", "ttlSeconds": 30,
        "metadata": {"run": "42"}});
    let first = a.acquire_with(&body).await?.granted()?;

    let refused = b.acquire(resource).await?.problem(409, "lock_held")?;
    assert_eq!(refused.json["acquired"], false);
    assert_eq!(refused.json["holder"]["ownerId"], "worker-7");
    assert_eq!(refused.json["holder"]["pod"], "a");
    assert_eq!(refused.json["holder"]["metadata"]["run"], "42");
    assert_eq!(refused.json["holder"]["fencingToken"], first.token);

    let table = namespace.kubectl(&["get", "dlock"]).await?.ok()?;
    for shown in [
        "HOLDER",
        "POD",
        "TOKEN",
        "worker-7",
        &first.token.to_string(),
        resource,
    ] {
        assert!(table.contains(shown), "{shown} is not in\n{table}");
    }

    let verified = b.verify(resource, first.token).await?.expect(200)?;
    assert_eq!(verified.json, json!({"current": true, "exact": false}));
    let verified = a.verify(resource, first.token).await?.expect(200)?;
    assert_eq!(verified.json, json!({"current": true, "exact": true}));

    assert_eq!(a.renew(&first.id).await?.granted()?.id, first.id);
    a.release_for_good(&first.id).await?;
    a.release_for_good(&first.id).await?;
    a.renew(&first.id).await?.problem(410, "lease_lost")?;

    let second = b.acquire(resource).await?.granted()?;
    assert!(second.token > first.token, "{second:?} after {first:?}");
    a.verify(resource, first.token)
        .await?
        .problem(409, "stale_token")?;
    b.renew(&first.id).await?.problem(404, "lease_unknown")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_lock_grants_a_larger_token() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("deleted", TakeOver::Peer, 15).await?;
    let mut last = 0;
    for _ in 0..3 {
        let lease = a.acquire("res").await?.granted()?;
        assert!(lease.token > last);
        let held = namespace.kubectl(&["delete", "dlock", "res"]).await?;
        assert!(held.refused()?.contains("the lock is held by a in pod a"));
        a.release_for_good(&lease.id).await?;
        namespace.kubectl(&["delete", "dlock", "res"]).await?.ok()?;

        let again = b.acquire("res").await?.granted()?;
        assert!(again.token > lease.token, "{again:?} after {lease:?}");
        b.release_for_good(&again.id).await?;
        namespace.kubectl(&["delete", "dlock", "res"]).await?.ok()?;
        last = again.token;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_app_loses_its_lock_after_its_own_ttl() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("silent", TakeOver::Peer, 30).await?;
    let body = json!({"resource": "res", "ttlSeconds": 1});
    let answer = a.acquire_with(&body).await?;
    let took = answer.took;
    let lease = answer.granted()?;
    // The TTL begins when the lock is had; the answer counts from when it was asked for.
    assert!(
        lease.valid_for <= Duration::from_secs(1) + took,
        "{lease:?}"
    );

    let next = acquire_in_time(&b, "res", Duration::from_secs(10)).await?;
    assert!(next.token > lease.token);
    let lost = until_lost(&a, &lease.id, Duration::ZERO).await?;
    assert_eq!(lost.json["reason"], "app_silent");
    a.release(&lease.id).await?.problem(410, "lease_lost")?;
    let session = namespace.holding_session("res").await?.unwrap_or_default();
    assert_eq!(session["spec"]["pod"], "b");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_lets_apps_release_and_ends_the_session() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("sigterm", TakeOver::Peer, 30).await?;
    let lease = a.acquire("res").await?.granted()?;
    let session = namespace.holding_session("res").await?.unwrap_or_default();
    a.sigterm()?;
    // It waits for its apps, which can still release.
    a.release_for_good(&lease.id).await?;
    assert!(a.ended().await?.success());
    b.acquire("res").await?.granted()?;
    let name = session["metadata"]["name"].as_str().unwrap_or_default();
    let ended = namespace.session(name).await?.unwrap_or_default();
    assert_eq!(ended["status"]["revoked"]["reason"], "Ended");
    Ok(())
}

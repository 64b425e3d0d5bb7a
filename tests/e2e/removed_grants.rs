//! A grant that was removed by hand: its app is notified, with the reason `force_released` if that is recorded.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::harness::TakeOver;
use crate::support::Pair;

#[tokio::test(flavor = "multi_thread")]
async fn release_of_a_removed_grant_reports_a_loss() -> Result<()> {
    for next_holder in [None, Some("b")] {
        let Pair { namespace, a, b } = Pair::start("taken-away", TakeOver::Peer, 60).await?;
        let lease = a.acquire("res").await?.granted()?;
        let free = json!({"status": {"holder": null, "lease": null}});
        namespace
            .patch("distributedlocks/res/status", &free)
            .await?;
        if next_holder.is_some() {
            let next = b.acquire("res").await?.granted()?;
            ensure!(next.token > lease.token, "{next:?} after {lease:?}");
        }
        let before = namespace.lock("res").await?;

        for _repeated in 0..2 {
            let lost = a.release(&lease.id).await?.problem(410, "lease_lost")?;
            ensure!(lost.json["reason"] == "grant_gone", "{}", lost.json);
        }
        a.renew(&lease.id).await?.problem(410, "lease_lost")?;
        ensure!(namespace.lock("res").await? == before, "nothing is undone");

        let (_, metrics) = a.admin("/metrics").await?;
        ensure!(metrics.contains("leasehold_dual_owners_suspected_total 1\n"));
        let log = a.log();
        let lines = log.lines().flat_map(serde_json::from_str::<Value>);
        let errors: Vec<_> = lines.filter(|line| line["level"] == "ERROR").collect();
        ensure!(errors.len() == 1, "{errors:?}");
        ensure!(errors[0].to_string().contains(&lease.id), "{errors:?}");
    }
    Ok(())
}

/// The operator's write, made by an administrator.
#[tokio::test(flavor = "multi_thread")]
async fn forced_end_of_a_grant_is_reported_as_such() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("forced", TakeOver::Strict, 60).await?;
    let lease = a.acquire("res").await?.granted()?;
    let app = a.curl_events(&format!("/v1/locks/{}/events", lease.id))?;
    app.until("heartbeat").await?;
    let lock = namespace.lock("res").await?.context("the lock")?;
    let status = &lock["status"];
    let incident = json!({
        "at": "2026-04-01T00:00:00Z", "kind": "ForceReleased", "leaseId": status["lease"]["id"],
        "token": status["token"], "ownerId": status["holder"]["ownerId"], "pod": "a",
        "actor": "alice", "reason": "it hangs",
    });
    let forced = json!({"status": {"holder": null, "lease": null, "incidents": [incident]}});
    namespace
        .patch("distributedlocks/res/status", &forced)
        .await?;

    let lost = app.until("lost").await?;
    ensure!(lost.data["reason"] == "force_released", "{lost:?}");
    ensure!(app.ended().await?.success());
    for answer in [
        a.renew(&lease.id).await?,
        a.get(&lease.id).await?,
        a.release(&lease.id).await?,
    ] {
        let lost = answer.problem(410, "lease_lost")?;
        ensure!(lost.json["reason"] == "force_released", "{}", lost.json);
    }
    let (_, metrics) = a.admin("/metrics").await?;
    ensure!(metrics.contains("leasehold_dual_owners_suspected_total 0\n"));
    let next = b.acquire("res").await?.granted()?;
    ensure!(next.token > lease.token, "{next:?} after {lease:?}");
    Ok(())
}

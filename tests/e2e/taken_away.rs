//! A grant that a person took away while its agent did not know: the release says so.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::harness::TakeOver;
use crate::support::Pair;

#[tokio::test(flavor = "multi_thread")]
async fn the_release_of_a_grant_that_was_taken_away_is_a_loss() -> Result<()> {
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

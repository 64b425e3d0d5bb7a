//! `release` as a request to the app, followed to its end.

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::{PLUGIN, contains};
use crate::harness::TakeOver;
use crate::support::{Pair, bind, until_queued};

const REASON: &str = "maintenance of the ledger";

#[tokio::test(flavor = "multi_thread")]
async fn asked_app_releases_and_the_record_is_printed() -> Result<()> {
    for mode in [TakeOver::Strict, TakeOver::Peer] {
        let Pair { namespace, a, b } = Pair::start("plugin-ask", mode, 60).await?;
        bind(&namespace, "jane", ("ClusterRole", "leasehold-lock-admin")).await?;
        let app = a.curl_hold(&json!({"resource": "Ledger/2026", "ownerId": "app"}))?;
        let held = app.until("acquired").await?;
        let lease = held.data["leaseId"].as_str().context("a lease")?;
        let locks = namespace.all("distributedlocks").await?;
        let name = locks[0]["metadata"]["name"].as_str().context("a name")?;
        let waiting = b.wait_for_long("Ledger/2026", 120).await?;
        until_queued(&namespace, name, 1).await?;

        let admin = namespace.cluster.control_plane().admin().clone();
        let place = namespace.name.clone();
        let release = tokio::spawn(async move {
            let what = ["release", "Ledger/2026", "--yes", "--reason", REASON];
            let how = ["--timeout", "5m", "--as", "jane", "--namespace", &place];
            let args = [&what[..], &how].concat();
            admin.kubectl_leasehold(PLUGIN, &args).await
        });
        let told = app.until("release-requested").await?;
        ensure!(told.data["actor"] == "jane", "{told:?}");
        ensure!(told.data["message"] == REASON, "{told:?}");
        ensure!(!release.is_finished(), "the app decides");
        a.release_for_good(lease).await?;

        let done = release.await??;
        contains(&done.stderr, &["Next:      pod b", "Its app is notified"])?;
        contains(
            &done.ok()?,
            &[
                "Ledger/2026 was released",
                "ReleasedOnRequest",
                "by jane",
                REASON,
            ],
        )?;
        waiting.answer().await?.granted()?;
    }
    Ok(())
}

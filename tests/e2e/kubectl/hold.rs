//! `hold`: the plugin becomes `leasehold exec`, with its processes and its exit codes.

use anyhow::{Context, Result, ensure};

use super::{PLUGIN, contains, row, run};
use crate::harness::{Cluster, PATIENCE, TakeOver, eventually, own_file};
use crate::support::until_free;

#[tokio::test(flavor = "multi_thread")]
async fn hold_keeps_a_lock_while_its_command_runs() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("plugin-hold").await?;
    let done = own_file("done")?;
    let script = format!(
        "until test -e {}; do sleep 0.05; done; exit 7",
        done.display()
    );
    let what = ["hold", "nightly", "--owner", "anna", "--namespace"];
    let command = [&namespace.name, "--", "sh", "-c", &script];
    let admin = cluster.control_plane().admin();
    let hold = admin.start_plugin(PLUGIN, &[what, command].concat())?;
    let shown = eventually("the lock to be held", PATIENCE, async || {
        let listed = run(&namespace, &["list"]).await.ok()?.ok().ok()?;
        let cells = row(&listed, "nightly").ok()?;
        (cells["HOLDER"] != "<none>" || hold.must_run().is_err()).then_some(cells)
    });
    let shown = shown.await?;
    hold.must_run()?;
    ensure!(shown["HOLDER"] == "anna", "{shown}");

    let other = ["hold", "nightly", "--if-held", "fail", "--namespace"];
    let command = [&namespace.name, "--", "true"];
    let refused = admin
        .plugin(PLUGIN, &[&other[..], &command].concat())
        .await?;
    contains(&refused.refused()?, &["nightly", "anna"])?;
    std::fs::write(done, "")?;
    let ended = hold.wait(PATIENCE).await;
    let ended = ended.with_context(|| hold.log())?;
    ensure!(ended.code() == Some(7), "{ended}: {}", hold.log());
    until_free(&namespace, "nightly").await.map(drop)
}

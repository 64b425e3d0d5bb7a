//! The shell blocks of README and tutorials that need a cluster, run in the page's order, as a
//! reader does.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::install::Leasehold;
use crate::markdown::{ON_A_CLUSTER, page, root};

/// In seconds. A page whose commands wait for conditions ends much earlier.
const LIMIT: &str = "300";

#[tokio::test]
async fn shell_blocks_that_need_a_cluster_run() -> Result<()> {
    let leasehold = Leasehold::installed().await?;
    let admin = leasehold.machine.cluster.control_plane().admin();
    let programs = admin.kubectl.parent().context("kubectl's directory")?;
    for (name, sections) in ON_A_CLUSTER {
        let page = page(name);
        let mut script = page.script(sections);
        ensure!(!script.commands.is_empty(), "{} has no commands", page.name);
        // The names and ages of pods, and the number of lines, vary; the columns do not.
        script.output.retain(|line| is_a_head(line));
        let printed = run(&script.commands, programs, &admin.path)
            .await
            .with_context(|| page.name.clone())?;
        let missing = script.missing(&printed);
        ensure!(
            missing.is_none(),
            "{} shows {missing:?}, and not:\n{printed}",
            page.name
        );
    }
    Ok(())
}

/// Returns whether a line is the head of one of kubectl's tables.
fn is_a_head(line: &str) -> bool {
    line.starts_with("NAME ") || line.starts_with("NAMESPACE ")
}

async fn run(commands: &str, programs: &Path, kubeconfig: &Path) -> Result<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .args([LIMIT, "bash", "-euxo", "pipefail", "-c", commands])
        .current_dir(root())
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    ensure!(
        output.status.success(),
        "{printed}{errors}{}",
        output.status
    );
    Ok(printed)
}

//! Completion, as kubectl's own scripts for bash, zsh and fish ask for it: by `kubectl __complete`.

use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Result, ensure};

use super::PLUGIN;
use crate::harness::{Cluster, TakeOver, own_file};
use crate::support::sidecar;

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_completes_names_and_no_shell_command() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("plugin-completion").await?;
    let a = sidecar(&namespace.pod("a").await?, 60).await?;
    for resource in ["tenant_1:report", "$(touch executed)"] {
        a.acquire(resource).await?.granted()?;
    }
    let directory = own_file("completion")?;
    std::fs::create_dir(&directory)?;
    for name in ["kubectl-leasehold", "kubectl_complete-leasehold"] {
        symlink(PLUGIN, directory.join(name))?;
    }
    let admin = cluster.control_plane().admin();
    let complete = |words: &[&str]| -> Result<Vec<String>> {
        let mut kubectl = Command::new(&admin.kubectl);
        kubectl.args(["__complete", "leasehold"]).args(words);
        kubectl
            .env("KUBECONFIG", &admin.path)
            .env("PATH", &directory);
        let output = String::from_utf8(kubectl.output()?.stdout)?;
        Ok(output.lines().map(str::to_owned).collect())
    };
    let commands = complete(&["wh"])?;
    ensure!(
        commands.len() == 2 && commands[0].starts_with("why\t") && commands[1] == ":4",
        "{commands:?}"
    );
    let locks = complete(&["why", "--namespace", &namespace.name, ""])?;
    ensure!(
        locks.len() == 2 && locks[0].ends_with("\ttenant_1:report"),
        "{locks:?}"
    );
    let resources = complete(&["list", "-n", &namespace.name, ""])?;
    ensure!(resources == ["tenant_1:report", ":4"], "{resources:?}");
    let pods = complete(&["why", "x", "-n", &namespace.name, "--pod", ""])?;
    ensure!(pods == ["a", ":4"], "{pods:?}");
    let namespaces = complete(&["list", "-n", &namespace.name])?;
    ensure!(
        namespaces == [&namespace.name as &str, ":4"],
        "{namespaces:?}"
    );
    Ok(())
}

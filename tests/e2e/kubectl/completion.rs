//! Completion, as kubectl's own scripts for bash, zsh and fish ask for it: by `kubectl __complete`. And in real shells.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};

use super::PLUGIN;
use crate::harness::{Cluster, Namespace, TakeOver, own_file};
use crate::support::sidecar;

/// The locks of the tests. The second one is a command to a shell that expands it.
const RESOURCES: [&str; 2] = ["tenant_1:report", "$(touch executed)"];

/// A shell's surroundings: kubectl and the plugin in the PATH, and two locks.
struct Prompt {
    cluster: Arc<Cluster>,
    namespace: Namespace,
    directory: PathBuf,
}

impl Prompt {
    async fn start(name: &str) -> Result<Self> {
        let cluster = Cluster::shared(TakeOver::Peer).await?;
        let namespace = cluster.namespace(name).await?;
        let a = sidecar(&namespace.pod("a").await?, 60).await?;
        for resource in RESOURCES {
            a.acquire(resource).await?.granted()?;
        }
        let directory = own_file("completion")?;
        std::fs::create_dir(&directory)?;
        for name in ["kubectl-leasehold", "kubectl_complete-leasehold"] {
            symlink(PLUGIN, directory.join(name))?;
        }
        let kubectl = &cluster.control_plane().admin().kubectl;
        symlink(kubectl, directory.join("kubectl"))?;
        Ok(Self {
            cluster,
            namespace,
            directory,
        })
    }

    /// Returns the lines that a program prints.
    fn lines(&self, program: &str, args: &[&str]) -> Result<Vec<String>> {
        let path = std::env::var("PATH")?;
        let mut command = Command::new(program);
        command
            .args(args)
            .env("KUBECONFIG", &self.cluster.control_plane().admin().path)
            .env("PATH", format!("{}:{path}", self.directory.display()))
            .current_dir(&self.directory);
        let output = command
            .output()
            .with_context(|| format!("{program} must be installed: scripts/need.sh e2e"))?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// Returns kubectl's candidates.
    fn complete(&self, words: &[&str]) -> Result<Vec<String>> {
        let args = [&["__complete", "leasehold"], words].concat();
        self.lines("kubectl", &args)
    }

    /// Returns what a line becomes by Tab in a shell.
    fn tab(&self, shell: &str, line: &str) -> Result<String> {
        let file = own_file("line")?;
        let file = file.to_str().context("a path in UTF-8")?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/kubectl/complete.zsh");
        let script = script.to_str().context("a path in UTF-8")?;
        let lines = self.lines("zsh", &["-f", script, shell, line, file])?;
        Ok(lines.join("\n"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_completes_names_and_no_shell_command() -> Result<()> {
    let prompt = Prompt::start("plugin-completion").await?;
    let namespace = &prompt.namespace.name;
    let commands = prompt.complete(&["wh"])?;
    ensure!(
        commands.len() == 2 && commands[0].starts_with("why\t") && commands[1] == ":4",
        "{commands:?}"
    );
    let locks = prompt.complete(&["why", "--namespace", namespace, ""])?;
    ensure!(
        locks.len() == 2 && locks[0].ends_with("\ttenant_1:report"),
        "{locks:?}"
    );
    let resources = prompt.complete(&["list", "-n", namespace, ""])?;
    ensure!(resources == ["tenant_1:report", ":4"], "{resources:?}");
    let pods = prompt.complete(&["why", "x", "-n", namespace, "--pod", ""])?;
    ensure!(pods == ["a", ":4"], "{pods:?}");
    let by_resource = prompt.complete(&["why", "-n", namespace, "tenant_"])?;
    ensure!(by_resource == ["tenant_1:report", ":4"], "{by_resource:?}");
    let namespaces = prompt.complete(&["list", "-n", namespace])?;
    ensure!(namespaces == [namespace, ":4"], "{namespaces:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_and_zsh_complete_commands_locks_and_pods() -> Result<()> {
    let prompt = Prompt::start("plugin-shells").await?;
    let namespace = &prompt.namespace.name;
    for (typed, completed) in [
        ("wh", "why "),
        (
            "why -n NAMESPACE tenant-",
            "why -n NAMESPACE tenant-1-report-",
        ),
        (
            "why -n NAMESPACE tenant_1:r",
            "why -n NAMESPACE tenant_1:report ",
        ),
        ("why x -n NAMESPACE --pod ", "why x -n NAMESPACE --pod a "),
        ("list --output=y", "list --output=yaml "),
        // The other resource is a command.
        ("list -n NAMESPACE ", "list -n NAMESPACE tenant_1:report "),
    ] {
        let line = |words: &str| {
            let words = words.replace("NAMESPACE", namespace);
            format!("kubectl leasehold {words}")
        };
        for shell in ["bash", "zsh"] {
            let became = prompt.tab(shell, &line(typed))?;
            ensure!(
                became.starts_with(&line(completed)),
                "{shell}: {typed}: {became}"
            );
        }
    }
    ensure!(!prompt.directory.join("executed").exists());
    Ok(())
}

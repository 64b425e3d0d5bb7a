//! The workflow of `examples/ci`, as a CI system runs its steps: with a kubeconfig, on the real API server.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::harness::{
    Cluster, Namespace, PATIENCE, Process, TakeOver, eventually, own_file, repository,
};
use crate::support::{BINARY, until_free, until_queued};

/// The lock of the example.
const LOCK: &str = "migrate";
/// What the example runs.
const MIGRATE: &str = "#!/bin/sh\necho migrating\nwhile [ ! -e end ]; do sleep 0.1; done\n";

struct Pipeline {
    steps: Process,
    folder: PathBuf,
}

impl Pipeline {
    fn start(namespace: &Namespace, kubeconfig: &str, run: &str) -> Result<Self> {
        let folder = own_file("pipeline")?;
        std::fs::create_dir(&folder)?;
        let migrate = folder.join("migrate.sh");
        std::fs::write(&migrate, MIGRATE)?;
        std::fs::set_permissions(&migrate, std::fs::Permissions::from_mode(0o755))?;
        let script = steps()?.replace("billing", &namespace.name);
        let binary = Path::new(BINARY).parent().context("a folder")?;
        let path = std::env::var("PATH")?;
        let mut shell = Command::new("bash");
        shell
            .args(["-e", "-c", &script])
            .current_dir(&folder)
            .env("PATH", format!("{}:{path}", binary.display()))
            .env("CONTENT", kubeconfig)
            .env("RUNNER_TEMP", &folder)
            .env("GITHUB_RUN_ID", run);
        let steps = Process::spawn("a pipeline", &mut shell, &folder.join("log"))?;
        Ok(Self { steps, folder })
    }

    async fn until_said(&self, text: &str) -> Result<()> {
        let said = eventually(text, PATIENCE, async || {
            self.steps.log().contains(text).then_some(())
        });
        said.await.with_context(|| self.steps.last_words())
    }

    async fn succeeds(&self) -> Result<()> {
        std::fs::write(self.folder.join("end"), "")?;
        let status = self.steps.wait(PATIENCE).await?;
        ensure!(status.success(), "{}", self.steps.last_words());
        Ok(())
    }
}

/// Returns the shell steps of the workflow.
fn steps() -> Result<String> {
    let workflow = std::fs::read_to_string(repository("examples/ci/github-actions.yaml"))?;
    let workflow: Value = serde_yaml::from_str(&workflow)?;
    let steps = workflow["jobs"]["migrate"]["steps"].as_array();
    let steps = steps.context("steps")?.iter();
    let steps: Vec<_> = steps.filter_map(|step| step["run"].as_str()).collect();
    ensure!(steps.len() == 2, "{steps:?}");
    Ok(steps.join("\n"))
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_waits_for_the_migration_of_another_one() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("exec-pipeline").await?;
    let kubeconfig = std::fs::read_to_string(&cluster.control_plane().admin().path)?;
    let first = Pipeline::start(&namespace, &kubeconfig, "41")?;
    first.until_said("migrating").await?;
    let second = Pipeline::start(&namespace, &kubeconfig, "42")?;
    // The holder, as the log of the second one names it.
    second.until_said("run 41").await?;
    until_queued(&namespace, LOCK, 1).await?;
    let said = second.steps.log();
    ensure!(!said.contains("migrating"), "{said}");
    first.succeeds().await?;
    second.until_said("migrating").await?;
    second.succeeds().await?;
    until_free(&namespace, LOCK).await?;
    Ok(())
}

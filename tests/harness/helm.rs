//! Helm 4 and Helm 3 against a control plane, as its administrator, each with its own home
//! directory.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::binaries::target_directory;
use super::control_plane::ControlPlane;
use super::kubectl::Output;

/// The major version of Helm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HelmVersion {
    /// It uses server-side apply, as one of several owners of an object.
    Four,
    /// It compares the previous manifest with the new one, and patches the difference.
    Three,
}

/// One installed version of Helm.
pub(crate) struct Helm {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Helm {
    /// Returns the version that `make` built.
    pub(crate) fn find(version: HelmVersion, control_plane: &ControlPlane) -> Result<Self> {
        let part = match version {
            HelmVersion::Four => "helm",
            HelmVersion::Three => "helm3",
        };
        let program = target_directory().join(format!("controlplane/{part}/helm"));
        ensure!(
            program.is_file(),
            "{} is missing; run `make helm`",
            program.display()
        );
        Ok(Self {
            program,
            kubeconfig: control_plane.admin().path.clone(),
            home: control_plane.directory().join(part),
        })
    }

    /// Runs it in the repository's directory.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<Output> {
        let mut command = tokio::process::Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HELM_") {
                command.env_remove(name);
            }
        }
        let output = command
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HELM_CACHE_HOME", self.home.join("cache"))
            .env("HELM_CONFIG_HOME", self.home.join("config"))
            .env("HELM_DATA_HOME", self.home.join("data"))
            .args(args)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("helm cannot be started")?;
        Ok(Output::of(format!("helm {}", args.join(" ")), &output))
    }
}

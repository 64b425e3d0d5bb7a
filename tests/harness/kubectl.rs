//! Kubeconfig files, and kubectl and its plugin as the user that a file names.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig as KubeconfigFile};
use serde_json::{Value, json};

use super::exec::own_file;
use super::process::Process;

/// A kubeconfig: the API server's address and the user.
#[derive(Clone, Debug)]
pub(crate) struct Kubeconfig {
    /// The file.
    pub(crate) path: PathBuf,
    /// The kubectl that matches the server's version.
    pub(crate) kubectl: PathBuf,
}

/// The contents of a kubeconfig.
pub(crate) struct Access<'a> {
    pub(crate) server: &'a str,
    /// The server's certificate; `None` for a plain-HTTP proxy.
    pub(crate) certificate: Option<&'a Path>,
    pub(crate) token: &'a str,
    pub(crate) namespace: &'a str,
}

impl Kubeconfig {
    /// Writes a kubeconfig.
    pub(crate) fn write(path: PathBuf, kubectl: &Path, access: &Access<'_>) -> Result<Self> {
        let mut cluster = json!({"server": access.server});
        if let Some(certificate) = access.certificate {
            cluster["certificate-authority"] = json!(certificate);
        }
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": access.token}}],
            "contexts": [{"name": "test", "context": {
                "cluster": "test", "user": "test", "namespace": access.namespace}}],
        });
        // JSON is also valid YAML.
        std::fs::write(&path, serde_json::to_vec_pretty(&file)?)?;
        Ok(Self {
            path,
            kubectl: kubectl.to_owned(),
        })
    }

    /// Returns a client. It belongs to the runtime that it is created in, so each test creates its
    /// own.
    pub(crate) async fn client(&self) -> Result<kube::Client> {
        Ok(kube::Client::try_from(self.config().await?)?)
    }

    /// Returns the configuration for a client that the test builds.
    pub(crate) async fn config(&self) -> Result<kube::Config> {
        let file = KubeconfigFile::read_from(&self.path)?;
        let options = KubeConfigOptions::default();
        Ok(kube::Config::from_custom_kubeconfig(file, &options).await?)
    }

    /// Runs kubectl as this user, in the namespace of the kubeconfig unless `args` contain another.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<Output> {
        let cache = self.path.with_extension("cache");
        let output = tokio::process::Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.path)
            .arg("--cache-dir")
            .arg(cache)
            .args(args)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("kubectl cannot be started")?;
        Ok(Output::of(format!("kubectl {}", args.join(" ")), &output))
    }

    /// Runs `kubectl leasehold` as this user: kubectl finds the plugin in the PATH. `plugin` is our
    /// binary; the including test knows its path.
    pub(crate) async fn kubectl_leasehold(&self, plugin: &str, args: &[&str]) -> Result<Output> {
        let directory = Path::new(plugin).parent().context("a directory")?;
        let mut command = Command::new(&self.kubectl);
        command.arg("leasehold").env("PATH", directory);
        self.output_of(command, args).await
    }

    /// Runs the plugin itself as this user.
    pub(crate) async fn plugin(&self, plugin: &str, args: &[&str]) -> Result<Output> {
        self.output_of(Command::new(plugin), args).await
    }

    /// Starts the plugin as this user, for a command that does not end soon.
    pub(crate) fn start_plugin(&self, plugin: &str, args: &[&str]) -> Result<Process> {
        let mut command = Command::new(plugin);
        command.args(args).env("KUBECONFIG", &self.path);
        Process::spawn("kubectl leasehold", &mut command, &own_file("plugin")?)
    }

    async fn output_of(&self, mut command: Command, args: &[&str]) -> Result<Output> {
        command
            .args(args)
            .env("KUBECONFIG", &self.path)
            .stdin(Stdio::null());
        let mut command = tokio::process::Command::from(command);
        let output = command.kill_on_drop(true).output().await;
        let output = output.context("the plugin cannot be started")?;
        let name = format!("kubectl leasehold {}", args.join(" "));
        Ok(Output::of(name, &output))
    }
}

/// The output of kubectl, or of another program.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    command: String,
    /// Whether its exit code was 0.
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Returns the result of a command.
    pub(crate) fn of(command: String, output: &std::process::Output) -> Self {
        Self {
            command,
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns its output, if it succeeded.
    pub(crate) fn ok(self) -> Result<String> {
        let Self {
            command, stderr, ..
        } = &self;
        ensure!(self.success, "{command}: {stderr}");
        Ok(self.stdout)
    }

    /// Returns the JSON that it printed (`-o json`), if it succeeded.
    pub(crate) fn json(self) -> Result<Value> {
        Ok(serde_json::from_str(&self.ok()?)?)
    }

    /// Returns the error message, if it was refused.
    pub(crate) fn refused(self) -> Result<String> {
        let Self {
            command, stdout, ..
        } = &self;
        ensure!(!self.success, "{command} was not refused: {stdout}");
        Ok(self.stderr)
    }
}

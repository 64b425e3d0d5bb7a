//! Our operator as a separate process, with the operator's own rights.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::pod::Pod;
use super::role::{Role, through};
use super::wait::eventually;

/// A running operator. Dropping it kills it.
pub(crate) struct Operator(Role);

impl Deref for Operator {
    type Target = Role;

    fn deref(&self) -> &Role {
        &self.0
    }
}

impl Operator {
    /// Starts an operator in an operator's pod, with further arguments, and waits until it listens.
    /// `binary` is ours; the including test knows its path.
    pub(crate) async fn start(binary: &str, pod: &Pod, args: &[&str]) -> Result<Self> {
        Self::start_through(&[], binary, pod, args).await
    }

    /// The same, started by another program that executes it (`env`, `nsenter`).
    pub(crate) async fn start_through(
        by: &[String],
        binary: &str,
        pod: &Pod,
        args: &[&str],
    ) -> Result<Self> {
        let mut command = through(by, Path::new(binary));
        command
            .arg("operator")
            .args(["--admin-listen", "127.0.0.1:0"])
            .args(args);
        let (role, _listening) = Role::start("operator", command, pod).await?;
        Ok(Self(role))
    }

    /// Waits until it is active and has listed all objects.
    pub(crate) async fn until_active(&self) -> Result<()> {
        let what = format!("operator {} to be active", self.pod.name);
        eventually(&what, Duration::from_secs(60), async || {
            let leads = self.metric("leasehold_operator_leading").await.ok()?;
            let synced = self.metric("leasehold_operator_synced").await.ok()?;
            (leads > 0.0 && synced > 0.0).then_some(())
        })
        .await
    }

    /// Returns the lines of its audit log so far.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let log = self.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .filter(|line| line["schema"] == "leasehold.dev/audit/v1")
            .collect()
    }
}

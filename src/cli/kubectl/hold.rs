//! `kubectl leasehold hold`: `leasehold exec` with the user's credentials.
//!
//! This process becomes `leasehold exec`, which this binary contains: nothing of holding a lock is written twice.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::api::{Api, own_name};
use super::failure::Failure;
use super::flags::ClusterFlags;
use super::lock_name;
use crate::kubectl::world::LockSeen;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lock. It need not exist.
    #[arg(value_name = "LOCK")]
    lock: String,
    /// What to do if the lock is held: wait, skip (exit code 0) or fail (exit code 200).
    #[arg(long, value_name = "WHAT", default_value = "wait", value_parser = ["wait", "skip", "fail"])]
    if_held: String,
    /// How long to wait at most, as 90s or 10m; default: without a limit.
    #[arg(long, value_name = "TIME")]
    wait_timeout: Option<String>,
    /// The holder's name, as others see it; default: your user name.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// The token floor, if the installation has one (the chart's tokenFloor).
    #[arg(long, value_name = "TOKEN")]
    token_floor: Option<u64>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes `leasehold exec`. Returns only if that fails.
pub(super) async fn run(api: &Api, cluster: &ClusterFlags, args: &Args) -> Result<(), Failure> {
    if cluster.impersonate.is_some() {
        return Err(Failure::Usage(
            "hold cannot impersonate: leave out --as, or use a kubeconfig of that user".to_owned(),
        ));
    }
    let name = lock_name::resolve(api, &args.lock).await?;
    let found = lock_name::read(api, &name).await?;
    let resource = found.map_or_else(
        || args.lock.clone(),
        |object| LockSeen::read(&object).spec.resource,
    );
    let owner = match &args.owner {
        Some(owner) => owner.clone(),
        None => own_name(api).await?,
    };
    let mut exec = Command::new("/proc/self/exe");
    exec.arg0("leasehold").arg("exec");
    exec.args([format!("--lock={resource}"), format!("--owner={owner}")]);
    exec.args(["--namespace", &api.namespace, "--if-held", &args.if_held]);
    if let Some(limit) = &args.wait_timeout {
        exec.args(["--wait-timeout", limit]);
    }
    if let Some(floor) = args.token_floor {
        exec.args(["--token-floor", &floor.to_string()]);
    }
    if let Some(context) = &cluster.context {
        exec.args(["--context", context]);
    }
    if let Some(kubeconfig) = &cluster.kubeconfig {
        exec.arg("--kubeconfig").arg(kubeconfig);
    }
    // A sidecar that this shell knows would hold the lock as its pod.
    for variable in ["LEASEHOLD_URL", "LEASEHOLD_KUBECONFIG", "LEASEHOLD_CONTEXT"] {
        exec.env_remove(variable);
    }
    let error = exec.arg("--").args(&args.command).exec();
    Err(Failure::Usage(format!("cannot start: {error}")))
}

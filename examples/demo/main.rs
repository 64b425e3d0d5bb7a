//! `make demo`: a real control plane and two sidecars, as if two pods of one Deployment had them.
//! It is for trying docs/demo.md. It runs until Ctrl-C, and leaves only `target/demo`.

#[path = "../../tests/harness.rs"]
mod harness;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use harness::{Cluster, Namespace, Pod, Sidecar, TakeOver};
use serde_json::Value;

/// The two pods and where their sidecars listen.
const PODS: [(&str, &str, &str); 2] = [
    ("worker-a", "127.0.0.1:7373", "127.0.0.1:7374"),
    ("worker-b", "127.0.0.1:7383", "127.0.0.1:7384"),
];

#[tokio::main]
async fn main() -> Result<()> {
    let binary = std::env::args()
        .nth(1)
        .context("usage: demo PATH-OF-LEASEHOLD; or `make demo`")?;
    let target = Path::new(&binary)
        .ancestors()
        .nth(2)
        .context("the binary must be in target/")?;
    let folder = target.join("demo");
    fs::create_dir_all(&folder)?;

    say("Starting etcd and kube-apiserver …");
    let cluster = Cluster::fresh(TakeOver::Peer).await?;
    let namespace = cluster.namespace("demo").await?;
    let mut sidecars = Vec::new();
    for (name, api, admin) in PODS {
        let pod = namespace.pod(name).await?;
        let started = start(&binary, &pod, (api, admin), &folder).await;
        sidecars.push(started.with_context(|| format!("is another demo running on {api}?"))?);
    }
    // This comes last: a start that fails because another demo has the ports must not overwrite
    // the running demo's files.
    write_access(&cluster, &namespace, &folder)?;
    say(&lines(&namespace.name, &folder));
    tokio::signal::ctrl_c().await?;
    say("Stopping.");
    Ok(())
}

async fn start(
    binary: &str,
    pod: &Pod,
    (api, admin): (&str, &str),
    folder: &Path,
) -> Result<Sidecar> {
    let sidecar = Sidecar::launch(binary, pod)
        .listen(api, admin)
        .start()
        .await?;
    fs::write(
        folder.join(format!("{}.pid", pod.name)),
        sidecar.id().to_string(),
    )?;
    Ok(sidecar)
}

/// Writes a kubeconfig with the administrator's rights in the demo's namespace, and links the
/// kubectl of the server's version.
fn write_access(cluster: &Cluster, namespace: &Namespace, folder: &Path) -> Result<()> {
    let admin = cluster.control_plane().admin();
    let mut file: Value = serde_json::from_slice(&fs::read(&admin.path)?)?;
    file["contexts"][0]["context"]["namespace"] = namespace.name.as_str().into();
    fs::write(folder.join("kubeconfig"), serde_json::to_vec_pretty(&file)?)?;
    let link: PathBuf = folder.join("kubectl");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link)?;
    }
    Ok(std::os::unix::fs::symlink(&admin.kubectl, link)?)
}

fn lines(namespace: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"
Ready: two sidecars in namespace {namespace}. In a second shell:

  A=http://127.0.0.1:7373          # the sidecar of pod worker-a
  B=http://127.0.0.1:7383          # the sidecar of pod worker-b
  JSON='content-type: application/json'
  export KUBECONFIG={folder}/kubeconfig

  # A acquires a lock; B is refused, and the answer names the holder
  curl -s $A/v1/locks/acquire -H "$JSON" -d '{{"resource":"billing:close","ownerId":"worker-a","ttlSeconds":300}}'
  curl -s $B/v1/locks/acquire -H "$JSON" -d '{{"resource":"billing:close","ownerId":"worker-b","ttlSeconds":300}}'
  {folder}/kubectl get dlock

  # with the leaseId and fencingToken of the first answer
  curl -s -X POST $A/v1/locks/LEASE/renew
  curl -s $B/v1/fencing/verify -H "$JSON" -d '{{"resource":"billing:close","fencingToken":TOKEN}}'

  # B is queued; A releases, and B gets the lock with a larger token
  curl -s $B/v1/locks/acquire -H "$JSON" -d '{{"resource":"billing:close","ownerId":"worker-b","ttlSeconds":300,"waitSeconds":60}}' &
  curl -s -X DELETE $A/v1/locks/LEASE -w '%{{http_code}}\n'

  # a crashed holder: kill its sidecar, and let the other one wait until it takes over
  kill -9 $(cat {folder}/worker-b.pid)
  curl -s $A/v1/locks/acquire -H "$JSON" -d '{{"resource":"billing:close","ownerId":"worker-a","ttlSeconds":300,"waitSeconds":60}}'

docs/demo.md has the same, one step at a time. Metrics: http://127.0.0.1:7374/metrics
Ctrl-C ends the demo."#
    )
}

#[allow(
    clippy::print_stdout,
    reason = "a demo talks to the person who started it"
)]
fn say(text: &str) {
    println!("{text}");
}

//! Our image on a real node: kubelet, containerd, scheduler, kube-proxy and all controllers, on a
//! real API server and etcd. Run it with `make node-e2e`, which starts it on a separate machine
//! (`enter.sh`).
//!
//! All tests share the cluster, each in its own namespaces, and run one after the other. The only
//! concurrent processes are two more nodes, which are idle most of the time (`all.sh`).

mod app;
#[path = "../harness.rs"]
mod harness;
mod install;
mod machine;
#[path = "../markdown.rs"]
mod markdown;
mod parts;
mod pods;

mod death;
mod docs;
mod election;
mod fence;
mod flood;
mod freeze;
mod handover;
mod helm_test;
mod helm_upgrade;
mod jobs;
mod lease_by_curl;
mod no_app;
mod once;
mod outage;
mod plain;
mod stay;
mod uninstall;

use std::io::Write as _;

/// Unlike the output of `println!`, this is shown for a passing test, too.
pub(crate) fn tell(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

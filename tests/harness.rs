//! The harness of the end-to-end tests, the demo and the bench: a real kube-apiserver on a real
//! etcd, pods with tokens bound to them, our binary as a separate process, and a proxy that drops
//! messages. Include it with `#[path = "../harness.rs"] mod harness;`.
//!
//! ```text
//! let cluster = Cluster::shared(TakeOver::Peer).await?;     // or Cluster::fresh(…): a separate instance
//! let namespace = cluster.namespace("basics").await?;       // with service account `app`, bound to the sidecar's role
//! let pod = namespace.pod("a").await?;                      // uid, bound token, kubeconfig; pod.client(), pod.kubectl()
//! let a = Sidecar::start(binary, &pod).await?;              // or Sidecar::launch(binary, pod).session_ttl(5)….start()
//! let lease = a.acquire("res").await?.granted()?;           // {id, token, valid_for}
//! ```
//!
//! - [`ControlPlane`]: etcd and kube-apiserver; stop, freeze, kill, backup, restore, and the
//!   requests that it served, by user.
//! - [`ControllerManager`]: a kube-controller-manager, which creates the endpoints of services.
//! - [`Cluster`]: a control plane with our CRDs, roles and policies, in strict or peer mode; or a
//!   bare one, and [`Helm`], which installs the chart.
//! - [`Namespace`], [`Pod`]: the objects of one test. Each test creates its own namespace. Nothing
//!   is deleted; the instance is removed as a whole.
//! - [`Sidecar`]: our binary and its HTTP API. A failing test shows the log.
//! - [`Operator`]: our operator and its audit log.
//! - [`Role`]: common to both: signals, metrics, a log.
//! - [`Curl`], [`SleepyClient`]: clients of event streams.
//! - [`Exec`]: a command that `leasehold exec` runs while it holds a lock.
//! - [`LongPoll`]: a caller that waits on its own connection, and may disconnect.
//! - [`History`]: every state of a lock object.
//! - [`Membership`]: the pods with a label, or behind a Service, after each change.
//! - [`Proxy`]: between a sidecar and the API server; injects faults by the meaning of a request.
//! - [`Relay`]: a slow connection to the API server, which counts connections.
//! - [`eventually`]: waits for a condition. Tests do not sleep for a fixed time instead.
//!
//! No process outlives the one that started it, even if that one is killed (`process`). A missing
//! control plane is an error that says what to run; no test is skipped.

#![allow(
    dead_code,
    unused_imports,
    reason = "each of its users takes what it needs of it"
)]

#[path = "harness/apply.rs"]
mod apply;
#[path = "harness/audit.rs"]
mod audit;
#[path = "harness/binaries.rs"]
mod binaries;
#[path = "harness/cluster.rs"]
mod cluster;
#[path = "harness/control_plane.rs"]
mod control_plane;
#[path = "harness/controller_manager.rs"]
mod controller_manager;
#[path = "harness/etcd.rs"]
mod etcd;
#[path = "harness/event_stream.rs"]
mod event_stream;
#[path = "harness/exec.rs"]
mod exec;
#[path = "harness/helm.rs"]
mod helm;
#[path = "harness/history.rs"]
mod history;
#[path = "harness/kubectl.rs"]
mod kubectl;
#[path = "harness/long_poll.rs"]
mod long_poll;
#[path = "harness/membership.rs"]
mod membership;
#[path = "harness/objects.rs"]
mod objects;
#[path = "harness/operator.rs"]
mod operator;
#[path = "harness/pod.rs"]
mod pod;
#[path = "harness/ports.rs"]
mod ports;
#[path = "harness/process.rs"]
mod process;
#[path = "harness/proxy.rs"]
mod proxy;
#[path = "harness/relay.rs"]
mod relay;
#[path = "harness/requests.rs"]
mod requests;
#[path = "harness/role.rs"]
mod role;
#[path = "harness/sidecar.rs"]
mod sidecar;
#[path = "harness/wait.rs"]
mod wait;

pub(crate) use apply::{
    apply, look_up, objects, place_of, read_file, repository, until_policies_are_enforced,
};
pub(crate) use audit::Served;
pub(crate) use binaries::{Binaries, KubeVersion, target_directory};
pub(crate) use cluster::{Cluster, Namespace, OPERATOR_ACCOUNT, OPERATOR_NAMESPACE, TakeOver};
pub(crate) use control_plane::{ControlPlane, NODE_ADDRESS};
pub(crate) use controller_manager::ControllerManager;
pub(crate) use etcd::Etcd;
pub(crate) use event_stream::{Curl, Event, SleepyClient};
pub(crate) use exec::{Exec, Pids, deadline, is_dead, own_file, signal, stop_tree, until_dead};
pub(crate) use helm::{Helm, HelmVersion};
pub(crate) use history::History;
pub(crate) use kubectl::{Kubeconfig, Output};
pub(crate) use long_poll::LongPoll;
pub(crate) use membership::Membership;
pub(crate) use operator::Operator;
pub(crate) use pod::Pod;
pub(crate) use ports::own_port;
pub(crate) use process::{Process, directory};
pub(crate) use proxy::{Class, Exchange, Fault, Proxy};
pub(crate) use relay::Relay;
pub(crate) use requests::Requests;
pub(crate) use role::{Role, addresses, keep_logs_in};
pub(crate) use sidecar::{Answer, Launch, Lease, Sidecar};
pub(crate) use wait::{PATIENCE, eventually, now};

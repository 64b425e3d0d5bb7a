//! What writes to a lock's status cost without a sidecar in between, by our own client.
//!
//! The administrator's PUT is the least that a write can cost: the lock has no holder, no rights
//! are looked up and no policy applies. The pod's is what a sidecar sends to take a free lock:
//! holder and lease are in it, the pod's rights are looked up and the policies are asked.

use anyhow::Result;

use crate::harness::{Namespace, Pod};
use crate::rows::Rows;
use crate::written::{Claiming, Written};

/// The baseline that everything is compared with.
pub(crate) const PUT: &str = "status PUT, bare, by an administrator";
/// What is left of an acquire without the sidecar.
pub(crate) const TAKING_PUT: &str = "status PUT that takes, pod and policies";

/// The rows of this file.
pub(crate) const ROWS: &[&str] = &[PUT, TAKING_PUT];

/// An administrator, to whom no policy applies.
pub(crate) struct ByAdministrator(Written);

impl ByAdministrator {
    pub(crate) async fn new(namespace: &Namespace) -> Result<Self> {
        let config = namespace.cluster.control_plane().admin().config().await?;
        let written = Written::new(&config, &namespace.name, "bench-put").await?;
        Ok(Self(written))
    }

    /// Changes a count.
    pub(crate) async fn put(&mut self, rows: &mut Rows) -> Result<()> {
        let mut next = self.0.stored.value.clone();
        next.transitions += 1;
        rows.time(PUT, self.0.put(&next)).await
    }
}

/// A pod's own token, without its sidecar.
pub(crate) struct ByPod {
    written: Written,
    claiming: Claiming,
}

impl ByPod {
    pub(crate) async fn new(pod: &Pod) -> Result<Self> {
        let config = pod.kubeconfig.config().await?;
        let written = Written::new(&config, &pod.namespace, "bench-take").await?;
        let claiming = Claiming::new(&pod.name, &pod.uid, written.stored.version);
        Ok(Self { written, claiming })
    }

    /// Takes the lock, which is measured, and frees it.
    pub(crate) async fn take_and_free(&mut self, rows: &mut Rows) -> Result<()> {
        let taken = self.claiming.take(&self.written.stored)?;
        rows.time(TAKING_PUT, self.written.put(&taken)).await?;
        let free = self.claiming.free(&self.written.stored)?;
        self.written.put(&free).await
    }
}

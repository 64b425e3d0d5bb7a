//! The cost of writes to a lock's status by our own client, without a sidecar.
//!
//! The administrator's PUT is the cheapest possible write: the lock has no holder, the API server
//! looks up no rights, and no policy applies. The pod's PUT is what a sidecar sends to acquire a
//! free lock: it contains holder and lease, and the API server looks up the pod's rights and
//! evaluates the policies.

use anyhow::Result;

use crate::harness::{Namespace, Pod};
use crate::rows::Rows;
use crate::written::{Claiming, Written};

/// The baseline for all ratios.
pub(crate) const PUT: &str = "status PUT, bare, by an administrator";
/// The write of an acquire, without the sidecar.
pub(crate) const TAKING_PUT: &str = "status PUT that takes, pod and policies";

/// The rows that this file measures.
pub(crate) const ROWS: &[&str] = &[PUT, TAKING_PUT];

/// An administrator, to whom no policy applies.
pub(crate) struct ByAdministrator(Written);

impl ByAdministrator {
    pub(crate) async fn new(namespace: &Namespace) -> Result<Self> {
        let config = namespace.cluster.control_plane().admin().config().await?;
        let written = Written::new(&config, &namespace.name, "bench-put").await?;
        Ok(Self(written))
    }

    /// Measures a PUT that changes a counter.
    pub(crate) async fn put(&mut self, rows: &mut Rows) -> Result<()> {
        let mut next = self.0.stored.value.clone();
        next.transitions += 1;
        rows.time(PUT, self.0.put(&next)).await
    }
}

/// A client with a pod's token, without a sidecar.
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

    /// Acquires the lock, which is measured, and releases it.
    pub(crate) async fn take_and_free(&mut self, rows: &mut Rows) -> Result<()> {
        let taken = self.claiming.take(&self.written.stored)?;
        rows.time(TAKING_PUT, self.written.put(&taken)).await?;
        let free = self.claiming.free(&self.written.stored)?;
        self.written.put(&free).await
    }
}

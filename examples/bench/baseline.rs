//! What writes to a lock's status cost without a sidecar in between, by our own client.
//!
//! The administrator's PUT is the least that a write can cost: the lock has no holder, no rights
//! are looked up and no policy applies. The pod's is what a sidecar sends to take a free lock:
//! holder and lease are in it, the pod's rights are looked up and the policies are asked.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kube::Config;
use leasehold::k8s::K8sLockStore;
use leasehold::protocol::ids::{GrantId, OwnerId, Resource, SessionId};
use leasehold::protocol::lock::{Claim, Decision, Lock};
use leasehold::protocol::session::{Claimant, PodRef};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Seen};
use leasehold::store::{LockStore, Stored};

use crate::harness::{Namespace, Pod};
use crate::rows::Rows;

/// The baseline that everything is compared with.
pub(crate) const PUT: &str = "status PUT, bare, by an administrator";
/// What is left of an acquire without the sidecar.
pub(crate) const TAKING_PUT: &str = "status PUT that takes, pod and policies";

/// The rows of this file.
pub(crate) const ROWS: &[&str] = &[PUT, TAKING_PUT];

/// A lock that the bench writes itself.
struct Written {
    store: K8sLockStore,
    stored: Stored<Lock>,
}

impl Written {
    async fn new(config: &Config, namespace: &str, resource: &str) -> Result<Self> {
        let store = K8sLockStore::new(leasehold::k8s::connect(config)?, namespace);
        let stored = store.create(&Resource::parse(resource)?).await?;
        Ok(Self { store, stored })
    }

    async fn put(&mut self, next: &Lock) -> Result<()> {
        self.stored = self.store.update(&self.stored, next).await?;
        Ok(())
    }
}

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
    claimant: Claimant,
    mint: Mint,
}

impl ByPod {
    pub(crate) async fn new(pod: &Pod) -> Result<Self> {
        let config = pod.kubeconfig.config().await?;
        let written = Written::new(&config, &pod.namespace, "bench-take").await?;
        Ok(Self {
            mint: Mint {
                seen: Seen::from_list(written.stored.version),
                floor: 0,
            },
            written,
            claimant: Claimant {
                owner: OwnerId::from(pod.name.as_str()),
                pod: PodRef {
                    name: pod.name.as_str().into(),
                    uid: pod.uid.as_str().into(),
                    node: Some("node-1".into()),
                },
                // As long as a sidecar's; nobody looks for the object.
                session: SessionId::from(format!("{}-0123456789ab", pod.name)),
                session_ttl: SessionTtl::clamped(15),
            },
        })
    }

    /// Takes the lock, which is measured, and frees it.
    pub(crate) async fn take_and_free(&mut self, rows: &mut Rows) -> Result<()> {
        let claim = Claim {
            grant: GrantId::from(uuid::Uuid::new_v4().to_string()),
            claimant: self.claimant.clone(),
            metadata: BTreeMap::new(),
            at: WallTime(1_767_225_600_123_456),
        };
        let (at, lock) = (self.written.stored.version, &self.written.stored.value);
        let Decision::Granted(taken) = lock.acquire(at, &self.mint, &claim) else {
            bail!("the bench's own lock is not free");
        };
        rows.time(TAKING_PUT, self.written.put(&taken)).await?;
        let (at, lock) = (self.written.stored.version, &self.written.stored.value);
        match lock.release(at, &self.mint, &claim.grant, claim.at) {
            Some(free) => self.written.put(&free).await,
            None => bail!("the bench's own lock is somebody else's"),
        }
    }
}

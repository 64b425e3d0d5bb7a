//! Writes locks with our own client, without a sidecar.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use kube::Config;
use leasehold::k8s::{K8sLockStore, connect};
use leasehold::protocol::ids::{GrantId, OwnerId, Resource, SessionId};
use leasehold::protocol::lock::{Claim, Decision, Lock};
use leasehold::protocol::session::{Claimant, PodRef};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Revision, Seen};
use leasehold::store::{LockStore, Stored};

/// A lock that the bench writes itself.
pub(crate) struct Written {
    pub(crate) store: K8sLockStore,
    pub(crate) stored: Stored<Lock>,
}

impl Written {
    pub(crate) async fn new(config: &Config, namespace: &str, resource: &str) -> Result<Self> {
        let store = K8sLockStore::new(connect(config)?, namespace);
        let stored = store.create(&Resource::parse(resource)?).await?;
        Ok(Self { store, stored })
    }

    pub(crate) async fn put(&mut self, next: &Lock) -> Result<()> {
        self.stored = self.store.update(&self.stored, next).await?;
        Ok(())
    }
}

/// The claimant that locks are written for. Its claims are as long as a sidecar's. Its session
/// needs no object, because nothing reads it.
pub(crate) struct Claiming {
    claimant: Claimant,
    mint: Mint,
}

impl Claiming {
    /// Creates a claimant for a pod that has seen the locks at this revision.
    pub(crate) fn new(pod: &str, uid: &str, seen: Revision) -> Self {
        let claimant = Claimant {
            owner: OwnerId::from(pod),
            pod: PodRef {
                name: pod.into(),
                uid: uid.into(),
                node: Some("node-1".into()),
            },
            session: SessionId::from(format!("{pod}-0123456789ab")),
            session_ttl: SessionTtl::clamped(15),
        };
        let mint = Mint {
            seen: Seen::from_list(seen),
            floor: 0,
        };
        Self { claimant, mint }
    }

    /// The session that holds the acquired locks.
    pub(crate) fn session(&self) -> &SessionId {
        &self.claimant.session
    }

    /// Returns the free lock after an acquire.
    pub(crate) fn take(&self, free: &Stored<Lock>) -> Result<Lock> {
        let claim = Claim {
            grant: GrantId::from(uuid::Uuid::new_v4().to_string()),
            claimant: self.claimant.clone(),
            kept: false,
            metadata: BTreeMap::new(),
            at: WallTime(1_767_225_600_123_456),
            preferred: false,
        };
        match free.value.acquire(free.version, &self.mint, &claim) {
            Decision::Granted(taken) => Ok(*taken),
            _ => bail!("the bench's own lock is not free"),
        }
    }

    /// Returns the held lock after a release.
    pub(crate) fn free(&self, taken: &Stored<Lock>) -> Result<Lock> {
        let lock = &taken.value;
        let freed = lock.grant.as_ref().and_then(|grant| {
            let at = WallTime(1_767_225_600_123_456);
            lock.release(taken.version, &self.mint, &grant.key(), at)
        });
        match freed {
            Some(free) => Ok(free),
            None => bail!("the bench's own lock is not taken"),
        }
    }
}

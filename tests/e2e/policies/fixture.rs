//! The writes that the policies are tested with, and their outcomes.
//!
//! The writes use kube and not the stores, because no agent of ours would make them. Set-up is done with admin
//! rights, as a user's: the identity policies bind service accounts.

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Client, Resource as KubeResource};
use leasehold::crd::lock::{
    DistributedLock, DistributedLockSpec, DistributedLockStatus, Holder, IncidentRecord,
    LeaseRecord, ReleaseRequest, WaiterRecord,
};
use leasehold::crd::session::{LockSession, LockSessionSpec, LockSessionStatus, RevocationRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::world::{User, World};

pub(super) const TIME: &str = "2026-01-01T00:00:00.000000Z";
/// These sessions are never renewed, and most do not exist; an operator of the cluster waits for this long before it
/// ends their grants.
const TTL_SECONDS: i32 = 120;
/// Nor does it mark those that began at [`TIME`].
const NEVER_LONG_HELD: i32 = 315_360_000;
/// The token of every grant that a scene begins with.
pub(super) const TOKEN: i64 = 5000;

/// The outcome of a write: applied, or refused with this message.
pub(super) type Outcome = Result<(), String>;

pub(super) fn outcome<T>(answer: kube::Result<T>) -> Outcome {
    match answer {
        Ok(_) => Ok(()),
        // By a policy, or by the definition's own schema and rules.
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => Err(status.message),
        Err(error) => panic!("neither done nor refused: {error}"),
    }
}

pub(super) trait Expect {
    fn allowed(self);
    fn refused(self, words: &str);
    fn refused_with_one_of(self, words: &[&str]);
}

impl Expect for Outcome {
    #[track_caller]
    fn allowed(self) {
        if let Err(words) = self {
            panic!("refused: {words}");
        }
    }

    #[track_caller]
    fn refused(self, words: &str) {
        self.refused_with_one_of(&[words]);
    }

    #[track_caller]
    fn refused_with_one_of(self, words: &[&str]) {
        match self {
            Ok(()) => panic!("done; it should have been refused with {words:?}"),
            Err(message) => assert!(
                words.iter().any(|words| message.contains(words)),
                "refused with other words: {message}"
            ),
        }
    }
}

pub(super) fn holder(pod: &User) -> Holder {
    Holder {
        owner_id: pod.name.clone(),
        pod: pod.name.clone(),
        pod_uid: pod.uid.clone(),
        node: None,
        session: format!("{}-0123456789ab", pod.name),
        session_ttl_seconds: TTL_SECONDS,
        metadata: std::collections::BTreeMap::default(),
    }
}

pub(super) fn waiter(pod: &User) -> WaiterRecord {
    WaiterRecord {
        lease_id: format!("g-{}", pod.name),
        owner_id: pod.name.clone(),
        pod: pod.name.clone(),
        pod_uid: pod.uid.clone(),
        session: format!("{}-0123456789ab", pod.name),
        session_ttl_seconds: TTL_SECONDS,
        queued_at: TIME.to_owned(),
        preferred: false,
    }
}

/// The end of the grant of `holder`, as `actor` records it.
pub(super) fn incident(kind: &str, holder: &User, actor: &str) -> IncidentRecord {
    IncidentRecord {
        at: TIME.to_owned(),
        kind: kind.to_owned(),
        lease_id: None,
        token: TOKEN,
        owner_id: holder.name.clone(),
        pod: holder.name.clone(),
        actor: actor.to_owned(),
        reason: "test".to_owned(),
    }
}

/// Gives the lock to a pod, under the id that its queue entry would have.
pub(super) fn grant(status: &mut DistributedLockStatus, pod: &User) {
    let id = format!("g-{}", pod.name);
    status.holder = Some(holder(pod));
    status.lease = Some(LeaseRecord {
        id,
        acquired_at: TIME.to_owned(),
        kept: false,
    });
    status.waiters.retain(|waiter| waiter.pod != pod.name);
    status.token += 1000;
    status.transitions += 1;
}

pub(super) fn free(status: &mut DistributedLockStatus) {
    status.holder = None;
    status.lease = None;
    status.waiters.clear();
}

pub(super) fn bare_lock(name: &str) -> DistributedLock {
    DistributedLock::new(
        name,
        DistributedLockSpec {
            resource: name.to_owned(),
            retain_seconds: None,
            long_held_seconds: None,
            release_request: None,
        },
    )
}

pub(super) fn session_of(pod: &User, name: &str) -> LockSession {
    LockSession::new(
        name,
        LockSessionSpec {
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            node: None,
            ttl_seconds: TTL_SECONDS,
            agent_version: "0".to_owned(),
        },
    )
}

/// A kind of object that is written here.
pub(super) trait Written:
    KubeResource<DynamicType = (), Scope = NamespaceResourceScope>
    + Serialize
    + DeserializeOwned
    + Clone
    + std::fmt::Debug
{
}

impl Written for DistributedLock {}
impl Written for LockSession {}

impl World {
    pub(super) async fn create<K: Written>(&self, client: &Client, object: &K) -> Outcome {
        let api = self.api::<K>(client);
        outcome(api.create(&PostParams::default(), object).await)
    }

    /// A lock of its own for one write, with this status.
    pub(super) async fn lock(&self, status: Option<DistributedLockStatus>) -> String {
        let name = format!("l-{}", uuid::Uuid::new_v4().simple());
        let mut lock = bare_lock(&name);
        lock.spec.long_held_seconds = Some(NEVER_LONG_HELD);
        self.create(&self.admin, &lock).await.allowed();
        if let Some(wanted) = status {
            self.write(&self.admin, &name, |status| *status = wanted)
                .await
                .allowed();
        }
        name
    }

    /// A lock that `pod` holds and for which `waiting` wait.
    pub(super) async fn held(&self, pod: &User, waiting: &[&User]) -> String {
        let mut status = DistributedLockStatus::default();
        grant(&mut status, pod);
        status.token = TOKEN;
        status.waiters = waiting.iter().map(|pod| waiter(pod)).collect();
        self.lock(Some(status)).await
    }

    /// One write of a lock's status, decided on its current state.
    pub(super) async fn write(
        &self,
        client: &Client,
        name: &str,
        change: impl FnOnce(&mut DistributedLockStatus),
    ) -> Outcome {
        let change = |lock: &mut DistributedLock| change(lock.status.get_or_insert_default());
        self.replace_status(client, name, change).await
    }

    /// Writes or clears a lock's release request.
    pub(super) async fn ask(
        &self,
        client: &Client,
        name: &str,
        request: Option<ReleaseRequest>,
    ) -> Outcome {
        let patch = Patch::Merge(json!({"spec": {"releaseRequest": request}}));
        let locks = self.api::<DistributedLock>(client);
        outcome(locks.patch(name, &PatchParams::default(), &patch).await)
    }

    /// One write of a session's status, decided on its current state.
    pub(super) async fn write_session(
        &self,
        client: &Client,
        name: &str,
        change: impl FnOnce(&mut LockSessionStatus),
    ) -> Outcome {
        let change = |session: &mut LockSession| change(session.status.get_or_insert_default());
        self.replace_status(client, name, change).await
    }

    async fn replace_status<K: Written>(
        &self,
        client: &Client,
        name: &str,
        change: impl FnOnce(&mut K),
    ) -> Outcome {
        let read = self.api::<K>(&self.admin).get(name).await;
        let mut object = read.expect("an object to write to");
        change(&mut object);
        let api = self.api::<K>(client);
        let params = PostParams::default();
        outcome(api.replace_status(name, &params, &object).await)
    }
}

pub(super) fn revocation(reason: &str, by: &str) -> RevocationRecord {
    RevocationRecord {
        at: TIME.to_owned(),
        by: by.to_owned(),
        reason: reason.to_owned(),
    }
}

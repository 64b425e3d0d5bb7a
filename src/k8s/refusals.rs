//! The Events of a sidecar about refused writes.
//!
//! An Event is only created, under a name made from the lock and the stale token. So a repeated report finds it, also
//! one by another pod, and no right to change Events is needed.

use async_trait::async_trait;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use kube::Client;

use super::calls::Calls;
use super::convert::object_ref;
use super::events::{SIDECAR, event_json};
use super::names::{object_name, short_name};
use crate::crd::DistributedLock;
use crate::protocol::time::WallTime;
use crate::protocol::token::Token;
use crate::store::StoreError;
use crate::store::cluster::{Event, RefusalEvents, RefusedWrite, Regarding};

/// The Events of one pod's sidecar, in its namespace.
pub struct K8sRefusals {
    locks: Calls,
    events: Calls,
    pod: String,
}

impl K8sRefusals {
    /// Creates an adapter. `pod` names the pod that writes.
    #[must_use]
    pub fn new(client: Client, namespace: &str, pod: &str) -> Self {
        Self {
            locks: Calls::new::<DistributedLock>(client.clone(), namespace),
            events: Calls::new::<ApiEvent>(client, namespace),
            pod: pod.to_owned(),
        }
    }
}

#[async_trait]
impl RefusalEvents for K8sRefusals {
    async fn write(
        &self,
        refused: &RefusedWrite,
        latest: Token,
        at: WallTime,
    ) -> Result<(), StoreError> {
        let name = object_name(&refused.resource);
        let Some(lock) = self.locks.get(&name).await? else {
            return Err(StoreError::NotFound(format!("the lock {name} is gone")));
        };
        let event = Event {
            name: format!("{}.stale.{}", short_name(&name), refused.token).into(),
            regarding: Regarding::Lock,
            object_ref: object_ref(&lock["metadata"]),
            uid: lock["metadata"]["uid"].as_str().unwrap_or_default().into(),
            // It is not known which pod had the token.
            pod: None,
            is_warning: true,
            reason: "StaleWriteRefused",
            action: "Refuse",
            message: message(refused, latest, &self.pod),
            at,
        };
        match self
            .events
            .create(&event_json(&event, SIDECAR, &self.pod))
            .await
        {
            Ok(_) | Err(StoreError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn message(refused: &RefusedWrite, latest: Token, pod: &str) -> String {
    let guard = refused.guard.as_deref().unwrap_or("the guarded resource");
    let why = if latest > refused.token {
        format!("{latest} is newer")
    } else {
        "its lease has ended".to_owned()
    };
    format!(
        "a write with the fencing token {} was refused by {guard}, because {why}: its worker did not stop when it lost \
         the lock (reported in pod {pod})",
        refused.token
    )
}

//! Sessions in the API server.

use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::{api_version, session, written};
use crate::crd::LockSession;
use crate::crd::session::LockSessionSpec;
use crate::protocol::ids::SessionId;
use crate::protocol::session::Session;
use crate::store::{SessionStore, StoreError, Stored};

/// The `LockSession` objects of one namespace.
#[derive(Clone)]
pub struct K8sSessionStore {
    calls: Calls,
}

impl K8sSessionStore {
    /// Creates a store for the sessions of `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            calls: Calls::new::<LockSession>(client, namespace),
        }
    }

    /// Sets the timeout of each call (default: 5 seconds).
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self {
            calls: self.calls.with_timeout(timeout),
        }
    }
}

#[async_trait]
impl SessionStore for K8sSessionStore {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        self.calls
            .get(id.as_str())
            .await?
            .map(session::read)
            .transpose()
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        let object = new_object(self.calls.namespace(), session);
        written(self.calls.create(&object).await?, session::read)
    }

    /// The write carries the resourceVersion of `current`: of a renewal and a revocation on one
    /// version only one succeeds.
    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let object = session::write(current, next)?;
        written(
            self.calls
                .put_status(current.value.id.as_str(), &object)
                .await?,
            session::read,
        )
    }
}

fn new_object(namespace: &str, session: &Session) -> Value {
    let mut metadata = json!({"name": session.id.as_str(), "namespace": namespace});
    if !session.pod.uid.is_empty() {
        // The garbage collector deletes the sessions of deleted pods. It never waits for one, so
        // the deletion of a pod is not blocked.
        metadata["ownerReferences"] = json!([{
            "apiVersion": "v1", "kind": "Pod",
            "name": &*session.pod.name, "uid": &*session.pod.uid,
            "blockOwnerDeletion": false,
        }]);
    }
    let spec = LockSessionSpec::from(session);
    json!({
        "apiVersion": api_version(), "kind": "LockSession", "metadata": metadata, "spec": spec,
    })
}

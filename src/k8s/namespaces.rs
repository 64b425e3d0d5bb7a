//! The labelled namespaces of a cluster, and the role bindings with the operator's name in them.
//!
//! Only labelled objects, and only role bindings with that name, are requested: a cluster may have
//! many of each. A binding is replaced by a PUT with the version that the write is based on.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Client;
use serde_json::Value;

use super::calls::Calls;
use super::convert::{binding, is_deleted, uninjected_pod, version_of, written};
use super::fleet::feeds;
use crate::store::fleet::{Feed, Object, ObjectRef};
use crate::store::namespaces::{Binding, Namespaces, Subject, UninjectedPod};
use crate::store::{Original, StoreError, Stored};

/// Selects the labelled namespaces.
const LABELLED: &str = "leasehold.dev/injection in (enabled,on-request)";
/// Selects the labelled service accounts.
const ACCOUNTS: &str = "leasehold.dev/sidecar=true";

/// The namespaces of a cluster.
#[derive(Clone)]
pub struct K8sNamespaces {
    client: Client,
    timeout: Duration,
}

impl K8sNamespaces {
    /// Creates an adapter. Its feeds must be used inside one runtime.
    #[must_use]
    pub const fn new(client: Client) -> Self {
        Self {
            client,
            timeout: Duration::from_secs(5),
        }
    }

    fn calls(&self, namespace: &str) -> Calls {
        Calls::new::<RoleBinding>(self.client.clone(), namespace).with_timeout(self.timeout)
    }
}

#[async_trait]
impl Namespaces for K8sNamespaces {
    fn labelled(&self) -> Feed<Object<()>> {
        let select = |config: feeds::Config| config.labels(LABELLED);
        feeds::selected::<Namespace, _>(&self.client, select, |object| existence(&object))
    }

    fn accounts(&self) -> Feed<Object<()>> {
        let select = |config: feeds::Config| config.labels(ACCOUNTS);
        feeds::selected::<ServiceAccount, _>(&self.client, select, |object| existence(&object))
    }

    fn bindings(&self) -> Feed<Object<Binding>> {
        let select = |config: feeds::Config| config.fields(&binding_selector());
        feeds::selected::<RoleBinding, _>(&self.client, select, binding::read)
    }

    fn uninjected_pods(&self) -> Feed<Object<UninjectedPod>> {
        let select = |config: feeds::Config| config.labels(uninjected_pod::SELECTOR);
        feeds::selected::<Pod, _>(&self.client, select, |object| uninjected_pod::read(&object))
    }

    /// By a list, because the operator has no permission to get a binding.
    async fn binding(&self, namespace: &str) -> Result<Option<Object<Binding>>, StoreError> {
        let calls = self.calls(namespace);
        let mut listed = calls.list_where("metadata.name", binding::NAME).await?;
        match listed["items"][0].take() {
            Value::Null => Ok(None),
            object => read_object(namespace, object).map(Some),
        }
    }

    async fn create_binding(
        &self,
        namespace: &str,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        let object = binding::new_object(namespace, subjects);
        let calls = self.calls(namespace);
        let created = calls.create_in_live_namespace(&object).await?;
        let created = created.map_err(|_end| {
            StoreError::Unavailable(format!("the namespace {namespace} is being deleted"))
        });
        written_object(namespace, created?)
    }

    /// The write carries the resourceVersion of `current`, so it cannot overwrite a concurrent
    /// change.
    async fn update_binding(
        &self,
        current: &Object<Binding>,
        subjects: &BTreeSet<Subject>,
    ) -> Result<Object<Binding>, StoreError> {
        let namespace = &*current.object_ref.namespace;
        let object = binding::write(&current.stored, namespace, subjects)?;
        let updated = self.calls(namespace).put(binding::NAME, &object).await?;
        written_object(namespace, updated)
    }

    async fn delete_binding(&self, current: &Object<Binding>) -> Result<(), StoreError> {
        let calls = self.calls(&current.object_ref.namespace);
        let version = current.stored.version;
        calls.delete(binding::NAME, &current.uid, version).await
    }
}

fn binding_selector() -> String {
    format!("metadata.name={}", binding::NAME)
}

/// Reads only that the object exists.
fn existence(object: &Value) -> Result<Stored<()>, StoreError> {
    Ok(Stored {
        value: (),
        version: version_of(object)?,
        original: Original::new(()),
    })
}

fn written_object(namespace: &str, object: Value) -> Result<Object<Binding>, StoreError> {
    let (uid, is_deleted) = (uid_of(&object), is_deleted(&object));
    let stored = written(object, binding::read)?;
    Ok(self::object(namespace, uid, is_deleted, stored))
}

fn read_object(namespace: &str, object: Value) -> Result<Object<Binding>, StoreError> {
    let (uid, is_deleted) = (uid_of(&object), is_deleted(&object));
    let stored = binding::read(object)?;
    Ok(self::object(namespace, uid, is_deleted, stored))
}

fn object(
    namespace: &str,
    uid: String,
    is_deleted: bool,
    stored: Stored<Binding>,
) -> Object<Binding> {
    Object {
        object_ref: ObjectRef {
            namespace: namespace.into(),
            name: binding::NAME.into(),
        },
        uid: uid.into(),
        is_deleted,
        is_misnamed: false,
        set_at: None,
        stored,
    }
}

fn uid_of(object: &Value) -> String {
    let uid = object["metadata"]["uid"].as_str();
    uid.unwrap_or_default().to_owned()
}

//! The webhook's ports on a real API server: one Secret, and one MutatingWebhookConfiguration.
//!
//! The operator's permissions name both objects. Everything else in them is preserved.

use async_trait::async_trait;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::calls::Calls;
use super::convert::version_of;
use super::fleet::changes;
use crate::store::certificates::{CertificateStore, Changes, TlsFiles, TrustStore};
use crate::store::{Original, StoreError, Stored};

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// The Secret with the webhook's certificate.
#[derive(Clone)]
pub struct K8sCertificates {
    client: Client,
    namespace: String,
    name: String,
}

impl K8sCertificates {
    /// Creates an adapter for the Secret with this name.
    #[must_use]
    pub const fn new(client: Client, namespace: String, name: String) -> Self {
        Self {
            client,
            namespace,
            name,
        }
    }

    fn calls(&self) -> Calls {
        Calls::new::<Secret>(self.client.clone(), &self.namespace)
    }
}

#[async_trait]
impl CertificateStore for K8sCertificates {
    async fn get(&self) -> Result<Option<Stored<TlsFiles>>, StoreError> {
        let Some(object) = self.calls().get(&self.name).await? else {
            return Ok(None);
        };
        stored(files_of(&object), object).map(Some)
    }

    async fn create(&self, files: &TlsFiles) -> Result<(), StoreError> {
        let object = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {
                "name": self.name, "namespace": self.namespace,
                "labels": {"app.kubernetes.io/managed-by": "leasehold-operator"},
            },
            "type": "kubernetes.io/tls",
            "data": data(files),
        });
        self.calls().create(&object).await.map(drop)
    }

    async fn update(&self, current: &Stored<TlsFiles>, next: &TlsFiles) -> Result<(), StoreError> {
        let mut object = original(current)?.clone();
        let Value::Object(data) = data(next) else {
            return Err(StoreError::Invalid("a Secret's data".to_owned()));
        };
        for (name, file) in data {
            object["data"][name] = file;
        }
        self.calls().put(&self.name, &object).await.map(drop)
    }

    fn changes(&self) -> Changes {
        changes(&self.client, &self.name, |client| {
            Api::<PartialObjectMeta<Secret>>::namespaced(client, &self.namespace)
        })
    }
}

/// The configuration by which the API server calls the webhook.
#[derive(Clone)]
pub struct K8sTrust {
    client: Client,
    name: String,
}

impl K8sTrust {
    /// Creates an adapter for the configuration with this name.
    #[must_use]
    pub const fn new(client: Client, name: String) -> Self {
        Self { client, name }
    }

    fn calls(&self) -> Calls {
        Calls::everywhere::<MutatingWebhookConfiguration>(self.client.clone())
    }
}

#[async_trait]
impl TrustStore for K8sTrust {
    async fn get(&self) -> Result<Option<Stored<Vec<Vec<u8>>>>, StoreError> {
        let Some(object) = self.calls().get(&self.name).await? else {
            return Ok(None);
        };
        let webhooks = object["webhooks"].as_array();
        let bundles = webhooks
            .into_iter()
            .flatten()
            .map(|webhook| bytes(&webhook["clientConfig"]["caBundle"]))
            .collect();
        stored(bundles, object).map(Some)
    }

    async fn update(
        &self,
        current: &Stored<Vec<Vec<u8>>>,
        next: &[Option<Vec<u8>>],
    ) -> Result<(), StoreError> {
        // A precondition: the patch addresses webhooks by index, and another client may have
        // changed the list.
        let mut patch = vec![json!({
            "op": "replace", "path": "/metadata/resourceVersion",
            "value": original(current)?["metadata"]["resourceVersion"],
        })];
        for (index, bundle) in next.iter().enumerate() {
            if let Some(bundle) = bundle {
                patch.push(json!({
                    "op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"),
                    "value": ByteString(bundle.clone()),
                }));
            }
        }
        let patch = Value::Array(patch);
        self.calls().patch(&self.name, &patch).await.map(drop)
    }

    fn changes(&self) -> Changes {
        changes(&self.client, &self.name, |client| {
            Api::<PartialObjectMeta<MutatingWebhookConfiguration>>::all(client)
        })
    }
}

/// Returns the files in a Secret; empty ones for those that it lacks.
#[must_use]
pub fn files_of(secret: &Value) -> TlsFiles {
    let file = |name: &str| bytes(&secret["data"][name]);
    TlsFiles {
        certificate: file(CERTIFICATE),
        key: file(KEY),
        authority: file(AUTHORITY),
    }
}

/// Returns the bytes of a field, or none if it is not a valid field of bytes.
#[must_use]
pub fn bytes(field: &Value) -> Vec<u8> {
    ByteString::deserialize(field).unwrap_or_default().0
}

fn data(files: &TlsFiles) -> Value {
    json!({
        CERTIFICATE: ByteString(files.certificate.clone()),
        KEY: ByteString(files.key.clone()),
        AUTHORITY: ByteString(files.authority.clone()),
    })
}

fn stored<T>(value: T, mut object: Value) -> Result<Stored<T>, StoreError> {
    // The API server maintains it; a write without it does not change it.
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Ok(Stored {
        value,
        version: version_of(&object)?,
        original: Original::new(object),
    })
}

fn original<T>(stored: &Stored<T>) -> Result<&Value, StoreError> {
    let original = stored.original.get();
    original.ok_or_else(|| StoreError::Invalid("an object of another store".to_owned()))
}

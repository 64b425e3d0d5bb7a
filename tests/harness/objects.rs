//! The objects of a namespace, read and changed with the administrator's rights.

use anyhow::{Context, Result};
use serde_json::Value;

use super::cluster::Namespace;

impl Namespace {
    /// Returns a lock object, or `None` if it does not exist.
    pub(crate) async fn lock(&self, name: &str) -> Result<Option<Value>> {
        self.read(&format!("distributedlocks/{name}")).await
    }

    /// Returns a session object, or `None` if it does not exist.
    pub(crate) async fn session(&self, name: &str) -> Result<Option<Value>> {
        self.read(&format!("locksessions/{name}")).await
    }

    /// Returns the session that holds a lock.
    pub(crate) async fn holding_session(&self, lock: &str) -> Result<Option<Value>> {
        let Some(lock) = self.lock(lock).await? else {
            return Ok(None);
        };
        match lock["status"]["holder"]["session"].as_str() {
            Some(session) => self.session(session).await,
            None => Ok(None),
        }
    }

    /// Returns all objects of a kind: `distributedlocks` or `locksessions`.
    pub(crate) async fn all(&self, kind: &str) -> Result<Vec<Value>> {
        let list = self.read(kind).await?.context("the kind must be served")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Returns all Events.
    pub(crate) async fn events(&self) -> Result<Vec<Value>> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.name);
        let request = http::Request::get(path).body(vec![])?;
        let list: Value = self.client.request(request).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates one of our objects as a person would.
    pub(crate) async fn create(&self, object: &Value) -> Result<Value> {
        let kind = match object["kind"].as_str() {
            Some("DistributedLock") => "distributedlocks",
            _ => "locksessions",
        };
        let request = http::Request::post(self.path(kind))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        Ok(self.client.request(request).await?)
    }

    /// Changes an object as a person would: a merge patch of `kind/name` or `kind/name/status`.
    pub(crate) async fn patch(&self, path: &str, change: &Value) -> Result<Value> {
        let request = http::Request::patch(self.path(path))
            .header("content-type", "application/merge-patch+json")
            .body(change.to_string().into_bytes())?;
        Ok(self.client.request(request).await?)
    }

    /// Writes a whole object back, as it was read.
    pub(crate) async fn put(&self, path: &str, object: &Value) -> Result<Value> {
        let request = http::Request::put(self.path(path))
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())?;
        Ok(self.client.request(request).await?)
    }

    async fn read(&self, path: &str) -> Result<Option<Value>> {
        let request = http::Request::get(self.path(path)).body(vec![])?;
        match self.client.request(request).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, path: &str) -> String {
        let namespace = &self.name;
        format!("/apis/leasehold.dev/v1alpha1/namespaces/{namespace}/{path}")
    }
}

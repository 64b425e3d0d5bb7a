//! Requests for one kind of object, in one namespace or in all, as raw JSON.
//!
//! Raw JSON, because fields that this version does not know must survive its writes. Each call is
//! one request with a timeout, and is never repeated.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent,
    WatchParams,
};
use kube::client::Body;
use kube::{Client, Resource};
use serde_json::Value;

use super::convert::continue_token;
use super::errors::{
    Call, NamespaceUnavailable, does_not_apply, from_answer, from_transport, from_watch,
    is_another_object, is_object_missing, namespace_unavailable,
};
use super::names::is_object_name;
use crate::protocol::token::Revision;
use crate::store::{StoreError, within};

/// The default timeout of a call.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The page size of complete lists.
const PAGE: u32 = 500;

/// One kind of object in one namespace, or in all namespaces (to list them).
#[derive(Clone)]
pub(super) struct Calls {
    client: Client,
    namespace: String,
    requests: kube::core::Request,
    timeout: Duration,
}

impl Calls {
    pub(super) fn new<K: Resource<DynamicType = ()>>(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            requests: kube::core::Request::new(K::url_path(&(), Some(namespace))),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Of all namespaces (only to list), or of a cluster-scoped kind.
    pub(super) fn everywhere<K: Resource<DynamicType = ()>>(client: Client) -> Self {
        Self {
            client,
            namespace: String::new(),
            requests: kube::core::Request::new(K::url_path(&(), None)),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    pub(super) fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reads the newest state of an object; without a resourceVersion the API server reads its
    /// store. The name may come from an edited object: an invalid name never becomes a path, and no
    /// object has it.
    pub(super) async fn get(&self, name: &str) -> Result<Option<Value>, StoreError> {
        if !is_object_name(name) {
            return Ok(None);
        }
        let request = self.requests.get(name, &GetParams::default());
        let (code, body) = self.send(Call::Read, request).await?;
        if is_object_missing(code, &body, name) {
            return Ok(None);
        }
        parse(Call::Read, code, &body).map(Some)
    }

    /// Lists the objects with this value of a selectable field. There are only few.
    pub(super) async fn list_where(&self, field: &str, value: &str) -> Result<Value, StoreError> {
        let params = ListParams::default().fields(&format!("{field}={value}"));
        let (code, body) = self.send(Call::Read, self.requests.list(&params)).await?;
        parse(Call::Read, code, &body)
    }

    /// Watches the objects with this value of a selectable field, after a revision.
    pub(super) async fn watch_where(
        &self,
        field: &str,
        value: &str,
        after: Revision,
    ) -> Result<BoxStream<'static, Result<WatchEvent<Value>, StoreError>>, StoreError> {
        let params = WatchParams::default().fields(&format!("{field}={value}"));
        let request = self
            .requests
            .watch(&params, &after.to_string())
            .map_err(|error| StoreError::Invalid(error.to_string()))?;
        let opened = within(self.timeout, async {
            let stream = self.client.request_events(request).await;
            stream.map_err(|error| from_watch(&error))
        });
        let stream = opened.await.map_err(|error| match error {
            StoreError::Ambiguous(what) => Call::Read.unknown_outcome(what),
            known => known,
        })?;
        let events = stream.map(|event| event.map_err(|error| from_watch(&error)));
        Ok(events.boxed())
    }

    /// Lists one page. Without a resourceVersion the first page is at least as new as every write
    /// acknowledged before; later pages have the same revision.
    pub(super) async fn list(&self, limit: u32, next: Option<&str>) -> Result<Value, StoreError> {
        let params = ListParams {
            limit: Some(limit),
            continue_token: next.map(str::to_owned),
            ..ListParams::default()
        };
        let call = if next.is_some() {
            Call::ReadNextPage
        } else {
            Call::Read
        };
        let (code, body) = self.send(call, self.requests.list(&params)).await?;
        parse(call, code, &body)
    }

    /// Lists the metadata of all selected objects, page by page.
    pub(super) async fn metadata_of(
        &self,
        mut select: ListParams,
    ) -> Result<Vec<Value>, StoreError> {
        let mut found = Vec::new();
        let mut call = Call::Read;
        select.limit = Some(PAGE);
        loop {
            let (code, body) = self
                .send(call, self.requests.list_metadata(&select))
                .await?;
            let mut page = parse(call, code, &body)?;
            match page["items"].take() {
                Value::Array(items) => {
                    found.extend(items.into_iter().map(|mut item| item["metadata"].take()));
                }
                // An empty list of metadata, as the API server encodes it.
                Value::Null if page["kind"] == "PartialObjectMetadataList" => {}
                _ => return Err(StoreError::Unreadable("the list has no items".to_owned())),
            }
            select.continue_token = continue_token(&page);
            if select.continue_token.is_none() {
                return Ok(found);
            }
            call = Call::ReadNextPage;
        }
    }

    pub(super) async fn create(&self, object: &Value) -> Result<Value, StoreError> {
        let (code, body) = self.post(object).await?;
        parse(Call::Create, code, &body)
    }

    /// Sends a review, which the API server answers and does not store.
    pub(super) async fn review(&self, object: &Value) -> Result<Value, StoreError> {
        let request = self
            .requests
            .create(&PostParams::default(), bytes_of(object)?);
        let (code, body) = self.send(Call::Read, request).await?;
        parse(Call::Read, code, &body)
    }

    /// Like [`Self::create`], but reports a namespace that is being deleted or does not exist.
    pub(super) async fn create_in_live_namespace(
        &self,
        object: &Value,
    ) -> Result<Result<Value, NamespaceUnavailable>, StoreError> {
        let (code, body) = self.post(object).await?;
        match namespace_unavailable(code, &body) {
            Some(end) => Ok(Err(end)),
            None => parse(Call::Create, code, &body).map(Ok),
        }
    }

    async fn post(&self, object: &Value) -> Result<(StatusCode, Vec<u8>), StoreError> {
        let request = self
            .requests
            .create(&PostParams::default(), bytes_of(object)?);
        self.send(Call::Create, request).await
    }

    /// Replaces an object, if it still has the resourceVersion in `object`.
    pub(super) async fn put(&self, name: &str, object: &Value) -> Result<Value, StoreError> {
        check_name(name)?;
        let params = PostParams::default();
        let request = self.requests.replace(name, &params, bytes_of(object)?);
        let (code, body) = self.send(Call::Update, request).await?;
        parse(Call::Update, code, &body)
    }

    /// Replaces the status of an object, if it still has the resourceVersion in `object`.
    pub(super) async fn put_status(&self, name: &str, object: &Value) -> Result<Value, StoreError> {
        check_name(name)?;
        let params = PostParams::default();
        let request = self
            .requests
            .replace_subresource("status", name, &params, bytes_of(object)?);
        let (code, body) = self.send(Call::Update, request).await?;
        parse(Call::Update, code, &body)
    }

    /// Deletes an object, if it still has this uid and version.
    pub(super) async fn delete(
        &self,
        name: &str,
        uid: &str,
        version: Revision,
    ) -> Result<(), StoreError> {
        check_name(name)?;
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_string()),
        });
        let request = self.requests.delete(name, &params);
        let (code, body) = self.send(Call::Update, request).await?;
        parse(Call::Update, code, &body).map(drop)
    }

    /// Changes the status of an object by a JSON patch (RFC 6902), at any version.
    pub(super) async fn patch_status(
        &self,
        name: &str,
        patch: &Value,
    ) -> Result<Value, StoreError> {
        self.json_patch(&format!("{name}/status"), patch).await
    }

    /// Changes an object by a JSON patch; `Conflict` if it does not apply to the object. A patch
    /// that replaces the resourceVersion by the one that it is based on is a compare-and-swap.
    pub(super) async fn patch(&self, name: &str, patch: &Value) -> Result<Value, StoreError> {
        check_name(name)?;
        self.json_patch(name, patch).await
    }

    async fn json_patch(&self, target: &str, patch: &Value) -> Result<Value, StoreError> {
        let request = Request::patch(format!("{}/{target}", self.requests.url_path))
            .header(CONTENT_TYPE, "application/json-patch+json")
            .body(bytes_of(patch)?)
            .map_err(kube::core::request::Error::BuildRequest);
        let (code, body) = self.send(Call::Update, request).await?;
        if does_not_apply(code, &body) {
            return Err(StoreError::Conflict);
        }
        parse(Call::Update, code, &body)
    }

    /// Changes an object by a JSON merge patch (RFC 7386). With `metadata.uid` in it, only if the
    /// object still has that uid.
    pub(super) async fn merge(&self, name: &str, patch: &Value) -> Result<(), StoreError> {
        check_name(name)?;
        let request = self
            .requests
            .patch(name, &PatchParams::default(), &Patch::Merge(patch));
        let (code, body) = self.send(Call::Update, request).await?;
        if is_another_object(code, &body) {
            return Err(StoreError::Conflict);
        }
        parse(Call::Update, code, &body).map(drop)
    }

    async fn send(
        &self,
        call: Call,
        request: Result<Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<(StatusCode, Vec<u8>), StoreError> {
        let request = request.map_err(|error| StoreError::Invalid(error.to_string()))?;
        let exchange = async {
            let answer = self.client.send(request.map(Body::from)).await?;
            let code = answer.status();
            let body = answer.into_body().collect_bytes().await?;
            Ok((code, body.to_vec()))
        };
        let bounded = within(self.timeout, async {
            exchange
                .await
                .map_err(|error: kube::Error| from_transport(call, &error))
        });
        bounded.await.map_err(|error| match error {
            StoreError::Ambiguous(what) => call.unknown_outcome(what),
            known => known,
        })
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    if is_object_name(name) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "{name:?} is not a valid object name"
    )))
}

fn bytes_of(object: &Value) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(object).map_err(|error| StoreError::Invalid(error.to_string()))
}

/// Parses a response. A successful response with an unreadable body means that the write was
/// probably applied.
fn parse(call: Call, code: StatusCode, body: &[u8]) -> Result<Value, StoreError> {
    if !code.is_success() {
        return Err(from_answer(call, code, body));
    }
    serde_json::from_slice(body).map_err(|error| {
        call.unknown_outcome(format!("the API server's response cannot be read: {error}"))
    })
}

#[cfg(test)]
mod tests;

//! Writes the fencing token of a lease to the Kubernetes objects that a lock guards, so that the API server refuses the
//! write of a process that lost its lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::clock::now;

const ANNOTATION: &str = "leasehold.dev/fencing-token";
const POLICY: &str = "'leasehold-fenced-objects'";
const JSON_PATCH: &str = "application/json-patch+json";
/// The API server may not have seen the grant of a new lease. After this time, the token is of another lock.
const REPEAT_FOR: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(1);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a write was not sent. It is the source of a [`kube::Error::Service`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsent {
    /// The lease of the client has ended, or there was none.
    #[error(
        "the lease of this client has ended, or there was none; create a client for each lease"
    )]
    NoToken,
    /// The token cannot be added to the request.
    #[error("the fencing token cannot be added to the request: {0}")]
    Unstampable(&'static str),
}

/// Returns a client that adds the fencing token of the current lease to each write of an object of a namespace. Create one
/// for each lease, when it begins: a write that was decided in an earlier one must not be sent with a newer token. Use it
/// for the guarded objects only: it writes the annotation to unguarded objects, too.
///
/// `token` returns the token of the current lease, as [`Election::token`](crate::Election::token). Without a lease, or with
/// another one, no write is sent. `stale` is called when the API server has refused the token because a newer one exists:
/// the lease has ended. It must return at once, so send a signal. The caller of the write receives the API server's
/// answer, 403.
///
/// - A deletion becomes two requests: a patch of the annotation, which needs the right to patch, and the deletion of the
///   resourceVersion that the patch returned. The API server answers 409 if the object has changed in between: repeat the
///   deletion. A deletion of a collection and a dry run of a deletion are not sent.
/// - Writes of subresources are sent unchanged, but not without a lease. Replace them with the resourceVersion of a
///   write before.
/// - A JSON patch needs an object that has annotations already.
/// - A write is repeated for ten seconds while the API server answers 422 because it has not seen the grant of a new
///   lease.
pub fn fenced(
    client: Client,
    token: impl Fn() -> Option<u64> + Send + Sync + 'static,
    stale: impl Fn(u64) + Send + Sync + 'static,
) -> Client {
    let namespace = client.default_namespace().to_owned();
    let fence = Arc::new(Fence {
        lease: token(),
        send: move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        },
        token: Box::new(token),
        stale: Box::new(stale),
    });
    let service = tower::service_fn(move |request| {
        let fence = Arc::clone(&fence);
        async move { fence.serve(request).await }
    });
    Client::new(service, namespace)
}

struct Fence<S> {
    send: S,
    lease: Option<u64>,
    token: Box<dyn Fn() -> Option<u64> + Send + Sync>,
    stale: Box<dyn Fn(u64) + Send + Sync>,
}

/// What a write is for.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Object,
    Collection,
    Other,
}

impl<S, F> Fence<S>
where
    S: Fn(Request<Body>) -> F,
    F: Future<Output = Result<Response<Body>, kube::Error>>,
{
    async fn serve(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let writes = [Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        if !writes.contains(request.method()) {
            return Ok((self.send)(request).await?);
        }
        let token = self.token()?;
        let (parts, body) = request.into_parts();
        match target(&parts) {
            Target::Other => Ok((self.send)(Request::from_parts(parts, body)).await?),
            Target::Collection => {
                let why = "a deletion of a collection; delete each object";
                Err(Unsent::Unstampable(why).into())
            }
            Target::Object => {
                let body = body.collect_bytes().await?;
                if parts.method == Method::DELETE {
                    return self.delete(&parts, &body, token).await;
                }
                let body = stamped(&parts, &body, token)?;
                self.write(&parts, token, &body).await
            }
        }
    }

    /// Returns the token of the lease that the client was created for, if that is the current one.
    fn token(&self) -> Result<u64, Unsent> {
        let token = (self.token)().filter(|token| Some(*token) == self.lease);
        token.ok_or(Unsent::NoToken)
    }

    /// Sends a request until the API server has seen the grant of its token.
    async fn write(
        &self,
        parts: &Parts,
        token: u64,
        body: &[u8],
    ) -> Result<Response<Body>, BoxError> {
        let until = now() + REPEAT_FOR;
        let mut pause = FIRST_PAUSE;
        loop {
            self.token()?;
            let mut request = Request::from_parts(parts.clone(), Body::from(body.to_vec()));
            request.headers_mut().remove(CONTENT_LENGTH);
            let (response, refusal) = read_refusal((self.send)(request).await?).await?;
            if refusal.contains("stale fencing token") {
                (self.stale)(token);
                return Ok(response);
            }
            if !refusal.contains("repeat the write") || now() >= until {
                return Ok(response);
            }
            tokio::time::sleep(pause).await;
            pause = LAST_PAUSE.min(pause * 2);
        }
    }

    /// Writes the token, and deletes what it wrote.
    async fn delete(
        &self,
        parts: &Parts,
        body: &[u8],
        token: u64,
    ) -> Result<Response<Body>, BoxError> {
        let mut options = deletable(parts, body)?;
        let mut patch = parts.clone();
        patch.method = Method::PATCH;
        patch.uri = parts.uri.path().parse()?;
        let merge = HeaderValue::from_static("application/merge-patch+json");
        patch.headers.insert(CONTENT_TYPE, merge);
        let json = HeaderValue::from_static("application/json");
        patch.headers.insert(ACCEPT, json.clone());
        // If the caller names a version, the object must still have it.
        let mut metadata = json!({"annotations": {ANNOTATION: token.to_string()}});
        if let Some(version) = options.pointer("/preconditions/resourceVersion") {
            metadata["resourceVersion"] = version.clone();
        }
        let stamp = json!({"metadata": metadata}).to_string();
        let response = self.write(&patch, token, stamp.as_bytes()).await?;
        if response.status() != StatusCode::OK {
            return Ok(response);
        }
        let written = response.into_body().collect_bytes().await?;
        let written: Value = serde_json::from_slice(&written)?;
        let version = written["metadata"]["resourceVersion"].as_str();
        let why = "nothing was deleted, because the API server's answer has no resourceVersion";
        options["preconditions"]["resourceVersion"] = version.ok_or(why)?.into();
        let mut deletion = parts.clone();
        deletion.headers.insert(CONTENT_TYPE, json);
        let options = options.to_string();
        self.write(&deletion, token, options.as_bytes()).await
    }
}

/// Returns the options of a deletion. Refuses what two requests would change: the first one writes, and the API server
/// ignores options in the query of a request with a body.
fn deletable(parts: &Parts, body: &[u8]) -> Result<Value, Unsent> {
    let options = parsed(body)?;
    if options["dryRun"]
        .as_array()
        .is_some_and(|it| !it.is_empty())
    {
        let why = "a dry run of a deletion, which would write the token";
        return Err(Unsent::Unstampable(why));
    }
    let preconditions = &options["preconditions"];
    if !preconditions.is_null() && !preconditions.is_object() {
        return Err(Unsent::Unstampable("its preconditions are not an object"));
    }
    let in_query = parts.uri.query().unwrap_or_default().split('&');
    let mut names = in_query.map(|one| one.split_once('=').map_or(one, |(name, _)| name));
    let options_of_a_body = [
        "dryRun",
        "gracePeriodSeconds",
        "orphanDependents",
        "propagationPolicy",
    ];
    if names.any(|name| options_of_a_body.contains(&name)) {
        let why = "options in the query of a deletion; send them in the body";
        return Err(Unsent::Unstampable(why));
    }
    Ok(options)
}

fn target(parts: &Parts) -> Target {
    let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
    // The last one: a proxy may have the API server below a namespace of its own.
    let is_root = |at: &usize| {
        path[*at] == "namespaces" && matches!(path[..*at], [.., "api", _] | [.., "apis", _, _])
    };
    let Some(root) = (0..path.len() - 1).rfind(is_root) else {
        return Target::Other;
    };
    // The namespace, the plural, the name and the subresource.
    let number = path.len() - root - 1;
    match (&parts.method, number) {
        (&Method::DELETE, 2) => Target::Collection,
        (&Method::POST, 2) | (&Method::PUT | &Method::PATCH | &Method::DELETE, 3) => Target::Object,
        _ => Target::Other,
    }
}

/// Returns an object or a patch with the annotation.
fn stamped(parts: &Parts, body: &[u8], token: u64) -> Result<Vec<u8>, Unsent> {
    let token = token.to_string();
    if parts
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(JSON_PATCH.as_bytes()))
    {
        let operations = serde_json::from_slice(body);
        let mut operations: Vec<Value> =
            operations.map_err(|_| Unsent::Unstampable("the JSON patch is not a list"))?;
        // The last one counts.
        let path = format!("/metadata/annotations/{}", ANNOTATION.replace('/', "~1"));
        operations.push(json!({"op": "add", "path": path, "value": token}));
        return Ok(Value::from(operations).to_string().into_bytes());
    }
    let mut document = parsed(body)?;
    let mut at = &mut document;
    for field in ["metadata", "annotations"] {
        at = &mut at[field];
        if at.is_null() {
            *at = json!({});
        }
        if !at.is_object() {
            return Err(Unsent::Unstampable("its metadata is not an object"));
        }
    }
    at[ANNOTATION] = token.into();
    Ok(document.to_string().into_bytes())
}

/// Returns a JSON object; an empty one if there is no body.
fn parsed(body: &[u8]) -> Result<Value, Unsent> {
    if body.is_empty() {
        return Ok(json!({}));
    }
    let document = serde_json::from_slice(body).ok().filter(Value::is_object);
    document.ok_or(Unsent::Unstampable(
        "its body is not a JSON object; send JSON, also for an apply",
    ))
}

/// Returns the text with which the policy has refused a write, or an empty one.
async fn read_refusal(response: Response<Body>) -> Result<(Response<Body>, String), BoxError> {
    let refusals = [StatusCode::FORBIDDEN, StatusCode::UNPROCESSABLE_ENTITY];
    if !refusals.contains(&response.status()) {
        return Ok((response, String::new()));
    }
    let (parts, body) = response.into_parts();
    let body = body.collect_bytes().await?;
    let text = String::from_utf8_lossy(&body).into_owned();
    let refusal = if text.contains(POLICY) {
        text
    } else {
        String::new()
    };
    Ok((Response::from_parts(parts, Body::from(body)), refusal))
}

#[cfg(test)]
#[path = "fence_tests.rs"]
mod tests;

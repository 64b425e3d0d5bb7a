//! The requests of the plugin: the user's own kubeconfig, one connection, and the API server's time in each answer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, DATE};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use kube::core::discovery::v2::ACCEPT_AGGREGATED_DISCOVERY_V2;
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::failure::Failure;
use super::flags::ClusterFlags;
use crate::cli::cluster;
use crate::crd::{GROUP, VERSION};
use crate::k8s::causes;

/// The number of objects in one answer.
const PAGE: u32 = 1000;

/// A connection to the API server, as one user.
pub(super) struct Api {
    client: Client,
    /// The host and port of the API server, for errors.
    server: String,
    /// The namespace of the command.
    pub(super) namespace: String,
    timeout: Option<Duration>,
    now: Mutex<Option<Timestamp>>,
}

/// The path of the locks of a namespace, or of all.
pub(super) fn locks(namespace: Option<&str>) -> String {
    of_group("distributedlocks", namespace)
}

/// The path of the sessions of a namespace, or of all.
pub(super) fn sessions(namespace: Option<&str>) -> String {
    of_group("locksessions", namespace)
}

fn of_group(kind: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{kind}"),
        None => format!("/apis/{GROUP}/{VERSION}/{kind}"),
    }
}

impl Api {
    /// Reads the kubeconfig. Sends no request yet.
    pub(super) async fn connect(flags: &ClusterFlags) -> Result<Self, Failure> {
        let usage = |error: anyhow::Error| Failure::Usage(format!("{error:#}"));
        let source = cluster::Args::of_files(flags.kubeconfig.clone(), flags.context.clone());
        let mut config: Config = source.config().await.map_err(usage)?;
        if flags.impersonate.is_none() && !flags.impersonate_groups.is_empty() {
            return Err(Failure::Usage("--as-group requires --as".to_owned()));
        }
        if let Some(user) = &flags.impersonate {
            let mut header = |name: &'static str, value: &str| {
                let value = HeaderValue::from_str(value);
                let value = value
                    .map_err(|_| Failure::Usage(format!("{name} has an invalid character")))?;
                config.headers.push((HeaderName::from_static(name), value));
                Ok::<_, Failure>(())
            };
            header("impersonate-user", user)?;
            for group in &flags.impersonate_groups {
                header("impersonate-group", group)?;
            }
        }
        let client = crate::k8s::connect(&config).map_err(|error| {
            Failure::Usage(format!(
                "cannot use the credentials: {}",
                causes::chain(&error)
            ))
        })?;
        Ok(Self {
            client,
            server: cluster::server_of(&config.cluster_url),
            namespace: flags.namespace.clone().unwrap_or(config.default_namespace),
            timeout: Some(flags.request_timeout).filter(|limit| !limit.is_zero()),
            now: Mutex::new(None),
        })
    }

    /// Returns the client, for a watch.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the host and port of the API server.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Returns the time of the API server's last answer.
    ///
    /// # Errors
    /// If a proxy has removed the header from all answers.
    pub(super) fn now(&self) -> Result<Timestamp, Failure> {
        let now = *self
            .now
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        now.ok_or_else(|| {
            Failure::Unreachable(
                "the API server's answer has no Date header; a proxy may remove it".to_owned(),
            )
        })
    }

    /// Reads one object, or a document of the API server.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json(Method::GET, path, None).await
    }

    /// Reads an object; `None` if it does not exist.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.get(path).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads all objects of a list, page by page, and passes each on. `query` is what follows the `?`.
    pub(super) async fn each(
        &self,
        path: &str,
        query: &str,
        mut take: impl FnMut(Value),
    ) -> Result<(), Failure> {
        let mut next = String::new();
        loop {
            let and = if query.is_empty() { "" } else { "&" };
            let page = format!("{path}?limit={PAGE}{next}{and}{query}");
            let mut page = self.get(&page).await?;
            if let Value::Array(items) = page["items"].take() {
                items.into_iter().for_each(&mut take);
            }
            next = match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => format!("&continue={}", encoded(token)),
                _ => return Ok(()),
            };
        }
    }

    /// Creates an object, or sends a review.
    pub(super) async fn post(&self, path: &str, document: &Value) -> Result<Value, Failure> {
        self.json(Method::POST, path, Some(("application/json", document)))
            .await
    }

    /// Changes fields of an object by a merge patch.
    pub(super) async fn merge(&self, path: &str, change: &Value) -> Result<Value, Failure> {
        let kind = "application/merge-patch+json";
        self.json(Method::PATCH, path, Some((kind, change))).await
    }

    /// Creates an object or changes its fields by server-side apply. `path` names the field manager.
    pub(super) async fn apply(&self, path: &str, object: &Value) -> Result<Value, Failure> {
        // JSON is also YAML.
        let kind = "application/apply-patch+yaml";
        self.json(Method::PATCH, path, Some((kind, object))).await
    }

    /// Reads the kinds of all API groups below `/api` or `/apis`.
    pub(super) async fn discover<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        let accepted = ACCEPT_AGGREGATED_DISCOVERY_V2;
        let (code, body) = self.send(Method::GET, path, accepted, None).await?;
        decoded(code, &body)
    }

    async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<Value, Failure> {
        let (code, body) = self.send(method, path, "application/json", body).await?;
        decoded(code, &body)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accepted: &str,
        body: Option<(&str, &Value)>,
    ) -> Result<(StatusCode, Vec<u8>), Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(ACCEPT, accepted);
        if let Some((kind, _)) = body {
            request = request.header(CONTENT_TYPE, kind);
        }
        let body = body.map_or_else(Vec::new, |(_, document)| document.to_string().into_bytes());
        let request = request
            .body(Body::from(body))
            .map_err(|error| Failure::Usage(format!("cannot send the request: {error}")))?;
        let answer = async {
            let answer = self.client.send(request).await;
            let answer = answer.map_err(|error| {
                let causes = causes::chain(&error);
                // kube's name of the layer says nothing to a user.
                let causes = causes.strip_prefix("ServiceError: ").unwrap_or(&causes);
                Failure::Unreachable(format!(
                    "the API server {} cannot be reached: {causes}",
                    self.server
                ))
            })?;
            self.keep_time(answer.headers().get(DATE));
            let code = answer.status();
            let body = answer.into_body().collect().await;
            let body = body.map_err(|error| {
                Failure::Unreachable(format!(
                    "the API server's answer was cut off: {}",
                    causes::chain(&error)
                ))
            })?;
            Ok((code, body.to_bytes().to_vec()))
        };
        match self.timeout {
            None => answer.await,
            Some(limit) => tokio::time::timeout(limit, answer)
                .await
                .unwrap_or_else(|_elapsed| {
                    Err(Failure::Unreachable(format!(
                        "the API server {} did not answer within {limit:?} (--request-timeout)",
                        self.server
                    )))
                }),
        }
    }

    fn keep_time(&self, date: Option<&HeaderValue>) {
        let date = date.and_then(|value| value.to_str().ok());
        // An HTTP date is the one of RFC 2822 with the zone GMT.
        let Some(time) = date.and_then(|text| jiff::fmt::rfc2822::parse(text).ok()) else {
            return;
        };
        let mut now = self
            .now
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *now = Some(time.timestamp());
    }
}

fn decoded<T: DeserializeOwned>(code: StatusCode, body: &[u8]) -> Result<T, Failure> {
    if !code.is_success() {
        return Err(Failure::of_answer(code, body));
    }
    serde_json::from_slice(body).map_err(|error| {
        Failure::Unreachable(format!("the API server's answer is not JSON: {error}"))
    })
}

/// Returns a text as it may be written in a query.
pub(super) fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

/// Returns the user's name, as the API server has authenticated it.
pub(super) async fn own_name(api: &Api) -> Result<String, Failure> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let review = api
        .post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review)
        .await?;
    let name = review["status"]["userInfo"]["username"].as_str();
    name.map(str::to_owned)
        .ok_or_else(|| Failure::Unreachable("the API server does not say who you are".to_owned()))
}

/// Objects by namespace and name.
pub(super) type ByName<T> = BTreeMap<(String, String), T>;

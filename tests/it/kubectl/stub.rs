//! A stub of the API server: the objects of `objects.yaml`, a fixed time, and the faults of a test.
//!
//! It knows only the requests that the plugin sends, and panics in none: a request that it does not know gets the
//! answer of an API server that does not know the kind.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The time of the stub, as its objects have it.
const DATE: &str = "Mon, 02 Mar 2026 12:00:00 GMT";
const OBJECTS: &str = include_str!("../../golden/kubectl/objects.yaml");

/// A change of an object by another client: a merge patch, or its deletion.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) lock: &'static str,
    /// `None` deletes the object.
    pub(super) patch: Option<Value>,
}

/// How the stub answers.
#[derive(Clone, Copy, Default)]
pub(super) enum Answers {
    #[default]
    Sound,
    /// Without a time.
    Undated,
    /// Not at all.
    Never,
    /// With this status and text.
    Text(u16, &'static str),
}

/// How the stub differs from a sound API server, and what happens meanwhile.
#[derive(Clone, Default)]
pub(super) struct Setup {
    /// The definitions are not installed.
    pub(super) no_kinds: bool,
    /// The kinds that the user may not read or write, such as `pods`, or `patch distributedlocks`.
    pub(super) forbidden: Vec<&'static str>,
    pub(super) answers: Answers,
    /// There are no objects.
    pub(super) empty: bool,
    /// A lock that is deleted after it was read once.
    pub(super) vanishes: Option<&'static str>,
    /// What happens when a watch has begun.
    pub(super) on_watch: Vec<Change>,
    /// What happens when the plugin has written.
    pub(super) on_write: Vec<Change>,
    /// The number of objects in one answer; 0: all of them.
    pub(super) page: usize,
    /// Objects that do not exist, such as `locksessions`.
    pub(super) without: Option<&'static str>,
}

/// A running stub. It stops when it is dropped.
pub(super) struct Stub {
    pub(super) address: SocketAddr,
    cluster: Arc<Cluster>,
    runtime: Option<Runtime>,
}

struct Cluster {
    setup: Setup,
    objects: Mutex<Vec<Value>>,
    writes: Mutex<Vec<(String, Value)>>,
    headers: Mutex<HeaderMap>,
}

/// What a path names.
struct Target {
    group: &'static str,
    kind: String,
    namespace: Option<String>,
    name: Option<String>,
}

impl Stub {
    pub(super) fn start(setup: Setup) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(1).enable_all().build().unwrap();
        let (empty, without) = (setup.empty, setup.without);
        let mut objects: Vec<Value> = serde_yaml::Deserializer::from_str(OBJECTS)
            .map(|document| serde::Deserialize::deserialize(document).unwrap())
            .filter(|object| !empty && Some(kind_of(object).as_str()) != without)
            .collect();
        objects.sort_by_key(|object| (text(object, "namespace"), text(object, "name")));
        let cluster = Arc::new(Cluster {
            setup,
            objects: Mutex::new(objects),
            writes: Mutex::default(),
            headers: Mutex::default(),
        });
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&cluster));
        // Not by the runtime, which an async test could not wait for.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await
        });
        Self {
            address,
            cluster,
            runtime: Some(runtime),
        }
    }

    /// Returns what was written: the path with its query, and the body.
    pub(super) fn writes(&self) -> Vec<(String, Value)> {
        self.cluster.writes.lock().unwrap().clone()
    }
}

impl Stub {
    /// Returns the values of a header of the last request.
    pub(super) fn header(&self, name: &str) -> Vec<String> {
        let headers = self.cluster.headers.lock().unwrap();
        let values = headers.get_all(name).iter();
        values
            .map(|value| value.to_str().unwrap().to_owned())
            .collect()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn text(object: &Value, field: &str) -> String {
    let value = object["metadata"][field].as_str();
    value.unwrap_or_default().to_owned()
}

fn kind_of(object: &Value) -> String {
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase() + "s";
    kind.replace("policys", "policies")
}

async fn answer(
    State(cluster): State<Arc<Cluster>>,
    method: Method,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    *cluster.headers.lock().unwrap() = headers;
    let answers = cluster.setup.answers;
    let mut response = match answers {
        Answers::Never => std::future::pending().await,
        Answers::Text(code, text) => (StatusCode::from_u16(code).unwrap(), text).into_response(),
        Answers::Sound | Answers::Undated => cluster.answer(&method, &uri, &query, &body),
    };
    // The server adds a date to an answer without one.
    let is_undated = matches!(answers, Answers::Undated);
    let date = if is_undated { "" } else { DATE };
    response
        .headers_mut()
        .insert(header::DATE, date.parse().unwrap());
    response
}

impl Cluster {
    fn answer(
        &self,
        method: &Method,
        uri: &Uri,
        query: &BTreeMap<String, String>,
        body: &Bytes,
    ) -> Response {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if uri.path().ends_with("/selfsubjectreviews") {
            return (
                StatusCode::CREATED,
                json!({"status": {"userInfo": {"username": "jane"}}}).to_string(),
            )
                .into_response();
        }
        if uri.path().ends_with("/selfsubjectaccessreviews") {
            let wanted = &body["spec"]["resourceAttributes"];
            let text = |field: &str| wanted[field].as_str().unwrap_or_default().to_owned();
            let right = format!("{} {}", text("verb"), text("resource"));
            let allowed = !self.setup.forbidden.contains(&right.as_str());
            return (
                StatusCode::CREATED,
                json!({"status": {"allowed": allowed}}).to_string(),
            )
                .into_response();
        }
        if let Some(kinds) = kinds(uri.path()) {
            return kinds.to_string().into_response();
        }
        let Some(target) = Target::of(uri.path()) else {
            return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
        };
        if self.setup.no_kinds && !target.group.is_empty() {
            return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
        }
        let is_watch = query.get("watch").is_some_and(|watch| watch != "false");
        let verb = match (method, is_watch, &target.name) {
            (&Method::PATCH, _, _) => "patch",
            (&Method::POST, _, _) => "create",
            (_, true, _) => "watch",
            (_, _, Some(_)) => "get",
            _ => "list",
        };
        let right = format!("{verb} {}", target.kind);
        if self
            .setup
            .forbidden
            .iter()
            .any(|one| *one == target.kind || *one == right)
        {
            return target.forbidden(verb);
        }
        match verb {
            "create" => self.create(&target, uri, body),
            "patch" => self.patch(&target, uri, &body),
            "watch" => self.watch(&target, query),
            "get" => self.get(&target),
            _ => self.list(&target, query),
        }
    }

    fn get(&self, target: &Target) -> Response {
        let mut objects = self.objects.lock().unwrap();
        let found = objects.iter().position(|one| target.is(one, None));
        let Some(index) = found else {
            return target.not_found();
        };
        if self.setup.vanishes.is_some() && self.setup.vanishes == target.name.as_deref() {
            return objects.remove(index).to_string().into_response();
        }
        objects[index].to_string().into_response()
    }

    fn list(&self, target: &Target, query: &BTreeMap<String, String>) -> Response {
        let objects = self.objects.lock().unwrap();
        let items: Vec<_> = objects
            .iter()
            .filter(|one| target.is(one, Some(query)))
            .collect();
        let size = if self.setup.page == 0 {
            items.len()
        } else {
            self.setup.page
        };
        let start = query
            .get("continue")
            .map_or(0, |start| start.parse().unwrap());
        let end = items.len().min(start + size);
        let next = if end < items.len() {
            end.to_string()
        } else {
            String::new()
        };
        let metadata = json!({"resourceVersion": "100", "continue": next});
        json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items[start..end]})
            .to_string()
            .into_response()
    }

    fn create(&self, target: &Target, uri: &Uri, mut object: Value) -> Response {
        let write = (uri.to_string(), object.clone());
        self.writes.lock().unwrap().push(write);
        object["metadata"]["resourceVersion"] = json!("1");
        object["metadata"]["namespace"] = json!(target.namespace);
        self.objects.lock().unwrap().push(object.clone());
        (StatusCode::CREATED, object.to_string()).into_response()
    }

    /// Answers as the policy about fenced objects, once it is bound.
    fn refused(&self, patch: &Value) -> Option<Response> {
        let token = &patch["metadata"]["annotations"]["leasehold.dev/fencing-token"];
        let labelled = patch["metadata"]["labels"].is_object() && token.is_null();
        let mut objects = self.objects.lock().unwrap().clone().into_iter();
        let is_bound = objects.any(|one| kind_of(&one) == "validatingadmissionpolicybindings");
        (is_bound && (labelled || token == "none")).then(|| {
            let words = "ValidatingAdmissionPolicy 'leasehold-fenced-objects' with binding 'x' denied request: the \
                         annotation leasehold.dev/fencing-token is not a fencing token";
            status(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                words,
                &json!({}),
            )
        })
    }

    fn patch(&self, target: &Target, uri: &Uri, patch: &Value) -> Response {
        if let Some(refused) = self.refused(patch) {
            return refused;
        }
        let write = (uri.to_string(), patch.clone());
        self.writes.lock().unwrap().push(write);
        let is_dry = uri
            .query()
            .is_some_and(|query| query.contains("dryRun=All"));
        let mut objects = self.objects.lock().unwrap();
        let Some(object) = objects.iter_mut().find(|one| target.is(one, None)) else {
            drop(objects);
            // Server-side apply has a whole object.
            if patch["kind"].is_string() {
                self.writes.lock().unwrap().pop();
                return self.create(target, uri, patch.clone());
            }
            return target.not_found();
        };
        let mut patched = object.clone();
        json_patch::merge(&mut patched, patch);
        if is_dry {
            return patched.to_string().into_response();
        }
        *object = patched.clone();
        drop(objects);
        for change in &self.setup.on_write {
            self.change(change);
        }
        patched.to_string().into_response()
    }

    fn watch(&self, target: &Target, query: &BTreeMap<String, String>) -> Response {
        // A watch of another kind that begins first must not make the changes: the one of locks would miss them.
        let of_locks = target.kind == "distributedlocks";
        let changes = self.setup.on_watch.iter().filter(|_| of_locks);
        let events = changes.filter_map(|change| self.change(change));
        let events = events.filter(|(_, object)| target.is(object, Some(query)));
        let lines: Vec<_> = events
            .map(|(kind, object)| json!({"type": kind, "object": object}).to_string() + "\n")
            .map(Ok::<_, Infallible>)
            .collect();
        // A watch stays open after its events.
        let events = stream::iter(lines).chain(stream::pending());
        Body::from_stream(events).into_response()
    }

    /// Changes an object of the namespace `shop`, and returns the watch event of it.
    fn change(&self, change: &Change) -> Option<(&'static str, Value)> {
        let mut objects = self.objects.lock().unwrap();
        let index = objects.iter().position(|one| {
            one["kind"] == "DistributedLock"
                && text(one, "name") == change.lock
                && text(one, "namespace") == "shop"
        })?;
        let Some(patch) = &change.patch else {
            return Some(("DELETED", objects.remove(index)));
        };
        json_patch::merge(&mut objects[index], patch);
        Some(("MODIFIED", objects[index].clone()))
    }
}

impl Target {
    fn of(path: &str) -> Option<Self> {
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", "leasehold.dev", "v1alpha1", rest @ ..] => ("leasehold.dev", rest),
            ["apis", "admissionregistration.k8s.io", "v1", rest @ ..] => {
                ("admissionregistration.k8s.io", rest)
            }
            _ => return None,
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (kind, name) = match rest {
            [kind] => (kind, None),
            [kind, name] => (kind, Some((*name).to_owned())),
            _ => return None,
        };
        let kind = (*kind).to_owned();
        Some(Self {
            group,
            kind,
            namespace,
            name,
        })
    }

    /// Returns whether it includes an object, and the selectors select it.
    fn is(&self, object: &Value, query: Option<&BTreeMap<String, String>>) -> bool {
        let selected = |name: &str, value: &dyn Fn(&str) -> Value| {
            let pairs = query.and_then(|query| query.get(name));
            let mut pairs = pairs.into_iter().flat_map(|pairs| pairs.split(','));
            pairs.all(|pair| {
                let (key, wanted) = pair.split_once('=').unwrap_or((pair, ""));
                value(key) == wanted.trim_start_matches('=')
            })
        };
        let namespace = self.namespace.as_ref();
        kind_of(object) == self.kind
            && namespace.is_none_or(|namespace| text(object, "namespace") == *namespace)
            && (self.name.as_ref()).is_none_or(|name| text(object, "name") == *name)
            && selected("labelSelector", &|key| {
                object["metadata"]["labels"][key].clone()
            })
            && selected("fieldSelector", &|key| {
                let path = format!("/{}", key.replace('.', "/"));
                object.pointer(&path).cloned().unwrap_or_default()
            })
    }

    fn not_found(&self) -> Response {
        let name = self.name.clone().unwrap_or_default();
        status(
            StatusCode::NOT_FOUND,
            "NotFound",
            &format!("{} \"{name}\" not found", self.full_kind()),
            &json!({"name": name, "group": self.group, "kind": self.kind}),
        )
    }

    /// Returns the answer of RBAC.
    fn forbidden(&self, verb: &str) -> Response {
        let name = self
            .name
            .as_ref()
            .map_or_else(String::new, |name| format!(" \"{name}\""));
        let place = self.namespace.as_ref().map_or_else(
            || "at the cluster scope".to_owned(),
            |namespace| format!("in the namespace \"{namespace}\""),
        );
        let message = format!(
            "{}{name} is forbidden: User \"jane\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
            self.full_kind(),
            self.kind,
            self.group
        );
        let details = json!({"group": self.group, "kind": self.kind});
        status(StatusCode::FORBIDDEN, "Forbidden", &message, &details)
    }

    fn full_kind(&self) -> String {
        if self.group.is_empty() {
            return self.kind.clone();
        }
        format!("{}.{}", self.kind, self.group)
    }
}

/// Returns the answer of aggregated discovery.
fn kinds(path: &str) -> Option<Value> {
    let (group, resources) = match path {
        "/api" => (
            "",
            json!([
                {"resource": "configmaps", "singularResource": "configmap", "shortNames": ["cm"], "scope": "Namespaced"},
                {"resource": "nodes", "singularResource": "node", "shortNames": ["no"], "scope": "Cluster"},
            ]),
        ),
        "/apis" => ("apps", json!([])),
        _ => return None,
    };
    let versions = json!([{"version": "v1", "resources": resources}]);
    Some(json!({"items": [{"metadata": {"name": group}, "versions": versions}]}))
}

fn status(code: StatusCode, reason: &str, message: &str, details: &Value) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": details, "code": code.as_u16(),
    });
    (code, status.to_string()).into_response()
}

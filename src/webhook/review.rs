//! `AdmissionReview` of `admission.k8s.io/v1`, as far as it is needed: one request, one response.
//!
//! Reading is lenient, because newer API servers send more. The fields only select the pod.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inject::{Decision, Review, decide};
use super::metrics;
use super::patch::Add;
use super::settings::Injection;
use super::{REASON_MAX_CHARS, truncate};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidReview {
    #[error("the body is not JSON: {0}; this path answers an AdmissionReview of {API_VERSION}")]
    NotJson(String),
    #[error("the body is {0} and not an AdmissionReview of {API_VERSION}")]
    OtherKind(String),
    #[error("the AdmissionReview has no request that can be read: {0}")]
    NoRequest(String),
    #[error("the AdmissionReview is about a Pod that cannot be read: {0}")]
    NoPod(String),
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Kind {
    group: String,
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    kind: Kind,
    #[serde(default)]
    sub_resource: String,
    operation: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    object: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Response,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// Base64 on the wire.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Status {
    code: u16,
    reason: &'static str,
    message: String,
}

/// Returns the response to a body, and its outcome for the metrics.
pub(super) fn answer(
    body: &[u8],
    installation: &Injection,
) -> Result<(String, &'static str), InvalidReview> {
    let request = read(body)?;
    let (review, outcome) = if is_new_pod(&request) {
        let review = decide(&request.object, installation).map_err(|error| {
            InvalidReview::NoPod(truncate(&error.to_string(), REASON_MAX_CHARS))
        })?;
        let outcome = metrics::outcome(&review.decision);
        log_decision(&request, &review);
        (review, outcome)
    } else {
        tracing::warn!(
            kind = request.kind.kind,
            operation = request.operation,
            "AdmissionReview ignored; it has no new pod"
        );
        let review = Review {
            decision: Decision::LeaveAlone,
            warnings: Vec::new(),
        };
        (review, metrics::NOT_A_POD)
    };
    let answer = Answer {
        api_version: API_VERSION,
        kind: KIND,
        response: response(request.uid, review),
    };
    // Strings and numbers with constant field names are always valid JSON.
    Ok((serde_json::to_string(&answer).unwrap_or_default(), outcome))
}

fn read(body: &[u8]) -> Result<Request, InvalidReview> {
    let mut review: Value =
        serde_json::from_slice(body).map_err(|error| InvalidReview::NotJson(error.to_string()))?;
    let text = |field: &str| review[field].as_str().unwrap_or_default();
    if text("apiVersion") != API_VERSION || text("kind") != KIND {
        let said = match (text("kind"), text("apiVersion")) {
            ("", _) => "of no kind".to_owned(),
            (kind, version) => {
                let shown = format!("{kind:.100} of {version:.100}");
                // The sender may have written anything, and it is logged and returned in one line.
                shown.escape_debug().to_string()
            }
        };
        return Err(InvalidReview::OtherKind(said));
    }
    let request = serde_json::from_value(review["request"].take());
    request.map_err(|error| InvalidReview::NoRequest(error.to_string()))
}

fn is_new_pod(request: &Request) -> bool {
    let Kind { group, kind } = &request.kind;
    let is_pod = group.is_empty() && kind == "Pod" && request.sub_resource.is_empty();
    is_pod && request.operation == "CREATE"
}

fn log_decision(request: &Request, review: &Review) {
    let (namespace, pod) = (&request.namespace, name(&request.object));
    match &review.decision {
        Decision::Deny(why) => tracing::info!(namespace, pod, reason = why, "pod rejected"),
        Decision::Skip => {
            let reason = review.warnings.join("; ");
            tracing::info!(namespace, pod, reason, "pod admitted without sidecar");
        }
        decision => {
            tracing::debug!(
                namespace,
                pod,
                outcome = metrics::outcome(decision),
                "pod reviewed"
            );
        }
    }
}

/// Returns the name of a pod. A controller's pod only has a prefix of it yet.
fn name(pod: &Value) -> &str {
    let metadata = &pod["metadata"];
    let name = metadata["name"].as_str().filter(|name| !name.is_empty());
    name.or_else(|| metadata["generateName"].as_str())
        .unwrap_or_default()
}

fn response(uid: String, review: Review) -> Response {
    let mut response = Response {
        uid,
        allowed: true,
        status: None,
        patch_type: None,
        patch: None,
        warnings: review.warnings,
    };
    match review.decision {
        Decision::Inject(patch) | Decision::Complete(patch) => {
            response.patch_type = Some("JSONPatch");
            response.patch = Some(bytes(&patch));
        }
        Decision::Deny(message) => {
            response.allowed = false;
            response.status = Some(Status {
                code: 403,
                reason: "Forbidden",
                message,
            });
        }
        Decision::LeaveAlone | Decision::Skip => {}
    }
    response
}

fn bytes(patch: &[Add]) -> ByteString {
    ByteString(serde_json::to_vec(patch).unwrap_or_default())
}

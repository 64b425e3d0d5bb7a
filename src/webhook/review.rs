//! `AdmissionReview` of `admission.k8s.io/v1`, as far as it is needed: one request in, one answer out.
//!
//! Read leniently, because newer API servers say more; what is read decides nothing but which pod it
//! is about.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::inject::{Decision, Verdict, decide};
use super::metrics;
use super::patch::Add;
use super::settings::Injection;
use super::{WHY_MAX_CHARS, beginning};

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";

/// Why a request cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAReview {
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
    /// On the wire it is Base64.
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

/// The answer to a body, and what it is counted as.
pub(super) fn answer(
    body: &[u8],
    installation: &Injection,
) -> Result<(String, &'static str), NotAReview> {
    let request = read(body)?;
    let (verdict, outcome) = if is_new_pod(&request) {
        let verdict = decide(&request.object, installation)
            .map_err(|error| NotAReview::NoPod(beginning(&error.to_string(), WHY_MAX_CHARS)))?;
        let outcome = metrics::outcome(&verdict.decision);
        note(&request, &verdict);
        (verdict, outcome)
    } else {
        tracing::warn!(
            kind = request.kind.kind,
            operation = request.operation,
            "AdmissionReview ignored; it has no new pod"
        );
        let verdict = Verdict {
            decision: Decision::LeaveAlone,
            warnings: Vec::new(),
        };
        (verdict, metrics::NOT_A_POD)
    };
    let answer = Answer {
        api_version: API_VERSION,
        kind: KIND,
        response: response(request.uid, verdict),
    };
    // Texts and numbers under names of ours are JSON.
    Ok((serde_json::to_string(&answer).unwrap_or_default(), outcome))
}

fn read(body: &[u8]) -> Result<Request, NotAReview> {
    let mut review: Value =
        serde_json::from_slice(body).map_err(|error| NotAReview::NotJson(error.to_string()))?;
    let text = |field: &str| review[field].as_str().unwrap_or_default();
    if text("apiVersion") != API_VERSION || text("kind") != KIND {
        let said = match (text("kind"), text("apiVersion")) {
            ("", _) => "of no kind".to_owned(),
            (kind, version) => {
                let shown = format!("{kind:.100} of {version:.100}");
                // Whoever sent it may have written anything; it is logged, and told in one line.
                shown.escape_debug().to_string()
            }
        };
        return Err(NotAReview::OtherKind(said));
    }
    let request = serde_json::from_value(review["request"].take());
    request.map_err(|error| NotAReview::NoRequest(error.to_string()))
}

fn is_new_pod(request: &Request) -> bool {
    let Kind { group, kind } = &request.kind;
    let is_pod = group.is_empty() && kind == "Pod" && request.sub_resource.is_empty();
    is_pod && request.operation == "CREATE"
}

fn note(request: &Request, verdict: &Verdict) {
    let (namespace, pod) = (&request.namespace, name(&request.object));
    match &verdict.decision {
        Decision::Deny(why) => tracing::info!(namespace, pod, reason = why, "pod rejected"),
        Decision::Skip => {
            let reason = verdict.warnings.join("; ");
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

/// A pod of a controller has only the beginning of its name yet.
fn name(pod: &Value) -> &str {
    let metadata = &pod["metadata"];
    let name = metadata["name"].as_str().filter(|name| !name.is_empty());
    name.or_else(|| metadata["generateName"].as_str())
        .unwrap_or_default()
}

fn response(uid: String, verdict: Verdict) -> Response {
    let mut response = Response {
        uid,
        allowed: true,
        status: None,
        patch_type: None,
        patch: None,
        warnings: verdict.warnings,
    };
    match verdict.decision {
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

//! Arbitrary bytes are sent to the injecting webhook. It answers with a review of the same uid, or
//! with a reason on one line. Its patch only adds, fits the pod, and is not needed a second time.

use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use leasehold::webhook::{Injection, Injector, router};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::{Outcome, Target};

/// The maximum length of a refusal's message.
const SENTENCE_MAX_BYTES: usize = 8 * 1024;

pub(crate) const TARGET: Target = Target {
    name: "review",
    run: |input| target(input, |patch| patch),
    broken: |input| target(input, replacing),
    seeds: reviews_of_golden_pods,
    words: &[
        "request",
        "uid",
        "kind",
        "operation",
        "object",
        "metadata",
        "labels",
        "annotations",
        "spec",
        "containers",
        "initContainers",
        "volumes",
        "env",
        "volumeMounts",
        "restartPolicy",
        "Always",
        "leasehold",
        "leasehold-gate",
        "istio-proxy",
        "linkerd-proxy",
        "hostNetwork",
        "leasehold.dev/inject",
        "true",
        "LEASEHOLD_URL",
        "kubernetes.io/config.mirror",
        "leasehold-state",
        "/var/run/leasehold",
        "mountPath",
        "ports",
        "containerPort",
        "resources",
        "limits",
        "cpu",
        "memory",
        "os",
        "windows",
        "ownerReferences",
        "ReplicaSet",
        "fieldOfTomorrow",
    ],
    tries: 3_000,
};

fn target(input: &[u8], broken: fn(Value) -> Value) -> Outcome {
    let (status, text) = asked(input.to_vec());
    if status == StatusCode::BAD_REQUEST {
        assert!(
            text.ends_with('\n') && text.lines().count() == 1,
            "{text:?}"
        );
        let kind: String = text.chars().take(40).collect();
        return Outcome::Refused(kind);
    }
    assert_eq!(status, StatusCode::OK, "{text}");
    let review: Value = serde_json::from_slice(input).expect("it was taken for a review");
    let response = response(&review, &text);
    let object = &review["request"]["object"];
    match &response["patch"] {
        Value::Null => Outcome::Taken(told(&response)),
        patch => {
            let made = made(object, broken(decoded(patch)));
            assert!(is_within(object, &made), "{object}\nbecame {made}");
            assert_not_asked_again(&review, made);
            let steps = response["patch"].as_str().map_or(0, str::len) / 1_000;
            Outcome::Taken(format!(
                "patched by {steps} thousand bytes, {}",
                told(&response)
            ))
        }
    }
}

/// Returns the answer to the API server.
fn asked(body: Vec<u8>) -> (StatusCode, String) {
    let installation = Injection::from_yaml("{image: 'registry.example/leasehold:0.1.0'}").unwrap();
    let router = router(Injector::new(installation));
    let request = Request::post("/inject").body(Body::from(body)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let answer = router.oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (
            status,
            String::from_utf8(bytes.to_vec()).expect("it is text"),
        )
    })
}

/// Returns the response, checked against Kubernetes' rules.
fn response(review: &Value, answer: &str) -> Value {
    let mut answer: Value = serde_json::from_str(answer).expect("it is JSON");
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = answer["response"].take();
    assert_eq!(response["uid"], review["request"]["uid"]);
    let allowed = response["allowed"].as_bool().expect("it says whether");
    let has_patch = !response["patch"].is_null();
    assert_eq!(response["patchType"] == "JSONPatch", has_patch);
    assert!(allowed || !has_patch, "{response}");
    assert_eq!(response["status"].is_null(), allowed, "{response}");
    let warnings = response["warnings"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let message = [&response["status"]["message"]];
    for sentence in warnings
        .iter()
        .chain(message.into_iter().filter(|_| !allowed))
    {
        let sentence = sentence.as_str().expect("it is a sentence");
        assert!(
            (20..SENTENCE_MAX_BYTES).contains(&sentence.len()),
            "{sentence}"
        );
    }
    response
}

fn told(response: &Value) -> String {
    let warnings = response["warnings"].as_array().map_or(0, Vec::len);
    let words = response["status"]["message"].as_str().unwrap_or_default();
    let words: String = words
        .chars()
        .filter(char::is_ascii_alphabetic)
        .take(40)
        .collect();
    format!(
        "allowed: {}, {warnings} warnings, {words}",
        response["allowed"]
    )
}

/// Decodes Base64 with Kubernetes' own types.
fn decoded(patch: &Value) -> Value {
    let bytes: k8s_openapi::ByteString =
        serde_json::from_value(patch.clone()).expect("it is Base64");
    serde_json::from_slice(&bytes.0).expect("the patch is JSON")
}

fn made(object: &Value, patch: Value) -> Value {
    let operations = patch.as_array().expect("a patch is a list");
    assert!(!operations.is_empty(), "a patch that does nothing");
    assert!(
        operations.iter().all(|operation| operation["op"] == "add"),
        "{patch}"
    );
    let patch: json_patch::Patch = serde_json::from_value(patch).expect("it is a patch");
    let mut made = object.clone();
    json_patch::patch(&mut made, &patch).expect("the patch fits");
    made
}

fn assert_not_asked_again(review: &Value, made: Value) {
    let mut again = review.clone();
    again["request"]["object"] = made;
    let (status, text) = asked(again.to_string().into_bytes());
    assert_eq!(status, StatusCode::OK, "{text}");
    let response = response(&again, &text);
    assert_eq!(
        response["allowed"], true,
        "what it made is refused: {response}"
    );
    assert!(
        response["patch"].is_null(),
        "asked twice: {}\nof {}",
        decoded(&response["patch"]),
        again
    );
}

/// Returns whether `after` contains everything in `before`: members by name, elements in order. The
/// API server treats null as absent.
fn is_within(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Null, _) => true,
        (Value::Object(before), Value::Object(after)) => before.iter().all(|(name, value)| {
            value.is_null() || after.get(name).is_some_and(|there| is_within(value, there))
        }),
        (Value::Array(before), Value::Array(after)) => {
            let mut rest = after.iter();
            before
                .iter()
                .all(|value| rest.any(|there| is_within(value, there)))
        }
        _ => before == after,
    }
}

/// Returns the review that the API server would send for each of the golden pods.
fn reviews_of_golden_pods() -> Vec<Vec<u8>> {
    // The working directory is the root of the repository.
    let folder = std::path::Path::new("tests/golden/webhook");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    let pods = paths.into_iter().map(|path| -> Value {
        serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    });
    pods.map(|pod| review_of(&pod).to_string().into_bytes())
        .collect()
}

pub(super) fn review_of(pod: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "namespace": "team-a", "operation": "CREATE", "object": pod, "oldObject": null, "dryRun": false,
        },
    })
}

/// Planted fault: replaces a container's variables instead of adding to them.
fn replacing(mut patch: Value) -> Value {
    for operation in patch.as_array_mut().into_iter().flatten() {
        let place = operation["path"].as_str().unwrap_or_default();
        if let Some(list) = place.strip_suffix("/env/0") {
            operation["path"] = format!("{list}/env").into();
            operation["value"] = json!([operation["value"].take()]);
        }
    }
    patch
}

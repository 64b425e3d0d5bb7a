//! Over HTTP: the reviews of the API server with their answers, and invalid reviews.

use leasehold::webhook::{Injector, router};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::pods;

/// The webhook on a socket without TLS.
struct Served {
    injector: Injector,
    url: String,
    http: Client,
}

impl Served {
    async fn start() -> Self {
        let injector = Injector::new(pods::installation());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/inject", listener.local_addr().unwrap());
        let served = axum::serve(listener, router(injector.clone()));
        tokio::spawn(async { served.await.unwrap() });
        Self {
            injector,
            url,
            http: Client::new(),
        }
    }

    async fn send(&self, body: impl Into<reqwest::Body>) -> (StatusCode, String) {
        let request = self.http.post(&self.url).body(body);
        let answer = request.send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// Returns the response in the answer to a review.
    async fn review(&self, review: &Value) -> Value {
        let (status, text) = self.send(review.to_string()).await;
        assert_eq!(status, StatusCode::OK, "{text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], review["request"]["uid"]);
        answer["response"].clone()
    }

    /// Asserts that exactly these were counted.
    fn assert_counted(&self, expected: &[(&str, u64)]) {
        let metrics = self.injector.metrics();
        let mut total = 0;
        for line in metrics.lines().filter(|line| !line.starts_with('#')) {
            total += line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
        }
        for (outcome, count) in expected {
            let line =
                format!("leasehold_webhook_reviews_total{{outcome=\"{outcome}\"}} {count}\n");
            assert!(metrics.contains(&line), "{line}{metrics}");
        }
        assert_eq!(total, expected.iter().map(|(_, count)| count).sum::<u64>());
    }
}

/// Returns a review as the API server sends it.
fn review_of(pod: &Value) -> Value {
    json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "team-a", "operation": "CREATE",
            "userInfo": {"username": "system:serviceaccount:kube-system:replicaset-controller"},
            "object": pod, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

fn case(name: &str) -> Value {
    let mut cases = pods::all().into_iter();
    cases.find(|case| case.name == name).unwrap().pod
}

/// Decodes Base64 (RFC 4648), implemented independently.
fn decoded(patch: &Value) -> Value {
    let bytes: k8s_openapi::ByteString = serde_json::from_value(patch.clone()).unwrap();
    serde_json::from_slice(&bytes.0).unwrap()
}

#[tokio::test]
async fn a_pod_is_answered_with_a_patch() {
    let served = Served::start().await;
    let pod = case("deployment");
    let response = served.review(&review_of(&pod)).await;
    assert_eq!(response["allowed"], true);
    assert_eq!(response["patchType"], "JSONPatch");
    assert!(response.get("status").is_none() && response.get("warnings").is_none());
    let made = pods::apply(&pod, &decoded(&response["patch"]));
    assert_eq!(Some(&made), pods::made(&pod).as_ref());

    let again = served.review(&review_of(&made)).await;
    assert_eq!(again["allowed"], true);
    assert!(again.get("patch").is_none() && again.get("patchType").is_none());
    let late = served.review(&review_of(&case("reinvoked"))).await;
    assert_eq!(late["patchType"], "JSONPatch");
    served.assert_counted(&[("injected", 1), ("left_alone", 1), ("completed", 1)]);
}

#[tokio::test]
async fn refusal_contains_its_message() {
    let served = Served::start().await;
    let response = served.review(&review_of(&case("windows-asks"))).await;
    assert_eq!(response["allowed"], false);
    assert_eq!(response["status"]["code"], 403);
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.contains("does not run on Windows"), "{message}");
    assert!(response.get("patch").is_none());
    served.assert_counted(&[("denied", 1)]);
}

#[tokio::test]
async fn unrequested_injection_is_skipped_with_a_warning() {
    let served = Served::start().await;
    let pod = case("windows-in-a-namespace");
    let response = served.review(&review_of(&pod)).await;
    assert_eq!(response["allowed"], true);
    assert!(response.get("patch").is_none());
    let warning = response["warnings"][0].as_str().unwrap();
    assert!(warning.contains("does not run on Windows"), "{warning}");
    served.assert_counted(&[("skipped", 1)]);
}

#[tokio::test]
async fn request_for_anything_but_a_new_pod_changes_nothing() {
    let served = Served::start().await;
    let asked = case("job");
    let mut others = Vec::new();
    for (field, value) in [
        ("operation", json!("UPDATE")),
        ("operation", json!("DELETE")),
        ("subResource", json!("ephemeralcontainers")),
        (
            "kind",
            json!({"group": "apps", "version": "v1", "kind": "Deployment"}),
        ),
        (
            "kind",
            json!({"group": "example.com", "version": "v1", "kind": "Pod"}),
        ),
    ] {
        let mut review = review_of(&asked);
        review["request"][field] = value;
        others.push(review);
    }
    let mut without = review_of(&asked);
    without["request"]["operation"] = json!("DELETE");
    without["request"]["object"] = Value::Null;
    others.push(without);
    for review in &others {
        let response = served.review(review).await;
        assert_eq!(response["allowed"], true, "{review}");
        assert!(response.get("patch").is_none(), "{review}");
    }
    served.assert_counted(&[("not_a_pod", 6)]);
}

#[tokio::test]
async fn malformed_review_is_refused_with_its_reason() {
    let served = Served::start().await;
    let mut older = review_of(&case("job"));
    older["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut no_uid = review_of(&case("job"));
    no_uid["request"].as_object_mut().unwrap().remove("uid");
    let mut no_pod = review_of(&case("job"));
    no_pod["request"]["object"]["spec"]["containers"] = json!("app");
    let response_only = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": {"uid": "1", "allowed": true}});
    let bad = [
        (String::new(), "not JSON"),
        ("{".to_owned(), "not JSON"),
        ("hello".to_owned(), "not JSON"),
        ("[]".to_owned(), "of no kind"),
        ("null".to_owned(), "of no kind"),
        (
            case("job").to_string(),
            "Pod of v1 and not an AdmissionReview",
        ),
        (
            older.to_string(),
            "AdmissionReview of admission.k8s.io/v1beta1",
        ),
        (response_only.to_string(), "no request"),
        (no_uid.to_string(), "missing field `uid`"),
        (no_pod.to_string(), "a Pod that cannot be read"),
    ];
    let count = u64::try_from(bad.len()).unwrap();
    for (body, words) in bad {
        let (status, said) = served.send(body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {said}");
        assert!(said.contains(words), "{body}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    served.assert_counted(&[("invalid", count)]);
}

#[tokio::test]
async fn endless_body_is_refused() {
    let served = Served::start().await;
    let endless = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 64 * 1024]));
    let request = served.http.post(&served.url);
    let request = request.body(reqwest::Body::wrap_stream(endless));
    // The server may close the connection while the client still writes.
    if let Ok(answer) = request.send().await {
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
    served.assert_counted(&[("invalid", 1)]);

    // The maximum size of a pod.
    let mut pod = case("job");
    pod["metadata"]["annotations"] = json!({"large": "x".repeat(1_500_000)});
    assert_eq!(served.review(&review_of(&pod)).await["allowed"], true);
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let served = Served::start().await;
    let get = served.http.get(&served.url).send().await.unwrap();
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    for path in ["/", "/metrics", "/healthz", "/v1/locks", "/inject/"] {
        let url = served.url.replace("/inject", path);
        let answer = served.http.request(Method::POST, url).send().await;
        assert_eq!(answer.unwrap().status(), StatusCode::NOT_FOUND, "{path}");
    }
    served.assert_counted(&[]);
}

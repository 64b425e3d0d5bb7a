//! Invalid requests are refused, and none reaches the store.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::{Answer, Sidecar, VERIFY_BATCH, send};

const ACQUIRE: &str = "/v1/locks/acquire";

async fn refused(sidecar: &Sidecar, path: &str, body: Value) -> Answer {
    let answer = sidecar.without_a_write(sidecar.post(path, body)).await;
    assert_eq!(sidecar.store.writes(), 0);
    answer
}

/// Sends a valid acquire with this change.
async fn changed(sidecar: &Sidecar, change: &Value) -> Answer {
    let mut body = json!({"resource": "r", "ttlSeconds": 30});
    let changes = change.as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(changes);
    refused(sidecar, ACQUIRE, body).await
}

#[tokio::test]
async fn a_resource_is_bounded_printable_text() {
    let sidecar = Sidecar::start().await;
    let cases = [
        (json!({"resource": ""}), "resource is empty"),
        (json!({"resource": "x".repeat(513)}), "at most 512"),
        (json!({"resource": "a\nb"}), "printable"),
        (json!({"resource": "\u{202e}"}), "printable"),
    ];
    for (change, words) in cases {
        let answer = changed(&sidecar, &change).await;
        answer.is_problem(400, "resource_invalid", words);
    }
}

#[tokio::test]
async fn a_ttl_is_whole_seconds_within_a_day() {
    let sidecar = Sidecar::start().await;
    let cases = [
        (json!({"ttlSeconds": 0}), "from 1 to 86400"),
        (json!({"ttlSeconds": 86_401}), "ttlSeconds is 86401"),
        (json!({"ttlSeconds": 1.5}), "whole number"),
        (json!({"ttlSeconds": -1}), "ttlSeconds is -1"),
        (json!({"ttlSeconds": u64::MAX}), "from 1 to 86400"),
    ];
    for (change, words) in cases {
        let answer = changed(&sidecar, &change).await;
        answer.is_problem(400, "ttl_out_of_range", words);
        assert_eq!(answer.body["maximum"], 86_400);
    }
}

#[tokio::test]
async fn wrong_field_is_named_with_its_bound() {
    let sidecar = Sidecar::start().await;
    let many: BTreeMap<_, _> = (0..17).map(|n| (n.to_string(), "")).collect();
    let cases = [
        (
            json!({"ttlSeconds": "30"}),
            "ttlSeconds: invalid type: string",
        ),
        (
            json!({"ttlSeconds": null}),
            "ttlSeconds: invalid type: null",
        ),
        (json!({"waitSeconds": 241}), "0 to 240"),
        (json!({"ttl": 30}), "unknown field `ttl`"),
        (json!({"ownerId": ""}), "ownerId must be 1 to 256"),
        (json!({"ownerId": "\u{200b}"}), "printable, visible text"),
        (json!({"ownerId": " \u{3164}"}), "printable, visible text"),
        (
            json!({"requestId": "x".repeat(129)}),
            "requestId must be 1 to 128",
        ),
        (json!({"metadata": many}), "17 entries; send at most 16"),
        (json!({"metadata": {"k": 1}}), "metadata.k: invalid type"),
        (json!({"metadata": {"k".repeat(64): ""}}), "64 bytes"),
        (json!({"metadata": {"k": "v".repeat(257)}}), "257 bytes"),
        (json!({"metadata": {"k": "a\u{7}"}}), "control characters"),
        (json!({"metadata": {"a\nb": ""}}), "control characters"),
        (json!({"metadata": []}), "metadata: invalid type: sequence"),
    ];
    for (change, words) in cases {
        let answer = changed(&sidecar, &change).await;
        answer.is_problem(400, "invalid_request", words);
    }
}

#[tokio::test]
async fn missing_field_is_named() {
    let sidecar = Sidecar::start().await;
    let cases = [
        (
            ACQUIRE,
            json!({"resource": "r"}),
            "missing field `ttlSeconds`",
        ),
        (
            ACQUIRE,
            json!({"ttlSeconds": 30}),
            "missing field `resource`",
        ),
        (
            "/v1/fencing/verify",
            json!({"resource": "r"}),
            "missing field `fencingToken`",
        ),
        (
            "/v1/fencing/verify",
            json!({"resource": "r", "fencingToken": -1}),
            "fencingToken",
        ),
        (
            "/v1/fencing/verify",
            json!({"resource": "r", "fencingToken": "1"}),
            "fencingToken",
        ),
        (
            "/v1/locks/x.0/renew",
            json!({"ttl": 1}),
            "unknown field `ttl`",
        ),
    ];
    for (path, body, words) in cases {
        refused(&sidecar, path, body)
            .await
            .is_problem(400, "invalid_request", words);
    }
    let good = json!({"resource": "r", "fencingToken": 1});
    let too_many = vec![good.clone(); 101];
    for (tokens, words) in [
        (json!([]), "tokens has 0 entries; send 1 to 100"),
        (json!(too_many), "tokens has 101 entries; send 1 to 100"),
        (
            json!([good, {"resource": "r"}]),
            "tokens[1]: missing field `fencingToken`",
        ),
        (
            json!([good, {"resource": "r", "fencingToken": -1}]),
            "tokens[1]: fencingToken is -1",
        ),
    ] {
        let answer = refused(&sidecar, VERIFY_BATCH, json!({ "tokens": tokens })).await;
        answer.is_problem(400, "invalid_request", words);
    }
    let tokens = json!({"tokens": [good, {"resource": "", "fencingToken": 1}]});
    let answer = refused(&sidecar, VERIFY_BATCH, tokens).await;
    answer.is_problem(400, "resource_invalid", "tokens[1]: ");
    let resource = json!({"resource": "a\tb", "fencingToken": 1});
    let answer = refused(&sidecar, "/v1/fencing/verify", resource).await;
    answer.is_problem(400, "resource_invalid", "printable");
}

#[tokio::test]
async fn body_that_is_not_an_object_is_refused() {
    let sidecar = Sidecar::start().await;
    let cases = [
        (json!(["r", null, 30, null, null, null]), "an array"),
        (json!([]), "an array"),
        (json!("r"), "a string"),
        (json!(-1), "a number"),
        (json!(true), "a boolean"),
        (json!(null), "null"),
    ];
    for (body, what) in cases {
        let words = format!("the body is {what}; send a JSON object");
        for path in [ACQUIRE, "/v1/fencing/verify", "/v1/locks/x.0/renew"] {
            let answer = refused(&sidecar, path, body.clone()).await;
            answer.is_problem(400, "invalid_request", &words);
        }
    }
}

#[tokio::test]
async fn body_that_is_not_json_is_refused() {
    let sidecar = Sidecar::start().await;
    let good = r#"{"resource": "r", "ttlSeconds": 30}"#;
    let typed = |content_type: &'static str, body: &str| {
        let request = sidecar.request(Method::POST, ACQUIRE).body(body.to_owned());
        request.header("content-type", content_type)
    };
    let json = "application/json";
    let cases = [
        (typed(json, "{"), "not JSON"),
        (typed(json, ""), "not JSON"),
        (typed(json, "{} {}"), "missing field"),
        (typed(json, &format!("{good}{good}")), "trailing characters"),
        (
            typed(json, r#"{"resource": "r", "resource": "s"}"#),
            "duplicate field `resource`",
        ),
        (
            typed(
                json,
                r#"{"resource": "r", "ttlSeconds": 9, "metadata": {"k": "a", "k": "b"}}"#,
            ),
            "metadata: duplicate key \"k\"",
        ),
        (
            typed("application/x-www-form-urlencoded", good),
            "Content-Type: application/json",
        ),
        (typed("text/plain", good), "Content-Type: application/json"),
        (
            sidecar.request(Method::POST, ACQUIRE).body(good),
            "Content-Type: application/json",
        ),
    ];
    for (request, words) in cases {
        let answer = sidecar.without_a_write(send(request)).await;
        answer.is_problem(400, "invalid_request", words);
    }
    let with_charset = send(typed("application/json; charset=utf-8", good)).await;
    assert_eq!(with_charset.status, 200, "{with_charset:?}");
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_the_bound() {
    let sidecar = Sidecar::start().await;
    let large = "x".repeat(16 * 1024 + 1);
    let chunks = futures::stream::iter([Ok::<_, std::io::Error>(large.clone())]);
    let stated = sidecar.request(Method::POST, ACQUIRE).body(large);
    let streamed = sidecar
        .request(Method::POST, ACQUIRE)
        .body(reqwest::Body::wrap_stream(chunks));
    for request in [stated, streamed] {
        let answer = sidecar.without_a_write(send(request)).await;
        answer.is_problem(413, "body_too_large", "16384 bytes");
        assert_eq!(answer.body["limitBytes"], 16_384);
    }
}

#[tokio::test]
async fn wrong_query_is_refused() {
    let sidecar = Sidecar::start().await;
    let cases = [
        ("limit=0", "1 to 500"),
        ("limit=501", "1 to 500"),
        ("limit=-1", "a number from 1 to 500"),
        ("limit=many", "limit is \"many\"; send a number"),
        ("prefx=a", "unknown field `prefx`"),
        (&*format!("prefix={}", "x".repeat(513)), "513 bytes"),
    ];
    for (query, words) in cases {
        let path = format!("/v1/locks?{query}");
        let answer = sidecar.without_a_write(sidecar.get(&path)).await;
        answer.is_problem(400, "invalid_request", words);
    }
}

#[tokio::test]
async fn unknown_path_and_wrong_method_return_problem_documents() {
    let sidecar = Sidecar::start().await;
    for path in ["/", "/v1", "/v1/lock", "/v1/locks/a/b/c", "/metrics"] {
        let answer = sidecar.get(path).await;
        answer.is_problem(404, "not_found", &format!("{path} not found"));
    }
    let cases = [
        (Method::GET, ACQUIRE, "POST"),
        (Method::PUT, "/v1/locks/x.0", "GET,HEAD,DELETE"),
        (Method::DELETE, "/v1/locks/x.0/renew", "POST"),
        (Method::POST, "/openapi.json", "GET,HEAD"),
    ];
    for (method, path, allowed) in cases {
        let answer = send(sidecar.request(method, path)).await;
        answer.is_problem(405, "method_not_allowed", "Allow header");
        assert_eq!(answer.headers["allow"], allowed, "{path}");
    }
    assert_eq!(sidecar.store.writes(), 0);
}

#[tokio::test]
async fn the_description_is_served() {
    let sidecar = Sidecar::start().await;
    let description = sidecar.get("/openapi.json").await;
    assert_eq!(description.status, 200);
    assert_eq!(description.headers["content-type"], "application/json");
    assert_eq!(description.body["openapi"], "3.1.0");
}

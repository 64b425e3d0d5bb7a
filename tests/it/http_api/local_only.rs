//! The API answers programs in its own pod, but no web page, whatever host name the page uses.

use reqwest::Method;
use serde_json::json;

use super::{Answer, Sidecar, send};

async fn acquire_with(sidecar: &Sidecar, header: &str, value: &str) -> Answer {
    let body = json!({"resource": "r", "ttlSeconds": 30, "requestId": "same"});
    let request = sidecar
        .request(Method::POST, "/v1/locks/acquire")
        .json(&body);
    send(request.header(header, value)).await
}

#[tokio::test]
async fn a_foreign_host_is_refused() {
    let sidecar = Sidecar::start().await;
    for host in [
        "evil.example",
        "localhost.evil.example",
        "10.0.0.7:7373",
        "0.0.0.0",
        "",
    ] {
        let answer = acquire_with(&sidecar, "host", host).await;
        answer.is_problem(403, "host_not_allowed", "--allow-host");
    }
    assert_eq!(sidecar.store.writes(), 0);
}

#[tokio::test]
async fn a_local_or_listed_host_is_allowed_with_any_port() {
    let sidecar = Sidecar::start().await;
    for host in [
        "localhost",
        "LocalHost:1",
        "127.0.0.1:7373",
        "[::1]:7373",
        "sidecar.test:99",
    ] {
        let answer = acquire_with(&sidecar, "host", host).await;
        assert_eq!(answer.status, 200, "{host}: {answer:?}");
    }
}

#[tokio::test]
async fn a_request_without_a_host_is_refused() {
    let sidecar = Sidecar::start().await;
    let answer = super::connections::raw(&sidecar, "GET /v1/locks HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 403"), "{answer}");
    assert!(answer.contains("host_not_allowed"), "{answer}");
    let two = "GET /v1/locks HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n";
    let answer = super::connections::raw(&sidecar, two).await;
    assert!(answer.contains("host_not_allowed"), "{answer}");
    let whole_url = "GET http://evil.example/v1/locks HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = super::connections::raw(&sidecar, whole_url).await;
    assert!(answer.contains("host_not_allowed"), "{answer}");
}

#[tokio::test]
async fn a_web_page_is_refused() {
    let sidecar = Sidecar::start().await;
    let page = [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:7373"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ];
    for (header, value) in page {
        let answer = acquire_with(&sidecar, header, value).await;
        answer.is_problem(403, "origin_refused", "web page");
    }
    let preflight = sidecar
        .request(Method::OPTIONS, "/v1/locks/acquire")
        .header("origin", "https://evil.example")
        .header("access-control-request-method", "POST");
    let answer = send(preflight).await;
    answer.is_problem(403, "origin_refused", "web page");
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    assert_eq!(sidecar.store.writes(), 0);
}

//! What is sent for each write, to a client that answers from a list.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;

const SETTINGS: &str = "/api/v1/namespaces/team/configmaps/settings";

#[derive(Default)]
struct Api {
    answers: Mutex<VecDeque<(u16, &'static str)>>,
    sent: Mutex<Vec<(Method, String, String)>>,
    stale: Mutex<Vec<u64>>,
}

fn refusal(text: &str) -> &'static str {
    let text =
        format!("ValidatingAdmissionPolicy 'leasehold-fenced-objects' denied request: {text}");
    Box::leak(text.into_boxed_str())
}

fn api(answers: &[(u16, &'static str)]) -> Arc<Api> {
    Arc::new(Api {
        answers: Mutex::new(answers.iter().copied().collect()),
        ..Api::default()
    })
}

async fn send(
    api: &Arc<Api>,
    token: Option<u64>,
    (method, path, kind): (&str, &str, &str),
    body: &str,
) -> Result<(u16, String), BoxError> {
    let (answering, refused) = (Arc::clone(api), Arc::clone(api));
    let fence = Fence {
        send: move |request: Request<Body>| {
            let api = Arc::clone(&answering);
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body = String::from_utf8_lossy(&body).into_owned();
                let sent = (parts.method, parts.uri.to_string(), body);
                api.sent.lock().unwrap().push(sent);
                let answer = api.answers.lock().unwrap().pop_front();
                let (code, text) =
                    answer.unwrap_or((200, r#"{"metadata":{"resourceVersion":"42"}}"#));
                let answer = Response::builder().status(code);
                Ok(answer.body(Body::from(text.as_bytes().to_vec())).unwrap())
            }
        },
        lease: Some(7),
        token: Box::new(move || token),
        stale: Box::new(move |token| refused.stale.lock().unwrap().push(token)),
    };
    let request = Request::builder().method(method).uri(path);
    let request = request.header(CONTENT_TYPE, kind);
    let request = request.body(Body::from(body.as_bytes().to_vec()))?;
    let answer = fence.serve(request).await?;
    let code = answer.status().as_u16();
    let body = answer.into_body().collect_bytes().await?;
    Ok((code, String::from_utf8_lossy(&body).into_owned()))
}

#[tokio::test]
async fn writes_carry_the_token() {
    let status = format!("{SETTINGS}/status");
    let annotation = json!({"annotations": {ANNOTATION: "7"}});
    let json_patch = json!([{"op": "add", "path": "/metadata/annotations/leasehold.dev~1fencing-token", "value": "7"}]);
    let other = json!({"metadata": {"annotations": {ANNOTATION: "99"}}}).to_string();
    for (method, path, kind, body, expected) in [
        (
            "POST",
            "/api/v1/namespaces/team/configmaps",
            "application/json",
            "{}",
            json!({"metadata": annotation}),
        ),
        (
            "PUT",
            SETTINGS,
            "application/json",
            &other,
            json!({"metadata": annotation}),
        ),
        (
            "PATCH",
            SETTINGS,
            "application/merge-patch+json",
            "{}",
            json!({"metadata": annotation}),
        ),
        (
            "PATCH",
            SETTINGS,
            "application/apply-patch+yaml",
            "{}",
            json!({"metadata": annotation}),
        ),
        ("PATCH", SETTINGS, JSON_PATCH, "[]", json_patch),
        ("PUT", &status, "application/json", "{}", json!({})),
        (
            "PATCH",
            "/api/v1/nodes/n",
            "application/merge-patch+json",
            "{}",
            json!({}),
        ),
    ] {
        let api = api(&[]);
        send(&api, Some(7), (method, path, kind), body)
            .await
            .unwrap();
        let sent = api.sent.lock().unwrap();
        let body: Value = serde_json::from_str(&sent[0].2).unwrap();
        assert_eq!((sent[0].1.as_str(), body), (path, expected), "{method}");
    }
}

#[tokio::test]
async fn object_is_found_in_each_path() {
    for path in [
        "/apis/example.com/stable/namespaces/team/widgets/w",
        "/api/v1/namespaces/api/configmaps/namespaces",
        "/apis/servicebus.azure.com/v1api20211101/namespaces/team/namespaces/bus",
        "/api/v1/namespaces/namespaces/configmaps/settings",
        "/api/v1/namespaces/vc/services/https:vc:443/proxy/api/v1/namespaces/team/configmaps/settings",
    ] {
        let api = api(&[]);
        send(&api, Some(7), ("PUT", path, "application/json"), "{}")
            .await
            .unwrap();
        let sent = api.sent.lock().unwrap();
        assert!(sent[0].2.contains(ANNOTATION), "{path}: {}", sent[0].2);
    }
}

#[tokio::test]
async fn unsafe_writes_are_not_sent() {
    let api = api(&[]);
    for (token, method, path, body, is_expected) in [
        (
            None,
            "PUT",
            SETTINGS,
            "{}",
            (|why| *why == Unsent::NoToken) as fn(&Unsent) -> bool,
        ),
        (None, "DELETE", SETTINGS, "", |why| *why == Unsent::NoToken),
        // Another lease than that of the client.
        (Some(8), "PUT", SETTINGS, "{}", |why| {
            *why == Unsent::NoToken
        }),
        (
            Some(7),
            "DELETE",
            SETTINGS,
            r#"{"dryRun":["All"]}"#,
            |why| *why != Unsent::NoToken,
        ),
        (
            Some(7),
            "DELETE",
            "/api/v1/namespaces/team/configmaps/settings?propagationPolicy=Orphan",
            "",
            |why| *why != Unsent::NoToken,
        ),
        (
            Some(7),
            "DELETE",
            SETTINGS,
            r#"{"preconditions":[]}"#,
            |why| *why != Unsent::NoToken,
        ),
        (Some(7), "PUT", SETTINGS, "k8s", |why| {
            *why != Unsent::NoToken
        }),
        (Some(7), "PUT", SETTINGS, r#"{"metadata":[]}"#, |why| {
            *why != Unsent::NoToken
        }),
        (
            Some(7),
            "DELETE",
            "/api/v1/namespaces/team/configmaps",
            "",
            |why| *why != Unsent::NoToken,
        ),
    ] {
        let why = send(&api, token, (method, path, "application/json"), body).await;
        let why = why.unwrap_err();
        assert!(is_expected(why.downcast_ref().unwrap()), "{why}");
    }
    send(&api, None, ("GET", SETTINGS, ""), "").await.unwrap();
    assert_eq!(api.sent.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn deletion_is_of_the_stamped_version() {
    let api = api(&[]);
    let path = format!("{SETTINGS}?x=y");
    let body = r#"{"preconditions":{"resourceVersion":"41","uid":"u"}}"#;
    send(&api, Some(7), ("DELETE", &path, "application/json"), body)
        .await
        .unwrap();
    let sent = api.sent.lock().unwrap();
    let body = |index: usize| serde_json::from_str::<Value>(&sent[index].2).unwrap();
    assert_eq!((&sent[0].0, sent[0].1.as_str()), (&Method::PATCH, SETTINGS));
    let metadata = json!({"annotations": {ANNOTATION: "7"}, "resourceVersion": "41"});
    assert_eq!(body(0), json!({"metadata": metadata}));
    assert_eq!((&sent[1].0, &sent[1].1), (&Method::DELETE, &path));
    let preconditions = json!({"resourceVersion": "42", "uid": "u"});
    assert_eq!(body(1), json!({"preconditions": preconditions}));
}

#[tokio::test]
async fn nothing_is_deleted_without_a_version() {
    let api = api(&[(200, r#"{"metadata":{}}"#)]);
    let answer = send(&api, Some(7), ("DELETE", SETTINGS, ""), "").await;
    assert!(
        answer
            .unwrap_err()
            .to_string()
            .contains("nothing was deleted")
    );
    assert_eq!(api.sent.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn other_fields_keep_their_numbers() {
    let api = api(&[]);
    let body = r#"{"spec":{"large":9007199254740993,"exact":0.30000000000000004}}"#;
    let put = ("PUT", SETTINGS, "application/json");
    send(&api, Some(7), put, body).await.unwrap();
    let sent = &api.sent.lock().unwrap()[0].2;
    assert!(sent.contains("9007199254740993"), "{sent}");
    assert!(sent.contains("0.30000000000000004"), "{sent}");
}

#[tokio::test]
async fn only_an_unseen_grant_is_repeated() {
    let unseen = (422, refusal("repeat the write"));
    let stale = (403, refusal("stale fencing token 7"));
    let api = api(&[unseen, unseen, stale, (403, "no right"), (404, "gone")]);
    let put = ("PUT", SETTINGS, "application/json");
    let answer = send(&api, Some(7), put, "{}").await.unwrap();
    assert_eq!(answer, (403, stale.1.to_owned()));
    let answer = send(&api, Some(7), put, "{}").await.unwrap();
    assert_eq!(answer, (403, "no right".to_owned()));
    let answer = send(&api, Some(7), ("DELETE", SETTINGS, ""), "")
        .await
        .unwrap();
    assert_eq!(answer, (404, "gone".to_owned()));
    assert_eq!(*api.stale.lock().unwrap(), [7]);
    assert_eq!(api.sent.lock().unwrap().len(), 5);
}

//! `--elect`: the process campaigns automatically, and an app only queries the leader.

use reqwest::Method;
use serde_json::Value;

use super::{Dev, eventually};

async fn until_leader(dev: &Dev, path: &str) -> Value {
    eventually(async || {
        let (status, election) = dev.get(path).await;
        assert!(status == 200 || status == 404, "{election}");
        (election["leader"] == true).then_some(election)
    })
    .await
}

#[tokio::test]
async fn dev_campaigns_again_after_stepping_down_and_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let flags = ["--elect=jobs,other", "--elect=third"];
    let dev = Dev::start(directory.path(), &flags).await;
    for name in ["other", "third"] {
        until_leader(&dev, &format!("/v1/elections/{name}")).await;
    }
    let first = until_leader(&dev, "/v1/elections/jobs").await;
    let lease = first["leaseId"].as_str().unwrap();
    let path = format!("/v1/locks/{lease}");
    let (released, _) = dev.call(Method::DELETE, &path, None).await;
    assert_eq!(released, 204);
    let token = |election: &Value| election["fencingToken"].as_u64().unwrap();
    let second = until_leader(&dev, "/v1/elections/jobs").await;
    assert!(token(&second) > token(&first));
    dev.end_by("KILL");

    let dev = Dev::start(directory.path(), &flags).await;
    let third = until_leader(&dev, "/v1/elections/jobs").await;
    assert!(token(&third) > token(&second));
}

/// Returns the address of the older API.
async fn compat_url(dev: &Dev) -> String {
    eventually(async || {
        let log = dev.said("stderr");
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let mut compat = lines.filter(|line: &Value| line["api"] == "compat");
        Some(format!("http://{}", compat.next()?["address"].as_str()?))
    })
    .await
}

#[tokio::test]
async fn apps_of_older_sidecars_get_their_own_formats() {
    let directory = tempfile::tempdir().unwrap();
    let flags = [
        "--elect=jobs",
        "--compat=leader-elector,nais",
        "--compat-port=0",
    ];
    let dev = Dev::start(directory.path(), &flags).await;
    let compat = compat_url(&dev).await;
    // Apps of older sidecars send only these queries: they are the reason why the process
    // campaigns.
    eventually(async || {
        let answer = dev.http.get(&compat).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        (answer["name"] != "").then_some(())
    })
    .await;
    let leader = until_leader(&dev, "/v1/elections/jobs").await;
    let pod = &leader["holder"]["pod"];
    for path in ["/", "/anything/else"] {
        let answer = dev
            .http
            .get(format!("{compat}{path}"))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.headers()["content-type"], "application/json");
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(&answer["name"], pod);
        let time = answer["last_update"].as_str().unwrap();
        assert!(time.ends_with('Z') && !time.contains('.'), "{time}");
    }
    let stream = dev.http.get(format!("{compat}/sse")).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let mut stream = stream;
    let mut next = async || {
        let chunk = stream.chunk().await.unwrap().expect("an event");
        String::from_utf8(chunk.to_vec()).unwrap()
    };
    let first = next().await;
    let data = first.strip_prefix("data: ").expect("data and no name");
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!(&data["name"], pod);
    // Both resigning and the next term are changes.
    let lease = leader["leaseId"].as_str().unwrap();
    dev.call(Method::DELETE, &format!("/v1/locks/{lease}"), None)
        .await;
    let pod = pod.as_str().unwrap();
    let mut name = String::new();
    while name != pod {
        let event = next().await;
        if let Some(data) = event.strip_prefix("data: ") {
            let data: Value = serde_json::from_str(data).unwrap();
            data["name"].as_str().unwrap().clone_into(&mut name);
            assert!(name.is_empty() || name == pod, "{name}");
        }
    }
    // Like the API itself, it serves only local clients.
    let foreign = dev.http.get(&compat).header("host", "evil.example");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
}

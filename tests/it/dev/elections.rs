//! `--elect`: the process runs by itself, and an app only asks.

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
async fn it_leads_what_it_is_told_to_steps_down_when_asked_and_runs_again_also_after_a_crash() {
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

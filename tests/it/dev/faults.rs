//! `--fault-api`: each fault from an app's side, and no faults without the flag.

use reqwest::{Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;

use super::{Answer, Dev, eventually, path_of, token};

const FAULTS: [&str; 4] = ["lose-lease", "at-risk", "store-unavailable", "heal"];

async fn with_faults() -> (TempDir, Dev) {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &["--fault-api"]).await;
    assert!(dev.said("stdout").contains("/dev/faults"));
    (data, dev)
}

impl Dev {
    async fn fault(&self, name: &str, body: serde_json::Value) -> Answer {
        self.post(&format!("/dev/faults/{name}"), body).await
    }

    pub(super) async fn ask_for(&self, name: &str, body: serde_json::Value) {
        let (status, problem) = self.fault(name, body).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{problem}");
    }
}

#[tokio::test]
async fn faults_need_their_flag() {
    let data = tempfile::tempdir().unwrap();
    let dev = Dev::start(data.path(), &[]).await;
    let lease = dev.acquire("r").await;
    for name in FAULTS {
        let body = json!({"leaseId": lease["leaseId"], "seconds": 5});
        let (status, problem) = dev.fault(name, body).await;
        assert!(status == 404 && problem["code"] == "not_found", "{problem}");
    }
    assert_eq!(dev.get(&path_of(&lease)).await.0, 200);
}

#[tokio::test]
async fn a_lease_is_lost_on_demand() {
    let (_data, dev) = with_faults().await;
    let (lost, kept) = (dev.acquire("lost").await, dev.acquire("kept").await);
    dev.ask_for("lose-lease", json!({"leaseId": lost["leaseId"]}))
        .await;
    let (status, problem) = dev.get(&path_of(&lost)).await;
    assert!(
        status == 410 && problem["code"] == "lease_lost",
        "{problem}"
    );
    let renewal = dev
        .post(&format!("{}/renew", path_of(&lost)), json!({}))
        .await;
    assert_eq!(renewal.0, 410);
    assert_eq!(dev.get(&path_of(&kept)).await.0, 200);
    let next = dev.acquire_in_time("lost").await;
    assert!(token(&next) > token(&lost));

    for (lease, code) in [(&lost["leaseId"], 410), (&json!("nobodys.0"), 404)] {
        let (status, problem) = dev.fault("lose-lease", json!({"leaseId": lease})).await;
        assert_eq!(status, code, "{problem}");
    }
}

#[tokio::test]
async fn validity_shrinks_on_demand_until_the_lease_is_lost() {
    let (_data, dev) = with_faults().await;
    let lease = dev.acquire("r").await;
    dev.ask_for("at-risk", json!({"seconds": 600})).await;
    // A session that is renewed always has at least 1.85 s left.
    let shrunk = eventually(async || {
        let (status, lease) = dev.get(&path_of(&lease)).await;
        assert_eq!(status, 200, "{lease}");
        (lease["validForMs"].as_u64()? < 1_700).then_some(())
    });
    shrunk.await;
    // The store itself is available.
    assert_eq!(dev.get("/v1/locks").await.0, 200);
    let lost = eventually(async || {
        let (status, problem) = dev.get(&path_of(&lease)).await;
        (status != 200).then_some(problem)
    });
    let lost = lost.await;
    assert!(
        lost["code"] == "lease_lost" && lost["reason"] == "session_expired",
        "{lost}"
    );

    dev.ask_for("heal", json!({})).await;
    let next = dev.acquire_in_time("r").await;
    assert!(token(&next) > token(&lease));
}

#[tokio::test]
async fn the_store_is_away_on_demand() {
    let (_data, dev) = with_faults().await;
    let lease = dev.acquire("held").await;
    dev.ask_for("store-unavailable", json!({"seconds": 600}))
        .await;
    // Known leases continue.
    assert_eq!(dev.get(&path_of(&lease)).await.0, 200);
    let (status, problem) = dev.get("/v1/locks").await;
    assert!(
        status == 503 && problem["code"] == "store_unavailable",
        "{problem}"
    );
    let (status, problem) = dev.try_acquire("new").await;
    assert!(
        status == 503 && problem["code"] == "store_unavailable",
        "{problem}"
    );
    dev.ask_for("heal", json!({})).await;
    dev.acquire("new").await;
}

#[tokio::test]
async fn fault_ends_after_its_time() {
    let (_data, dev) = with_faults().await;
    let gone = eventually(async || {
        // On a busy machine the fault may end before the next request.
        dev.ask_for("store-unavailable", json!({"seconds": 1}))
            .await;
        (dev.get("/v1/locks").await.0 == 503).then_some(())
    });
    gone.await;
    let back = eventually(async || (dev.get("/v1/locks").await.0 == 200).then_some(()));
    back.await;
}

#[tokio::test]
async fn invalid_faults_and_web_pages_are_refused() {
    let (_data, dev) = with_faults().await;
    for name in ["at-risk", "store-unavailable"] {
        for seconds in [json!(0), json!(3_601), json!(1.5), json!("5"), json!(-1)] {
            let (status, problem) = dev.fault(name, json!({"seconds": seconds})).await;
            assert!(
                status == 400 && problem["code"] == "invalid_request",
                "{problem}"
            );
        }
    }
    let url = format!("{}/dev/faults/store-unavailable", dev.url);
    let of_a_page = dev.http.post(url).header("origin", "http://localhost");
    let answer = of_a_page.json(&json!({"seconds": 9})).send().await.unwrap();
    assert_eq!(answer.status(), 403);
    let (status, _) = dev.call(Method::GET, "/dev/faults/heal", None).await;
    assert_eq!(status, 405);
    assert_eq!(dev.get("/v1/locks").await.0, 200);
}

//! The server of `kubectl leasehold ui`, without a browser: who may ask it, and that its answers are those of the commands.
//! The page itself is tested in a real browser (tests/e2e/page).

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use reqwest::{Client, Response, StatusCode};
use serde_json::{Value, json};

use super::stub::{Change, Setup};
use super::{Cluster, words};

/// How long a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running page.
struct Page {
    cluster: Cluster,
    process: Child,
    client: Client,
    url: String,
    secret: String,
    token: String,
}

impl Page {
    async fn start(setup: Setup, arguments: &str) -> Self {
        let cluster = Cluster::with(setup);
        let mut command = cluster.command(&words(arguments));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut link = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut link).unwrap();
        let (url, secret) = link.trim().split_once("/#secret=").expect("a link");
        let mut page = Self {
            cluster,
            process,
            client: Client::new(),
            url: url.to_owned(),
            secret: secret.to_owned(),
            token: String::new(),
        };
        let entered = page.enter(secret).await;
        assert_eq!(entered.status(), StatusCode::OK);
        let entered: Value = entered.json().await.unwrap();
        entered["token"]
            .as_str()
            .unwrap()
            .clone_into(&mut page.token);
        page
    }

    async fn enter(&self, secret: &str) -> Response {
        let request = self.client.post(format!("{}/api/enter", self.url));
        let request = request.json(&json!({"secret": secret}));
        request.send().await.unwrap()
    }

    async fn get(&self, path: &str) -> Value {
        let request = self.client.get(format!("{}{path}", self.url));
        let answer = request.bearer_auth(&self.token).send().await.unwrap();
        answer.json().await.unwrap()
    }

    /// Asks until the answer fulfils a condition.
    async fn until(&self, path: &str, done: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = async {
            loop {
                last = self.get(path).await;
                if done(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        assert!(found.is_ok(), "{last:#}");
        last
    }

    /// Waits for the locks and the sessions.
    async fn listed(&self) -> Value {
        self.until("/api/locks?limit=500", |answer| {
            let cluster = &answer["cluster"];
            cluster["state"] == "live" && cluster["warnings"] == json!([])
        })
        .await
    }

    async fn release(&self, lock: &str, body: &Value) -> (StatusCode, Value) {
        let request = self
            .client
            .post(format!("{}/api/locks/shop/{lock}/release", self.url));
        let request = request.bearer_auth(&self.token).json(body);
        let answer = request.send().await.unwrap();
        (answer.status(), answer.json().await.unwrap())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// Returns the cells of a row by the headers.
fn cell<'a>(answer: &'a Value, resource: &str, column: &str) -> &'a str {
    let at = |column: &str| {
        let mut columns = answer["columns"].as_array().unwrap().iter();
        columns.position(|header| header == column).unwrap()
    };
    let mut rows = answer["rows"].as_array().unwrap().iter();
    let row = rows.find(|row| row["cells"][at("RESOURCE")] == resource);
    row.unwrap()["cells"][at(column)].as_str().unwrap()
}

#[tokio::test]
async fn link_opens_the_page_once_for_one_browser() {
    let page = Page::start(Setup::default(), "ui").await;
    assert_eq!(page.enter(&page.secret).await.status(), 401);
    let locks = format!("{}/api/locks", page.url);
    let get = |url: &str| page.client.get(url).bearer_auth(&page.token);
    assert_eq!(page.client.get(&locks).send().await.unwrap().status(), 401);
    let rebound = get(&locks).header("host", "rebound.example");
    assert_eq!(rebound.send().await.unwrap().status(), 403);
    let foreign = get(&locks).header("origin", "http://127.0.0.1:1");
    assert_eq!(foreign.send().await.unwrap().status(), 403);
    let own = get(&locks).header("origin", &page.url);
    assert_eq!(own.send().await.unwrap().status(), 200);
}

/// The policy lets the page use no other server, so it works offline.
#[tokio::test]
async fn every_file_of_the_page_is_served_with_its_policy() {
    let page = Page::start(Setup::default(), "ui").await;
    let mut open = vec!["/".to_owned()];
    let mut seen = Vec::new();
    while let Some(path) = open.pop() {
        let answer = page.client.get(format!("{}{path}", page.url));
        let answer = answer.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let policy = &answer.headers()["content-security-policy"];
        assert!(policy.to_str().unwrap().starts_with("default-src 'none'"));
        let text = answer.text().await.unwrap();
        seen.push(path);
        for quoted in text.split(['"', '\'']) {
            let name = quoted.trim_start_matches("./").trim_start_matches('/');
            let is_file = name.rsplit_once('.').is_some_and(|(stem, kind)| {
                let is_name = !stem.is_empty() && stem.chars().all(|c| c.is_ascii_lowercase());
                is_name && ["js", "css", "svg"].contains(&kind)
            });
            let path = format!("/{name}");
            if is_file && !seen.contains(&path) && !open.contains(&path) {
                open.push(path);
            }
        }
    }
    let files = std::fs::read_dir("src/cli/kubectl/ui/page").unwrap();
    assert_eq!(files.count(), seen.len(), "{seen:?}");
}

#[tokio::test]
async fn answers_of_the_page_have_the_words_of_the_commands() {
    let page = Page::start(Setup::default(), "ui").await;
    let rows = page.listed().await;
    assert_eq!(cell(&rows, "orders", "HOLDER"), "worker-1");
    assert_eq!(cell(&rows, "orders", "WAITING"), "3");
    assert_eq!(cell(&rows, "orders", "SESSION"), "live");
    assert_eq!(rows["cluster"]["namespace"], "shop");
    let some = page.get("/api/locks?prefix=orde&limit=500").await;
    assert_eq!(
        (&some["matched"], &some["rows"][0]["name"]),
        (&json!(1), &json!("orders"))
    );
    assert_eq!(some["total"], rows["total"]);

    let lock = page.get("/api/locks/shop/orders").await;
    let text = lock.to_string();
    for words in [
        "held by worker-1 in pod worker-a",
        "1. worker-2 in pod worker-b",
        "What frees it",
        "orders is held by worker-1 in pod worker-a",
        "Its app is notified, and decides.",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(lock["release"]["leaseId"], "grant-worker-a");
    assert_eq!(lock["release"]["allowed"], true);

    let waits = page.get("/api/waits").await;
    let edges = waits["waits"].as_array().unwrap();
    let orders = edges.iter().filter(|edge| edge["resource"] == "orders");
    assert_eq!(orders.count(), 3);
    let deadlock = edges.iter().filter(|edge| edge["deadlock"] == true);
    assert!(deadlock.count() >= 2, "{waits}");
    let hour = page.get("/api/hour").await;
    let contended = hour["locks"].as_array().unwrap().iter();
    let orders = { contended }.find(|lock| lock["resource"] == "orders");
    assert_eq!(orders.unwrap()["longestQueue"], 3);
}

#[tokio::test]
async fn release_from_the_page_is_the_request_of_the_command() {
    let page = Page::start(Setup::default(), "ui").await;
    page.listed().await;
    let request = json!({"leaseId": "grant-worker-a", "mode": "Force", "reason": "stuck"});
    let (code, answer) = page.release("orders", &request).await;
    assert_eq!(code, StatusCode::OK);
    let note = answer["note"].as_str().unwrap();
    assert!(
        note.starts_with("The forced release was requested") && note.contains("withdraw it with"),
        "{note}"
    );
    let writes = page.cluster.stub.writes();
    let change = json!({"spec": {"releaseRequest":
        {"leaseId": "grant-worker-a", "mode": "Force", "reason": "stuck", "actor": "jane"}}});
    assert_eq!(writes.len(), 1);
    assert!(
        writes[0]
            .0
            .ends_with("/namespaces/shop/distributedlocks/orders")
    );
    assert_eq!(writes[0].1, change);
    let outcome = page
        .get("/api/locks/shop/orders/release/grant-worker-a")
        .await;
    assert_eq!(outcome["text"], Value::Null);
    let other = page.get("/api/locks/shop/orders/release/another").await;
    assert!(other["error"].as_str().unwrap().contains("not requested"));
}

#[tokio::test]
async fn wrong_release_requests_change_nothing() {
    let page = Page::start(Setup::default(), "ui").await;
    page.listed().await;
    let request =
        |lease: &str, reason: &str| json!({"leaseId": lease, "mode": "Ask", "reason": reason});
    for (lock, lease, reason, code, words) in [
        ("orders", "grant-worker-a", "  ", 400, "give a reason"),
        ("orders", "another", "stuck", 409, "has ended meanwhile"),
        ("missing", "x", "stuck", 404, "does not exist"),
    ] {
        let (answered, answer) = page.release(lock, &request(lease, reason)).await;
        assert_eq!(answered, code, "{answer}");
        assert!(
            answer["error"].as_str().unwrap().contains(words),
            "{answer}"
        );
    }
    assert!(page.cluster.stub.writes().is_empty());
}

#[tokio::test]
async fn changes_of_locks_are_shown_without_a_new_list() {
    let change = |lock, patch| Change { lock, patch };
    let setup = Setup {
        on_watch: vec![
            change("orders", Some(json!({"status": {"token": 43}}))),
            change("never-used", None),
        ],
        ..Setup::default()
    };
    let page = Page::start(setup, "ui -A").await;
    let rows = page
        .until("/api/locks?limit=500&namespace=shop", |answer| {
            answer["rows"].to_string().contains("\"43\"")
                && !answer["rows"].to_string().contains("never-used")
        })
        .await;
    assert_eq!(cell(&rows, "orders", "TOKEN"), "43");
    let namespaces = rows["namespaces"].as_array().unwrap();
    assert!(namespaces.len() > 1, "{namespaces:?}");
    assert!(rows["total"].as_u64() > rows["matched"].as_u64());
    let gone = page.get("/api/locks/shop/never-used").await;
    assert!(gone["error"].as_str().unwrap().contains("does not exist"));
}

#[tokio::test]
async fn missing_rights_are_named_on_the_page() {
    let forbidden = |rights: &[&'static str]| Setup {
        forbidden: rights.to_vec(),
        ..Setup::default()
    };
    let page = Page::start(forbidden(&["distributedlocks"]), "ui -A").await;
    let path = "/api/locks?limit=1";
    let refused = page
        .until(path, |answer| answer["cluster"]["state"] == "refused")
        .await;
    let why = refused["cluster"]["why"].as_str().unwrap();
    assert!(
        why.contains("cannot list distributedlocks in all namespaces"),
        "{why}"
    );

    let rights = [
        "locksessions",
        "pods",
        "events",
        "force-release distributedlocks",
    ];
    let page = Page::start(forbidden(&rights), "ui").await;
    let rows = page
        .until("/api/locks?limit=500", |answer| {
            let warnings = answer["cluster"]["warnings"].to_string();
            answer["cluster"]["state"] == "live" && warnings.contains("cannot list locksessions")
        })
        .await;
    assert_eq!(cell(&rows, "orders", "SESSION"), "unknown");
    let lock = page.get("/api/locks/shop/orders").await;
    let missing = lock["release"]["missing"].as_str().unwrap();
    assert_eq!(lock["release"]["allowed"], false);
    assert!(
        missing.contains("force-release") && missing.contains("leasehold-lock-admin"),
        "{missing}"
    );
    let facts = lock["facts"].to_string();
    assert!(
        facts.contains("cannot get pods") && facts.contains("cannot list events"),
        "{facts}"
    );
}

#[tokio::test]
async fn page_says_that_the_api_server_is_away() {
    let mut page = Page::start(Setup::default(), "ui --request-timeout 1s").await;
    let before = page.listed().await;
    // The port stays closed.
    drop(std::mem::replace(&mut page.cluster, Cluster::sound()));
    let path = "/api/locks?limit=500";
    let away = page
        .until(path, |answer| {
            let cluster = &answer["cluster"];
            let why = cluster["why"].as_str().unwrap_or_default();
            cluster["state"] == "away" && why.contains("cannot be reached")
        })
        .await;
    assert_eq!(away["total"], before["total"], "what was seen last stays");
    // Time without an answer makes no session silent.
    assert_eq!(cell(&away, "orders", "SESSION"), "live");
    let lock = page.get("/api/locks/shop/orders").await;
    let operator = lock["facts"].to_string();
    assert!(operator.contains("unknown: the API server"), "{operator}");
}

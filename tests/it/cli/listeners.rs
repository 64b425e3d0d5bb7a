//! The addresses where a role listens: the Unix socket, disabled listeners, and `leasehold health`
//! with each form.

use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use super::{Stranded, kubeconfig, leasehold};

/// No server listens there.
const NO_SERVER: &str = "server: 'http://127.0.0.1:9'";

fn start(flags: &[&str]) -> Stranded {
    Stranded::with(kubeconfig(NO_SERVER, ""), flags)
}

fn flag(name: &str, path: &Path) -> String {
    format!("--{name}={}", path.display())
}

fn over(path: &Path) -> reqwest::Client {
    let client = reqwest::Client::builder().unix_socket(path);
    client.build().unwrap()
}

fn health(flags: &[&str]) -> Output {
    leasehold(&["health"]).args(flags).output().unwrap()
}

#[track_caller]
fn is_healthy(flags: &[&str]) {
    let output = health(flags);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {said}");
    assert_eq!(output.stdout, b"ok\n");
}

#[track_caller]
fn is_not_healthy(flags: &[&str]) {
    let output = health(flags);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{flags:?}: {said}");
    assert!(said.starts_with("error: the sidecar does not answer: "));
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[tokio::test]
async fn unix_socket_serves_api_and_health_until_the_process_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("leasehold.sock");
    let socket = flag("unix-socket", &path);
    let mut sidecar = start(&["--listen=none", "--admin-listen=none", &socket]);
    let listening = sidecar.logged("listening");
    assert_eq!(listening["api"], "locks");
    assert_eq!(listening["address"], path.to_str().unwrap());
    let client = over(&path);
    let healthz = client.get("http://localhost/healthz").send().await.unwrap();
    assert_eq!(healthz.status(), 200);
    assert_eq!(healthz.text().await.unwrap(), "ok\n");

    let token = json!({"resource": "r", "fencingToken": 1});
    let verify = || {
        client
            .post("http://any.example/v1/fencing/verify")
            .json(&token)
    };
    let answer = verify().send().await.unwrap();
    let problem: Value = answer.json().await.unwrap();
    assert_eq!(problem["code"], "store_unavailable", "no name is foreign");
    let of_a_page = verify().header("origin", "https://any.example");
    let problem: Value = of_a_page.send().await.unwrap().json().await.unwrap();
    assert_eq!(problem["code"], "origin_refused");

    sidecar.signal("TERM");
    sidecar.logged("stopped");
    assert_eq!(sidecar.process.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
}

#[test]
fn socket_of_an_ended_process_is_replaced_and_a_live_one_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let socket = flag("unix-socket", &path);
    let flags = ["--listen=127.0.0.1:0", "--admin-listen=none", &socket];
    let mut first = start(&flags);
    first.logged("listening");
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    assert!(path.exists(), "a killed process leaves it");
    let mut second = start(&flags);
    second.logged("sidecar starting");

    let refused = |path: &Path, words: &str| {
        let file = kubeconfig(NO_SERVER, "");
        let mut third = leasehold(&["sidecar", "--pod-name=p", "--pod-uid=u", "--listen=none"]);
        third.args(["--admin-listen=none", &flag("unix-socket", path)]);
        third.arg(flag("kubeconfig", file.path()));
        let output = third.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        let line = said.lines().find(|line| line.starts_with("error: "));
        let line = line.expect("one line with the reason");
        assert!(line.contains(words), "{line}");
    };
    refused(&path, "another process uses it");
    is_healthy(&[&socket]);
    refused(
        &directory.path().join("no/s"),
        "its directory does not exist",
    );
    let notes = directory.path().join("notes");
    std::fs::write(&notes, "notes").unwrap();
    refused(&notes, "is not a socket");
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "notes");
}

#[test]
fn health_succeeds_only_if_the_listener_answers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let socket = flag("unix-socket", &path);
    let mut by_admin = start(&["--listen=127.0.0.1:0", "--admin-listen=[::]:0", &socket]);
    let both = [(); 3].map(|()| by_admin.logged("listening"));
    let port = |listening: &Value| {
        let address = listening["address"].as_str().unwrap();
        address.rsplit_once(':').unwrap().1.to_owned()
    };
    let admin = both.iter().find(|one| one["api"] == "admin").unwrap();
    let by_admin_port = format!("--admin-listen=[::]:{}", port(admin));
    let by_api_port = format!("--listen=localhost:{}", port(&both[0]));
    let forms: [&[&str]; 4] = [
        &[&by_admin_port],
        &["--admin-listen=none", &by_api_port],
        &[&socket],
        &["--listen=none", "--admin-listen=none", &socket],
    ];
    for form in forms {
        is_healthy(form);
    }
    let mut by_variable = leasehold(&["health"]);
    by_variable.env("LEASEHOLD_UNIX_SOCKET", &path);
    by_variable.env("LEASEHOLD_LISTEN", "none");
    by_variable.env("LEASEHOLD_ADMIN_LISTEN", "none");
    assert!(by_variable.status().unwrap().success());

    by_admin.signal("STOP");
    is_not_healthy(forms[0]);
    is_not_healthy(forms[2]);
    by_admin.process.kill().unwrap();
    by_admin.process.wait().unwrap();
    for form in forms {
        is_not_healthy(form);
    }
}

#[test]
fn empty_token_floor_is_refused() {
    let mut command = leasehold(&["sidecar", "--pod-uid=u"]);
    let output = command.env("LEASEHOLD_TOKEN_FLOOR", "").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--token-floor"), "{said}");
}

#[tokio::test]
async fn localhost_is_both_families_and_empty_variables_are_unset() {
    let unset = [
        "ELECT",
        "SESSION_TTL",
        "LISTEN",
        "UNIX_SOCKET",
        "METRICS_PREFIX",
        "LOG_LEVEL",
    ];
    let unset = unset.map(|name| (format!("LEASEHOLD_{name}"), String::new()));
    let flags = ["--listen=localhost:0", "--admin-listen=none"];
    let mut sidecar = Stranded::in_environment(kubeconfig(NO_SERVER, ""), &flags, &unset);
    let starting = sidecar.logged("sidecar starting");
    assert_eq!(starting["sessionTtlSeconds"], 15);
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let expected = if has_ipv6 {
        &["127.0.0.1:", "[::1]:"][..]
    } else {
        &["127.0.0.1:"]
    };
    for family in expected {
        let listening = sidecar.logged("listening");
        let address = listening["address"].as_str().unwrap();
        assert!(address.starts_with(family), "{address}");
        let healthz = reqwest::get(super::url(&listening, "/healthz"))
            .await
            .unwrap();
        assert_eq!(healthz.status(), 200);
    }
}

#[tokio::test]
async fn a_hold_over_a_unix_socket_lasts_as_long_as_its_connection() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let mut command = leasehold(&["dev", "--log-format=json", "--session-ttl=3"]);
    command.args(["--listen=none", "--admin-listen=none"]);
    command.args([
        flag("unix-socket", &path),
        flag("data-dir", directory.path()),
    ]);
    let mut dev = Stranded::of(&mut command, kubeconfig(NO_SERVER, ""));
    dev.logged("listening");
    let client = over(&path);
    let post = |call: &str, body: Value| {
        let url = format!("http://localhost/v1/locks/{call}");
        client.post(url).json(&body).send()
    };
    let mut held = post("hold", json!({"resource": "r"})).await.unwrap();
    let mut events = String::new();
    while !events.contains("event: acquired") {
        let part = held.chunk().await.unwrap().expect("an open stream");
        events += std::str::from_utf8(&part).unwrap();
    }
    let try_it = json!({"resource": "r", "ownerId": "next", "ttlSeconds": 30});
    let refused = post("acquire", try_it).await.unwrap();
    assert_eq!(refused.status(), 409);
    drop(held);
    let wait = json!({"resource": "r", "ownerId": "next", "ttlSeconds": 30, "waitSeconds": 30});
    let granted = post("acquire", wait).await.unwrap();
    assert_eq!(granted.status(), 200);
}

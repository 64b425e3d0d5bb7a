//! The command line: what it refuses, what it prints, and a sidecar that starts and stops with no
//! API server to be found.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;

fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env_remove("KUBECONFIG");
    command
}

fn run(args: &[&str]) -> Output {
    leasehold(args).output().unwrap()
}

#[test]
fn a_wrong_flag_is_a_usage_error_that_names_it() {
    let prefixes: Vec<_> = (0..51).map(|n| format!("--metrics-prefix=p{n}")).collect();
    let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
    let cases: &[(&[&str], &str)] = &[
        (&["--session-ttl=2"], "use 3 to 120 seconds"),
        (&["--session-ttl=15s"], "without a unit"),
        (&["--listen=localhost"], "--listen"),
        (&["--on-term=later"], "release-now"),
        (&["--token-floor=9007199254740992"], "--token-floor"),
        (&["--namespace=Team_A"], "--namespace"),
        (&["--pod-name=a/b"], "--pod-name"),
        (&["--log-level=a=b=c"], "--log-level"),
        (&["--log-format=xml"], "json"),
        (&prefixes, "at most 50"),
    ];
    for (flags, words) in cases {
        let args: Vec<_> = ["sidecar", "--pod-uid=u", "--kubeconfig=/nonexistent"]
            .iter()
            .chain(*flags)
            .copied()
            .collect();
        let output = run(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(words), "{said:?} has no {words:?}");
    }
    assert_eq!(
        run(&["sidecar"]).status.code(),
        Some(2),
        "the pod's uid has no default"
    );
}

#[test]
fn a_failure_is_one_line_that_says_what_to_do() {
    let missing = run(&[
        "sidecar",
        "--pod-uid=u",
        "--pod-name=p",
        "--kubeconfig=/nonexistent",
    ]);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(
        said.starts_with("error: cannot read the kubeconfig /nonexistent"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn the_definitions_are_printed() {
    let printed = run(&["crd"]);
    assert!(printed.status.success());
    let expected = leasehold::crd::all_as_yaml().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
}

/// A sidecar whose API server is a port that nobody listens on.
struct Stranded {
    process: Child,
    log: BufReader<ChildStderr>,
    _kubeconfig: tempfile::TempDir,
}

impl Stranded {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        let text = "{apiVersion: v1, kind: Config, current-context: c, \
             clusters: [{name: k, cluster: {server: 'http://127.0.0.1:9'}}], \
             users: [{name: u, user: {}}], \
             contexts: [{name: c, context: {cluster: k, user: u, namespace: team-a}}]}";
        std::fs::write(&kubeconfig, text).unwrap();
        let mut process = leasehold(&["sidecar", "--log-format=json"])
            .args(["--pod-name=p", "--pod-uid=u"])
            .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        Self {
            process,
            log,
            _kubeconfig: directory,
        }
    }

    /// The next line of the log with this message.
    fn logged(&mut self, message: &str) -> Value {
        for line in (&mut self.log).lines() {
            let line = line.unwrap();
            let event: Value = serde_json::from_str(&line).expect("each line is an object");
            if event["message"] == message {
                return event;
            }
        }
        panic!("{message:?} was not logged");
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Stranded {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

#[tokio::test]
async fn a_sidecar_without_its_api_server_serves_says_so_and_stops_cleanly() {
    let mut sidecar = Stranded::start();
    let starting = sidecar.logged("sidecar starting");
    assert_eq!(starting["namespace"], "team-a");
    assert!(
        starting["timestamp"].as_str().unwrap().ends_with('Z'),
        "UTC"
    );
    let api = sidecar.logged("listening");
    let admin = sidecar.logged("listening");
    assert_eq!(
        (&api["api"], &admin["api"]),
        (&"locks".into(), &"admin".into())
    );
    let url =
        |event: &Value, path: &str| format!("http://{}{path}", event["addr"].as_str().unwrap());

    let ready = reqwest::get(url(&admin, "/readyz")).await.unwrap();
    assert_eq!(ready.status(), 200, "an outage makes no pod unready");
    let token = serde_json::json!({"resource": "r", "fencingToken": 1});
    let verify = reqwest::Client::new()
        .post(url(&api, "/v1/fencing/verify"))
        .json(&token);
    let refused = verify.send().await.unwrap();
    assert_eq!(refused.status(), 503);
    let problem: Value = refused.json().await.unwrap();
    assert_eq!(problem["code"], "store_unavailable");

    sidecar.signal("TERM");
    sidecar.logged("stopped");
    assert_eq!(sidecar.process.wait().unwrap().code(), Some(0));
}

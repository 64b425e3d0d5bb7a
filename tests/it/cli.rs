//! The command line: the refused arguments, the output, and a sidecar that starts and stops without
//! an API server.

mod copy;
#[cfg(target_os = "linux")]
mod exec;
mod gate;
mod listeners;
mod webhook;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(args).env_remove("KUBECONFIG");
    command
}

fn run(args: &[&str]) -> Output {
    leasehold(args).output().unwrap()
}

#[test]
fn wrong_flag_is_a_usage_error_that_names_it() {
    let prefixes: Vec<_> = (0..51).map(|n| format!("--metrics-prefix=p{n}")).collect();
    let prefixes: Vec<_> = prefixes.iter().map(String::as_str).collect();
    let too_long = format!("--unix-socket=/{}", "x".repeat(107));
    let cases: &[(&[&str], &str)] = &[
        (&["--session-ttl=2"], "use 3 to 3600 seconds"),
        (&["--session-ttl=3601"], "use 3 to 3600 seconds"),
        (&["--session-ttl=15s"], "without a unit"),
        (&["--listen=localhost"], "--listen"),
        (&["--on-term=later"], "release-now"),
        (&["--token-floor=9007199254740992"], "--token-floor"),
        (&["--namespace=Team_A"], "--namespace"),
        (&["--pod-name=a/b"], "--pod-name"),
        (&["--log-level=a=b=c"], "--log-level"),
        (&["--log-format=xml"], "json"),
        (&["--allow-host=evil:80"], "no scheme, port, path"),
        (&["--allow-host="], "no scheme, port, path"),
        (&["--metrics-prefix="], "the prefix of resources"),
        (&["--metrics-prefix=a,,b"], "the prefix of resources"),
        (&prefixes, "at most 50"),
        (&["--elect=Billing"], "lower-case letters"),
        (&["--elect=a,,b"], "an election's name is"),
        (&["--elect-preferred"], "--elect"),
        (&["--compat=nais"], "--elect"),
        (
            &["--compat=nais", "--elect=a,b"],
            "--elect names 2; name one",
        ),
        (&["--compat=zookeeper", "--elect=a"], "leader-elector"),
        (&["--compat-port=70000"], "--compat-port"),
        (&["--compat-port=4041"], "--compat <WHOSE>"),
        (&["--listen=localhost:x"], "localhost:PORT"),
        (&["--listen=none"], "requires --unix-socket"),
        (&["--listen=none,127.0.0.1:0"], "cannot be combined"),
        (&["--admin-listen=localhost"], "or none"),
        (&[&too_long], "108 bytes"),
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

/// The kubelet sets variables for the Services of a namespace. A Service `leasehold-compat` sets
/// this variable.
#[test]
fn service_variables_are_not_read_as_flags() {
    let mut sidecar = leasehold(&["sidecar", "--pod-uid=u", "--pod-name=p"]);
    let output = sidecar
        .arg("--kubeconfig=/nonexistent")
        .env("LEASEHOLD_COMPAT_PORT", "tcp://10.0.0.1:80")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // The flags were accepted: the error is about the kubeconfig.
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/nonexistent"), "{said}");
}

#[test]
fn failure_is_one_line_with_the_remedy() {
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

/// Writes a kubeconfig with these fields in its cluster and its user.
fn kubeconfig(cluster: &str, user: &str) -> tempfile::NamedTempFile {
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, \
          clusters: [{{name: k, cluster: {{{cluster}}}}}], \
          users: [{{name: u, user: {{{user}}}}}], \
          contexts: [{{name: c, context: {{cluster: k, user: u, namespace: team-a}}}}]}}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_refused_at_the_start() {
    let server = "server: 'http://127.0.0.1:9'";
    let by_socks = format!("{server}, proxy-url: 'socks5://127.0.0.1:9'");
    let of_two_lines = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(of_two_lines.path(), "a\n").unwrap();
    let token_file = format!("tokenFile: '{}'", of_two_lines.path().display());
    for (cluster, user, words) in [
        (server, r#"token: "a\nb""#, "token: it has a character"),
        (server, &token_file, "it has a character"),
        (&by_socks, "", "proxy-url must be http://"),
    ] {
        let file = kubeconfig(cluster, user);
        let refused = leasehold(&["sidecar", "--pod-uid=u", "--pod-name=p"])
            .arg(format!("--kubeconfig={}", file.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.starts_with("error: cannot use the kubeconfig"),
            "{said}"
        );
        assert!(said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn the_definitions_are_printed() {
    let printed = run(&["crd"]);
    assert!(printed.status.success());
    let expected = leasehold::crd::all_as_yaml().unwrap();
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
}

/// A sidecar without a cluster.
struct Stranded {
    process: Child,
    log: BufReader<ChildStderr>,
    _kubeconfig: tempfile::NamedTempFile,
}

impl Stranded {
    fn start(kubeconfig: tempfile::NamedTempFile) -> Self {
        let flags = ["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"];
        Self::with(kubeconfig, &flags)
    }

    fn with(kubeconfig: tempfile::NamedTempFile, flags: &[&str]) -> Self {
        Self::in_environment(kubeconfig, flags, &[])
    }

    fn in_environment(
        kubeconfig: tempfile::NamedTempFile,
        flags: &[&str],
        variables: &[(String, String)],
    ) -> Self {
        let mut command = leasehold(&["sidecar", "--log-format=json"]);
        command
            .args(["--pod-name=p", "--pod-uid=u"])
            .args(flags)
            .envs(variables.iter().cloned())
            .arg(format!("--kubeconfig={}", kubeconfig.path().display()));
        Self::of(&mut command, kubeconfig)
    }

    fn of(command: &mut Command, kubeconfig: tempfile::NamedTempFile) -> Self {
        // The greeting of `dev` is not needed here.
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        Self {
            process,
            log,
            _kubeconfig: kubeconfig,
        }
    }

    /// Returns the next line of the log with this message.
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
        signal(&self.process, name);
    }
}

impl Drop for Stranded {
    fn drop(&mut self) {
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

fn signal(process: &Child, name: &str) {
    let pid = process.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.unwrap().success());
}

fn url(listening: &Value, path: &str) -> String {
    format!("http://{}{path}", listening["address"].as_str().unwrap())
}

async fn verify(listening: &Value) -> (u16, Value) {
    let token = serde_json::json!({"resource": "r", "fencingToken": 1});
    let request = reqwest::Client::new().post(url(listening, "/v1/fencing/verify"));
    let answer = request.json(&token).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Accepts one connection, and acts as a proxy and as the API server behind it. Returns the two
/// request heads.
async fn proxy_and_server(listener: TcpListener) -> [String; 2] {
    let (mut connection, _) = listener.accept().await.unwrap();
    let connect = head(&mut connection).await;
    let open = b"HTTP/1.1 200 Connection established\r\n\r\n";
    connection.write_all(open).await.unwrap();
    let get = head(&mut connection).await;
    let refusal = r#"{"kind": "Status", "message": "seen behind the proxy", "code": 403}"#;
    let length = refusal.len();
    let answer = format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {length}\r\n\r\n{refusal}");
    connection.write_all(answer.as_bytes()).await.unwrap();
    [connect, get]
}

async fn head(connection: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(connection.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn kubeconfig_proxy_is_used_and_its_token_trimmed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let served = tokio::spawn(proxy_and_server(listener));
    let cluster = format!("server: 'http://api.invalid:6443', proxy-url: 'http://{proxy}'");
    let mut sidecar = Stranded::start(kubeconfig(&cluster, r#"token: "secret\n""#));
    let (status, problem) = verify(&sidecar.logged("listening")).await;
    assert_eq!((status, &problem["code"]), (403, &"forbidden".into()));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("seen behind the proxy"), "{detail}");
    let [connect, get] = served.await.unwrap();
    assert!(
        connect.starts_with("CONNECT api.invalid:6443 HTTP/1.1\r\n"),
        "{connect}"
    );
    assert!(!connect.contains("secret"), "{connect}");
    assert!(get.starts_with("GET /apis/leasehold.dev/"), "{get}");
    assert!(get.contains("authorization: Bearer secret\r\n"), "{get}");
}

#[tokio::test]
async fn sidecar_without_an_api_server_serves_and_stops_cleanly() {
    // No server listens there.
    let mut sidecar = Stranded::start(kubeconfig("server: 'http://127.0.0.1:9'", ""));
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
    let ready = reqwest::get(url(&admin, "/readyz")).await.unwrap();
    assert_eq!(ready.status(), 200, "an outage makes no pod unready");
    let (status, problem) = verify(&api).await;
    assert_eq!(
        (status, &problem["code"]),
        (503, &"store_unavailable".into())
    );

    sidecar.signal("TERM");
    sidecar.logged("stopped");
    assert_eq!(sidecar.process.wait().unwrap().code(), Some(0));
}

//! The script `with-lock.sh` of examples/kubernetes, unchanged, with `leasehold dev`: the file that
//! users copy.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::{Dev, Method, PATIENCE, eventually, path_of, token};

/// Writes the process id of a child that has none of the script's pipes open.
const COMMAND_WITH_CHILD: &str = "sleep 1000 >/dev/null 2>&1 & echo $! > child; wait";
const MANIFEST: &str = include_str!("../../../examples/kubernetes/with-lock.yaml");

/// A `leasehold dev`, the script, and a directory for the files of its commands.
struct Setup {
    dev: Dev,
    home: TempDir,
}

impl Setup {
    async fn new() -> Self {
        // Even a slow machine loses no lock of this session.
        Self::with_session_ttl(60).await
    }

    async fn with_session_ttl(seconds: u8) -> Self {
        let home = tempfile::tempdir().unwrap();
        write_script(home.path());
        let session_ttl = format!("--session-ttl={seconds}");
        let flags = ["--fault-api", session_ttl.as_str()];
        let dev = Dev::start(&home.path().join("data"), &flags).await;
        Self { dev, home }
    }

    /// Starts `sh with-lock.sh RESOURCE 0 sh -c COMMAND` in the directory.
    fn start(&self, resource: &str, command: &str) -> Child {
        self.script(resource, "0", command).spawn().unwrap()
    }

    /// Returns the command `sh with-lock.sh RESOURCE WAIT sh -c COMMAND` in the directory.
    fn script(&self, resource: &str, wait: &str, command: &str) -> Command {
        let mut script = script_in(self.home.path());
        script.env("LEASEHOLD_URL", &self.dev.url);
        script.args([resource, wait, "sh", "-c", command]);
        script
    }

    /// Waits until this many callers wait for a lock.
    async fn until_waiting(&self, count: usize) {
        let greeting = self.dev.said("stdout");
        let url = greeting.split("metrics: ").nth(1).expect("an admin port");
        let url = format!("{}/metrics", url.split(')').next().unwrap());
        let line = format!("leasehold_callers_in_line {count}\n");
        eventually(async || {
            let metrics = self.dev.http.get(&url).send().await.unwrap();
            metrics.text().await.unwrap().contains(&line).then_some(())
        })
        .await;
    }

    /// Returns the content of this file, once the command has written a line.
    async fn written(&self, file: &str) -> String {
        let path = self.home.path().join(file);
        let line = async || fs::read_to_string(&path).ok().filter(|s| s.ends_with('\n'));
        eventually(line).await.trim().to_owned()
    }

    /// Returns the id of the newest lease. Only its app and the log have it.
    async fn lease_id(&self) -> String {
        let logged = async || {
            let log = self.dev.said("stderr");
            let lines = log.lines().rev();
            let mut events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
            events.find_map(|event| Some(event["leaseId"].as_str()?.to_owned()))
        };
        eventually(logged).await
    }
}

fn write_script(directory: &Path) {
    let manifest: Value = serde_yaml::from_str(MANIFEST).unwrap();
    let script = manifest["data"]["with-lock.sh"].as_str().unwrap();
    fs::write(directory.join("with-lock.sh"), script).unwrap();
}

fn script_in(directory: &Path) -> Command {
    let mut script = Command::new("sh");
    script
        .arg("with-lock.sh")
        .current_dir(directory)
        .env_remove("LEASEHOLD_URL")
        // The pod's own proxy variables, for requests to other hosts.
        .env("http_proxy", "http://127.0.0.1:1")
        .env("NO_PROXY", "example.com")
        .env("no_proxy", "example.com")
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    script
}

/// Returns the script's output and exit code, after its exit.
async fn ended(script: Child) -> Output {
    let ended = tokio::time::timeout(PATIENCE, script.wait_with_output()).await;
    ended.expect("the script must end").unwrap()
}

async fn send(signal: &str, process: u32) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", signal, &process.to_string()]).status();
    assert!(sent.await.unwrap().success());
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn is_running(process: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    // A zombie only waits for its parent.
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Waits until a killed process has ended.
async fn has_ended(process: &str) {
    eventually(async || (!is_running(process)).then_some(())).await;
}

#[tokio::test]
async fn command_gets_a_token_and_its_exit_code_is_returned() {
    let setup = Setup::new().await;
    let script = setup.start("job", "echo $FENCING_TOKEN; exit 7");
    let output = ended(script).await;
    assert_eq!(code(&output), Some(7), "{}", errors(&output));
    let sent: u64 = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    let next = setup.dev.acquire("job").await;
    assert!(
        token(&next) > sent,
        "the lock was released, and {sent} is older"
    );
}

#[tokio::test]
async fn held_lock_gives_exit_code_75_and_no_command_runs() {
    let setup = Setup::new().await;
    setup.dev.acquire("job").await;
    let script = setup.start("job", "echo ran > ran");
    let output = ended(script).await;
    assert_eq!(code(&output), Some(75));
    assert!(errors(&output).contains("lock_held"), "{}", errors(&output));
    assert!(!setup.home.path().join("ran").exists());
}

#[tokio::test]
async fn held_lock_gives_the_exit_code_of_exit_if_held() {
    let setup = Setup::new().await;
    setup.dev.acquire("job").await;
    let mut script = setup.script("job", "1", "echo ran > ran");
    let script = script.env("EXIT_IF_HELD", "0").spawn().unwrap();
    let output = ended(script).await;
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    assert!(errors(&output).contains("lock_held"), "{}", errors(&output));
    assert!(!setup.home.path().join("ran").exists());
}

#[tokio::test]
async fn waiting_script_runs_its_command_after_the_release() {
    let setup = Setup::new().await;
    let held = setup.dev.acquire("job").await;
    let script = setup.script("job", "240", "echo $FENCING_TOKEN").spawn();
    setup.until_waiting(1).await;
    let released = setup.dev.call(Method::DELETE, &path_of(&held), None).await;
    assert_eq!(released.0, 204, "{}", released.1);
    let output = ended(script.unwrap()).await;
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    let sent: u64 = printed.trim().parse().unwrap();
    assert!(sent > token(&held), "{sent} after {held}");
}

#[tokio::test]
async fn script_that_is_stopped_while_it_waits_gets_no_lock() {
    let setup = Setup::new().await;
    let held = setup.dev.acquire("job").await;
    let script = setup
        .script("job", "240", "echo ran > ran")
        .spawn()
        .unwrap();
    setup.until_waiting(1).await;
    send("TERM", script.id().unwrap()).await;
    let output = ended(script).await;
    assert_eq!(code(&output), Some(143), "{}", errors(&output));
    setup.until_waiting(0).await;
    let released = setup.dev.call(Method::DELETE, &path_of(&held), None).await;
    assert_eq!(released.0, 204, "{}", released.1);
    setup.dev.acquire("job").await;
    assert!(!setup.home.path().join("ran").exists());
}

#[tokio::test]
async fn lost_lock_kills_the_command_and_its_children() {
    let setup = Setup::new().await;
    let script = setup.start("job", COMMAND_WITH_CHILD);
    let child = setup.written("child").await;
    assert!(is_running(&child));
    let lease = json!({"leaseId": setup.lease_id().await});
    let lost = setup.dev.post("/dev/faults/lose-lease", lease).await;
    assert_eq!(lost.0, 204, "{}", lost.1);
    let output = ended(script).await;
    assert_eq!(code(&output), Some(1));
    let errors = errors(&output);
    assert!(
        errors.contains("lost the lock job") && errors.contains("lease_lost"),
        "{errors}"
    );
    has_ended(&child).await;
}

#[tokio::test]
async fn hanging_sidecar_ends_the_command_within_its_validity() {
    let setup = Setup::with_session_ttl(5).await;
    let script = setup.start("job", COMMAND_WITH_CHILD);
    let child = setup.written("child").await;
    send("STOP", setup.dev.process.id()).await;
    let output = ended(script).await;
    assert_eq!(code(&output), Some(1));
    let errors = errors(&output);
    assert!(errors.contains("could not be renewed"), "{errors}");
    has_ended(&child).await;
}

#[tokio::test]
async fn command_ends_at_sigterm_before_its_lock_is_free() {
    let setup = Setup::new().await;
    let on_term =
        "curl -s --noproxy 127.0.0.1 $LEASEHOLD_URL/v1/locks > locks; echo >> locks; exit 3";
    let command = format!("trap '{on_term}' TERM; echo > ready; while :; do sleep 0.1; done");
    let script = setup.start("job", &command);
    setup.written("ready").await;
    send("TERM", script.id().unwrap()).await;
    let output = ended(script).await;
    assert_eq!(code(&output), Some(3), "{}", errors(&output));
    let locks: Value = serde_json::from_str(&setup.written("locks").await).unwrap();
    assert!(
        locks["locks"][0]["holder"].is_object(),
        "held at SIGTERM: {locks}"
    );
    setup.dev.acquire("job").await;
}

#[tokio::test]
async fn missing_sidecar_is_named_as_the_reason() {
    let home = tempfile::tempdir().unwrap();
    write_script(home.path());
    let mut script = script_in(home.path());
    let output = script.args(["job", "0", "true"]).output().await.unwrap();
    assert_ne!(code(&output), Some(0));
    assert!(
        errors(&output).contains("Does the pod have a sidecar?"),
        "{}",
        errors(&output)
    );
}

//! `leasehold exec` without a sidecar and without a cluster that answers: the command is not run, and one
//! sentence says why.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{kubeconfig, leasehold};
use crate::dev::eventually;

const SERVER: &str = "server: 'http://127.0.0.1:9'";
const UNAVAILABLE: i32 = 202;
const USAGE: i32 = 203;

/// Runs an exec, whose command must not run and which must leave no files. Returns its exit code and its
/// output.
fn exec(flags: &[&str], adjust: impl FnOnce(&mut Command)) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let mut command = leasehold(&["exec", "--lock", "job"]);
    command
        .args(flags)
        .args(["--", "echo", "it ran"])
        .env("HOME", "/nonexistent")
        .env("TMPDIR", directory.path())
        .env_remove("LEASEHOLD_URL");
    adjust(&mut command);
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert!(stdout.is_empty(), "{said}");
    let left = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "{said}");
    (status.code(), said)
}

/// Returns a user whose credentials a script prints.
fn plugin(script: &str) -> String {
    format!(
        "exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, \
         args: [-c, '{script}'], interactiveMode: IfAvailable}}"
    )
}

fn flag(path: &Path) -> String {
    format!("--kubeconfig={}", path.display())
}

#[test]
fn cluster_must_be_named_outside_of_a_pod() {
    for adjust in [
        |_: &mut Command| {},
        |command: &mut Command| {
            command.env("LEASEHOLD_URL", "").env("KUBECONFIG", "");
        },
    ] {
        let (code, said) = exec(&[], adjust);
        assert_eq!(code, Some(USAGE), "{said}");
        assert!(
            said.starts_with("error: no server: set LEASEHOLD_URL"),
            "{said}"
        );
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn flags_for_a_cluster_are_refused_with_a_sidecar() {
    let with_sidecar = |command: &mut Command| {
        command.env("LEASEHOLD_URL", "http://127.0.0.1:9");
    };
    for flag in [
        "--namespace=a",
        "--session-ttl=5",
        "--token-floor=1",
        "--context=c",
    ] {
        let (code, said) = exec(&[flag], with_sidecar);
        assert_eq!(code, Some(USAGE), "{said}");
        let (name, _) = flag.split_once('=').unwrap();
        assert!(
            said.starts_with(&format!("error: {name} is for exec without")),
            "{said}"
        );
    }
    // A variable may be there for other programs.
    let (code, said) = exec(&["--wait-timeout=1"], |command| {
        with_sidecar(command.env("LEASEHOLD_NAMESPACE", "a"));
    });
    assert_eq!(code, Some(UNAVAILABLE), "{said}");
}

#[test]
fn unusable_cluster_is_one_sentence() {
    let broken = kubeconfig(SERVER, r#"token: "a\nb""#);
    let without_login = kubeconfig(SERVER, &plugin("echo SECRET; exit 1"));
    let without_json = kubeconfig(SERVER, &plugin("echo SECRET"));
    let by_name = kubeconfig(SERVER, "");
    for (flags, code, words) in [
        (
            vec!["--kubeconfig=/nonexistent".to_owned()],
            USAGE,
            "cannot read the kubeconfig",
        ),
        (vec![flag(broken.path())], USAGE, "it has a character"),
        (
            vec![flag(by_name.path()), "--context=no".to_owned()],
            USAGE,
            "no",
        ),
        (
            vec![flag(without_login.path())],
            UNAVAILABLE,
            "the credential plugin of the kubeconfig failed",
        ),
        (
            vec![flag(without_json.path())],
            UNAVAILABLE,
            "printed no ExecCredential",
        ),
    ] {
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        let (ended, said) = exec(&flags, |_| {});
        assert_eq!(ended, Some(code), "{flags:?}: {said}");
        assert!(said.contains(words), "{flags:?}: {said}");
        assert!(!said.contains("SECRET"), "{said}");
        assert_eq!(said.lines().count(), 1, "{flags:?}: {said}");
    }
}

#[test]
fn api_server_that_cannot_be_reached_is_waited_for() {
    let unreachable = kubeconfig(SERVER, "");
    let flags = [flag(unreachable.path()), "--wait-timeout=5".to_owned()];
    let (code, said) = exec(&[&flags[0], &flags[1]], |_| {});
    assert_eq!(code, Some(UNAVAILABLE), "{said}");
    let last = said.lines().last().unwrap();
    assert!(
        last.starts_with("error: no answer from the API server"),
        "{said}"
    );
    assert!(said.contains("API server not reached; retrying"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[tokio::test]
async fn credential_plugin_that_hangs_ends_with_exec() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("pid");
    // It reads standard input, and signals end it, as without exec.
    let script = format!(
        "cat; timeout 0.1 sleep 1000; echo $$ >{0}.new; mv {0}.new {0}; sleep 1000",
        file.display()
    );
    let hangs = kubeconfig(SERVER, &plugin(&script));
    let mut exec = leasehold(&["exec", "--lock", "job", &flag(hangs.path()), "--", "true"])
        .env("TMPDIR", directory.path())
        .env_remove("LEASEHOLD_URL")
        .spawn()
        .unwrap();
    while !file.exists() {
        assert_eq!(exec.try_wait().unwrap(), None);
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_child(&exec), Signal::TERM).unwrap();
    assert_eq!(exec.wait().unwrap().code(), Some(128 + 15));
    let pid = fs::read_to_string(file).unwrap();
    // SIGKILL was sent. On a busy machine it takes a moment.
    eventually(async || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    })
    .await;
}

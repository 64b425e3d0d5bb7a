//! `leasehold exec` beside `leasehold dev`: exit codes, signals, leftovers, and what is left of the
//! command when one of its two processes is killed or stopped.

mod local;
mod once;
mod processes;
mod slots;
mod terminal;

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use serde_json::json;

use super::{Dev, eventually};

/// A command that ends for SIGKILL alone. It says its process id first.
const DEAF: &str = r#"trap "" TERM; echo $$ >pid; while :; do sleep 0.1; done"#;

/// A command that runs until a file exists.
const UNTIL_END: &str = "echo $$ >pid; while [ ! -e end ]; do sleep 0.05; done";

/// A server, and a folder for the files of the commands.
struct Server {
    dev: Dev,
    folder: tempfile::TempDir,
}

/// A running `leasehold exec`.
struct Exec {
    process: Child,
    folder: PathBuf,
}

impl Server {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let dev = Dev::start(&folder.path().join("data"), &[]).await;
        Self { dev, folder }
    }

    /// Returns a command that runs a shell script in the folder, under the lock `job`.
    fn exec(&self, flags: &[&str], script: &str) -> Command {
        self.exec_of(flags, &["sh", "-c", script])
    }

    fn exec_of(&self, flags: &[&str], command: &[&str]) -> Command {
        let mut exec = exec_in(self.folder.path(), "job");
        exec.args(flags).arg("--").args(command);
        exec.env("LEASEHOLD_URL", &self.dev.url);
        exec
    }

    fn run(&self, flags: &[&str], script: &str) -> (Option<i32>, String) {
        ended(&self.exec(flags, script).output().unwrap())
    }

    fn spawn(&self, flags: &[&str], script: &str) -> Exec {
        Exec::start(self.exec(flags, script), self.folder.path())
    }

    /// Starts an exec, and waits until its command runs, which writes its process id to `pid`.
    async fn running(&self, script: &str) -> Exec {
        let exec = self.spawn(&[], script);
        exec.pid("pid").await;
        exec
    }

    /// Fails if a directory of a loss file is left.
    fn must_be_tidy(&self) {
        let names = fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = names
            .filter(|name| name.starts_with("leasehold-exec"))
            .collect();
        assert_eq!(left, [""; 0]);
    }
}

/// Returns an exec of a lock in a folder, which lacks its command.
fn exec_in(folder: &Path, lock: &str) -> Command {
    // A background job of a script ignores some signals, and so do the tests in it.
    let mut exec = Command::new("env");
    exec.args(["--default-signal", env!("CARGO_BIN_EXE_leasehold")])
        .args(["exec", "--lock", lock])
        .env("TMPDIR", folder)
        .current_dir(folder)
        .stdin(Stdio::null());
    exec
}

impl Exec {
    fn start(mut command: Command, folder: &Path) -> Self {
        let process = command.stderr(Stdio::null()).spawn().unwrap();
        let folder = folder.to_owned();
        Self { process, folder }
    }

    fn front(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// The second process, once it runs.
    async fn keeper(&self) -> Pid {
        let front = self.front();
        eventually(async || child_of(front, "exec-keeper")).await
    }

    /// The process id in a file that the command writes.
    async fn pid(&self, file: &str) -> Pid {
        let path = self.folder.join(file);
        eventually(async || {
            let text = fs::read_to_string(&path).ok()?;
            Pid::from_raw(text.strip_suffix('\n')?.parse().ok()?)
        })
        .await
    }

    fn ended(mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // The second process ends everything else.
        let _ended_before = self.process.kill();
        let _reaped_before = self.process.wait();
    }
}

fn ended(output: &Output) -> (Option<i32>, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Returns a child whose command line contains a text.
fn child_of(parent: Pid, text: &str) -> Option<Pid> {
    let children = Command::new("pgrep")
        .args(["-P", &parent.to_string(), "-f", text])
        .output();
    let text = String::from_utf8(children.unwrap().stdout).unwrap();
    Pid::from_raw(text.lines().next()?.parse().ok()?)
}

/// Returns whether a process runs, zombies excepted.
fn runs(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, state)| state);
    !state.is_empty() && !state.starts_with('Z')
}

fn lines_of(folder: &Path, file: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn exit_code_is_the_commands() {
    let server = Server::start().await;
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("no-such-command", 127),
    ] {
        let (ended, said) = server.run(&[], script);
        assert_eq!(ended, Some(code), "{script}: {said}");
        assert!(said.contains("lock released"), "{script}: {said}");
    }
    for (command, code, sentence) in [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("/etc/passwd", 126, "/etc/passwd cannot be executed"),
    ] {
        let output = server.exec_of(&[], &[command]).output().unwrap();
        let (ended, said) = ended(&output);
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
    server.must_be_tidy();
}

#[tokio::test]
async fn command_has_lease_and_standard_streams() {
    let server = Server::start().await;
    let script = r#"cat; printf %s "$LEASEHOLD_RESOURCE" >resource
        test -n "$LEASEHOLD_TOKEN" && test ! -e "$LEASEHOLD_LOST_FILE" &&
        curl -sf "$LEASEHOLD_URL/v1/locks/$LEASEHOLD_LEASE_ID" >lease"#;
    let input = server.folder.path().join("input");
    fs::write(&input, "from standard input").unwrap();
    let mut exec = server.exec(&[], script);
    let output = exec.stdin(fs::File::open(input).unwrap()).output().unwrap();
    let (ended, said) = ended(&output);
    assert_eq!(ended, Some(0), "{said}");
    assert_eq!(output.stdout, b"from standard input");
    let folder = server.folder.path();
    assert_eq!(lines_of(folder, "resource"), ["job"]);
    assert!(lines_of(folder, "lease")[0].contains(r#""resource":"job""#));
}

#[tokio::test]
async fn signals_reach_the_command() {
    let server = Server::start().await;
    let script = r#"for s in TERM INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s >>got" $s; done
        trap 'echo TERM >>got; exit 3' TERM
        echo $$ >pid; while :; do sleep 0.05; done"#;
    let exec = server.running(script).await;
    let got = server.folder.path().join("got");
    let mut expected = String::new();
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::TERM, "TERM"),
    ] {
        kill_process(exec.front(), signal).unwrap();
        expected.push_str(name);
        expected.push('\n');
        let expected = &expected;
        eventually(async || {
            let text = fs::read_to_string(&got).unwrap_or_default();
            (text == *expected).then_some(())
        })
        .await;
    }
    assert_eq!(exec.ended(), Some(3));
}

#[tokio::test]
async fn signal_ends_the_wait_for_the_lock() {
    let server = Server::start().await;
    let holder = server.running(DEAF).await;
    let waiter = server.spawn(&[], "echo ran >ran");
    waiter.keeper().await;
    kill_process(waiter.front(), Signal::TERM).unwrap();
    assert_eq!(waiter.ended(), Some(143));
    assert!(!server.folder.path().join("ran").exists());
    kill_process(holder.front(), Signal::KILL).unwrap();
    assert_eq!(server.run(&[], "true").0, Some(0));
}

#[tokio::test]
async fn held_lock_is_answered_by_if_held() {
    let server = Server::start().await;
    let holder = server.running(UNTIL_END).await;
    let flags: [(&[&str], _, _); 3] = [
        (&["--if-held=skip"], 0, "command skipped"),
        (&["--if-held=fail"], 200, "command not run"),
        (&["--wait-timeout=300ms"], 200, "wait timeout"),
    ];
    for (flags, code, sentence) in flags {
        let (ended, said) = server.run(flags, "echo ran >ran");
        assert_eq!(ended, Some(code), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
    assert!(!server.folder.path().join("ran").exists());
    let waiter = server.spawn(&[], "echo ran >ran");
    fs::write(server.folder.path().join("end"), "").unwrap();
    assert_eq!(holder.ended(), Some(0));
    assert_eq!(waiter.ended(), Some(0));
    assert!(server.folder.path().join("ran").exists());
}

#[tokio::test]
async fn long_command_is_ended_by_max_run() {
    let server = Server::start().await;
    let (ended, said) = server.run(&["--max-run=500ms"], DEAF);
    assert_eq!(ended, Some(204), "{said}");
    assert!(
        said.contains("SIGTERM") && said.contains("SIGKILL"),
        "{said}"
    );
}

#[tokio::test]
async fn lock_is_kept_for_its_least_time() {
    let server = Server::start().await;
    let exec = server.spawn(&["--at-least-for=2s"], "echo $$ >pid");
    let command = exec.pid("pid").await;
    eventually(async || (!runs(command)).then_some(())).await;
    let (ended, said) = server.run(&["--if-held=fail"], "true");
    assert_eq!(ended, Some(200), "{said}");
    assert_eq!(exec.ended(), Some(0));
    assert_eq!(server.run(&["--if-held=fail"], "true").0, Some(0));
}

#[tokio::test]
async fn command_that_ended_keeps_its_exit_code() {
    let server = Server::start().await;
    let exec = server.spawn(&["--at-least-for=1h"], "echo $$ >pid; exit 6");
    let command = exec.pid("pid").await;
    eventually(async || (!runs(command)).then_some(())).await;
    // Renewals arrive after that, too. Then none does, and the lease ends.
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.dev.signal("STOP");
    assert_eq!(exec.ended(), Some(6));
    server.dev.signal("CONT");
}

#[tokio::test]
async fn lease_that_the_command_releases_is_lost() {
    let server = Server::start().await;
    let release = r#"curl -sf -X DELETE "$LEASEHOLD_URL/v1/locks/$LEASEHOLD_LEASE_ID""#;
    let script = format!("{release}; {DEAF}");
    let (ended, said) = server.run(&["--on-lost=kill"], &script);
    assert_eq!(ended, Some(201), "{said}");
    assert!(said.contains("lease lost"), "{said}");
}

#[tokio::test]
async fn unread_standard_error_changes_nothing() {
    let server = Server::start().await;
    let run = |stderr: io::PipeWriter| {
        let mut exec = server.exec(&[], "exit 3");
        exec.stderr(stderr).status().unwrap().code()
    };
    let (reader, closed) = io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(closed), Some(3));
    let (_reader, mut full) = io::pipe().unwrap();
    // The capacity of a pipe: pipe(7).
    io::Write::write_all(&mut full, &vec![b'x'; 65_536]).unwrap();
    assert_eq!(run(full), Some(3));
}

#[tokio::test]
async fn unreachable_server_is_not_a_held_lock() {
    let server = Server::start().await;
    let closed = "--url=http://127.0.0.1:1";
    for if_held in ["wait", "skip", "fail"] {
        let flags = [closed, "--wait-timeout=300ms", "--if-held", if_held];
        let (ended, said) = server.run(&flags, "true");
        assert_eq!(ended, Some(202), "{if_held}: {said}");
        let sentence = "no answer from the sidecar or `leasehold dev` at http://127.0.0.1:1";
        assert!(said.contains(sentence), "{said}");
        // It is logged once, and it is the error.
        assert_eq!(said.matches(sentence).count(), 2, "{said}");
    }
}

#[tokio::test]
async fn risk_that_passes_ends_no_command() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--fault-api", "--session-ttl=20"];
    let dev = Dev::start(&folder.path().join("data"), &flags).await;
    let server = Server { dev, folder };
    let log = server.folder.path().join("log");
    let mut exec = server.exec(&[], UNTIL_END);
    let exec = exec
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let exec = Exec {
        process: exec,
        folder: server.folder.path().to_owned(),
    };
    exec.pid("pid").await;
    server.dev.ask_for("at-risk", json!({"seconds": 600})).await;
    let said = async |what: &str| {
        fs::read_to_string(&log)
            .unwrap()
            .contains(what)
            .then_some(())
    };
    eventually(async || said("lease at risk").await).await;
    server.dev.ask_for("heal", json!({})).await;
    // Past the moment at which SIGTERM was due.
    tokio::time::sleep(Duration::from_secs(6)).await;
    fs::write(server.folder.path().join("end"), "").unwrap();
    assert_eq!(
        exec.ended(),
        Some(0),
        "{}",
        fs::read_to_string(&log).unwrap()
    );
}

#[tokio::test]
async fn lost_lease_ends_the_command_as_on_lost_says() {
    let script = r#"trap 'cat "$LEASEHOLD_LOST_FILE" >got; exit 0' TERM; echo $$ >pid
        while [ ! -e end ]; do sleep 0.05; done; cat "$LEASEHOLD_LOST_FILE" >got; exit 4"#;
    for (on_lost, code, got) in [
        ("term", 201, true),
        ("kill", 201, false),
        ("ignore", 4, true),
    ] {
        let mut server = Server::start().await;
        let folder = server.folder.path().to_owned();
        let exec = server.spawn(&[&format!("--on-lost={on_lost}")], script);
        let command = exec.pid("pid").await;
        server.dev.process.kill().unwrap();
        if on_lost == "ignore" {
            let reported = || {
                fs::read_dir(&folder)
                    .unwrap()
                    .any(|entry| entry.unwrap().path().join("lost").exists())
            };
            eventually(async || reported().then_some(())).await;
            assert!(runs(command));
            fs::write(folder.join("end"), "").unwrap();
        }
        assert_eq!(exec.ended(), Some(code), "{on_lost}");
        assert!(!runs(command), "{on_lost}");
        let seen = fs::read_to_string(folder.join("got")).unwrap_or_default();
        assert_eq!(seen.contains("lease"), got, "{on_lost}: {seen:?}");
    }
}

#[tokio::test]
async fn wrong_use_is_one_sentence_with_its_code() {
    let server = Server::start().await;
    let table: [(&[&str], &[&str], _, _); 7] = [
        (&[], &[""], 203, "the command is empty"),
        (&[], &[], 203, "required arguments were not provided"),
        (&["--lock="], &["true"], 203, "--lock"),
        (&["--wait-timeout=soon"], &["true"], 203, "seconds"),
        (&["--grace=100ms"], &["true"], 203, "at least 500ms"),
        (
            &["--url=https://localhost"],
            &["true"],
            203,
            "http://HOST:PORT",
        ),
        (&["--no-such-flag"], &["true"], 203, "--no-such-flag"),
    ];
    for (flags, command, code, sentence) in table {
        let output = server.exec_of(flags, command).output().unwrap();
        let (ended, said) = ended(&output);
        assert_eq!(ended, Some(code), "{flags:?}: {said}");
        assert!(said.contains(sentence), "{flags:?}: {said}");
    }
    let mut exec = server.exec(&[], "true");
    let output = exec.env_remove("LEASEHOLD_URL").output().unwrap();
    let (ended, said) = ended(&output);
    assert_eq!(ended, Some(203), "{said}");
    assert!(said.contains("set LEASEHOLD_URL"), "{said}");
    // Closed standard output, and a folder that cannot be written.
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        r#"exec "$0" "$@" >&-"#,
        env!("CARGO_BIN_EXE_leasehold"),
    ]);
    shell.args(["exec", "--lock=job", "--url", &server.dev.url, "--", "true"]);
    let output = shell.output().unwrap();
    assert_eq!(
        (output.status.code(), output.status.signal()),
        (Some(0), None)
    );
}

//! `--data-dir`: the execs of a directory share a server that none of them outlives, and that outlives
//! each of them.

use std::io::BufRead as _;
use std::os::unix::process::CommandExt as _;

use rustix::process::kill_process_group;

use super::*;

/// Returns a command that fails while a process runs.
fn only_after(process: Pid) -> String {
    format!("kill -0 {process} && exit 9; exit 0")
}

/// A machine without a service.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("locks")
    }

    fn exec_of(&self, lock: &str, flags: &[&str], script: &str) -> Command {
        self.exec_with("locks", lock, flags, script)
    }

    fn exec_with(&self, directory: &str, lock: &str, flags: &[&str], script: &str) -> Command {
        let mut exec = exec_in(self.folder.path(), lock);
        exec.args(["--data-dir", directory]).args(flags);
        exec.args(["--", "sh", "-c", script]);
        exec.env("LEASEHOLD_SESSION_TTL", "3");
        exec
    }

    fn run(&self, flags: &[&str], script: &str) -> (Option<i32>, String) {
        ended(&self.exec_of("job", flags, script).output().unwrap())
    }

    /// Starts an exec, and waits until its command runs, which writes its process id to `file`.
    async fn running(&self, lock: &str, script: &str, file: &str) -> Exec {
        let exec = Exec::start(self.exec_of(lock, &[], script), self.folder.path());
        exec.pid(file).await;
        exec
    }

    async fn deaf(&self) -> Exec {
        self.running("job", DEAF, "pid").await
    }

    /// Returns the process that has the directory, if there is one.
    fn server(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.data().join("lock")).unwrap_or_default();
        Pid::from_raw(text.trim().parse().ok()?)
    }

    /// Waits until no process uses the directory, and its socket is removed.
    async fn must_become_quiet(&self) {
        let socket = self.data().join("socket");
        eventually(async || (self.server().is_none() && !socket.exists()).then_some(())).await;
    }
}

#[tokio::test]
async fn server_stays_until_the_last_exec_has_ended() {
    let machine = Machine::new();
    // With another open file, in a process group of its own, as a shell starts its jobs.
    let first = machine.exec_of("first", &[], "echo $$ >first; exec sleep 600");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "exec \"$@\" 9>&1", "sh"])
        .arg(first.get_program())
        .args(first.get_args());
    shell.envs(
        first
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let mut first = shell
        .current_dir(machine.folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let marker = machine.folder.path().join("first");
    eventually(async || marker.exists().then_some(())).await;
    let server = machine.server().unwrap();
    let second = machine
        .running("second", "echo $$ >second; exec sleep 600", "second")
        .await;
    assert_eq!(machine.server(), Some(server));

    kill_process_group(Pid::from_child(&first), Signal::INT).unwrap();
    // A reader of the output does not wait for the server.
    let mut output = first.stdout.take().unwrap();
    let reader = std::thread::spawn(move || io::copy(&mut output, &mut io::sink()));
    eventually(async || reader.is_finished().then_some(())).await;
    assert_eq!(first.wait().unwrap().code(), Some(130));
    assert_eq!(machine.server(), Some(server));
    assert!(runs(second.pid("second").await), "it still has its lock");
    let folder = fs::read_link(format!("/proc/{server}/cwd")).unwrap();
    assert_eq!(folder, Path::new("/"));

    kill_process(second.front(), Signal::TERM).unwrap();
    assert_eq!(second.ended(), Some(143));
    machine.must_become_quiet().await;
    eventually(async || (!runs(server)).then_some(())).await;
}

#[tokio::test]
async fn execs_that_start_at_once_take_turns_with_rising_tokens() {
    let machine = Machine::new();
    let folder = machine.folder.path();
    let script = "mkdir busy || exit 9; echo $LEASEHOLD_TOKEN >>tokens; rmdir busy";
    for round in 1..=5 {
        let start = |_| {
            machine
                .exec_of("job", &["--quiet"], script)
                .spawn()
                .unwrap()
        };
        let execs: Vec<_> = (0..8).map(start).collect();
        for mut exec in execs {
            assert_eq!(exec.wait().unwrap().code(), Some(0));
        }
        let tokens: Vec<u64> = lines_of(folder, "tokens")
            .iter()
            .map(|token| token.parse().unwrap())
            .collect();
        assert_eq!(tokens.len(), round * 8);
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    }
    machine.must_become_quiet().await;
}

#[tokio::test]
async fn command_of_a_killed_server_ends_before_the_next_begins() {
    let machine = Machine::new();
    let first = machine.deaf().await;
    let command = first.pid("pid").await;
    let script = only_after(command);
    let mut waits = machine.exec_of("job", &["--log-format=json"], &script);
    let mut waits = waits.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = io::BufReader::new(waits.stderr.take().unwrap()).lines();
    let is_waiting = |line: io::Result<String>| line.unwrap().contains("waiting");
    assert!(log.by_ref().any(is_waiting));
    kill_process(machine.server().unwrap(), Signal::KILL).unwrap();
    // A new one may still find the server that is killed. Both start the next one.
    let (code, said) = machine.run(&[], &script);
    assert_eq!(code, Some(0), "{said}");
    // A full pipe would block it.
    log.for_each(drop);
    assert_eq!(waits.wait().unwrap().code(), Some(0));
    assert_eq!(first.ended(), Some(201));
    machine.must_become_quiet().await;
}

#[tokio::test]
async fn server_stays_for_the_command_of_a_killed_exec() {
    let machine = Machine::new();
    let exec = machine.deaf().await;
    let command = exec.pid("pid").await;
    kill_process(exec.front(), Signal::KILL).unwrap();
    // The second process ends the command, and then releases the lock.
    let (code, said) = machine.run(&[], &only_after(command));
    assert_eq!(code, Some(0), "{said}");
    machine.must_become_quiet().await;

    fs::remove_file(machine.folder.path().join("pid")).unwrap();
    let exec = machine.deaf().await;
    kill_process(exec.keeper().await, Signal::KILL).unwrap();
    assert_eq!(exec.ended(), Some(201));
    machine.must_become_quiet().await;
    let (code, said) = machine.run(&["--if-held=fail"], "true");
    assert_eq!(code, Some(0), "{said}");
    machine.must_become_quiet().await;
}

#[tokio::test]
async fn lease_that_a_command_left_outlives_the_server() {
    let machine = Machine::new();
    let acquire = r#"curl -sf --unix-socket locks/socket http://localhost/v1/locks/acquire \
        -H 'content-type: application/json' -d '{"resource":"left","ttlSeconds":2}'"#;
    let (code, said) = machine.run(&[], acquire);
    assert_eq!(code, Some(0), "{said}");
    machine.must_become_quiet().await;
    let mut left = machine.exec_of("left", &[], "true");
    let (code, said) = ended(&left.output().unwrap());
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("lock held; waiting"), "{said}");
}

#[test]
fn command_locks_more_in_its_directory() {
    let machine = Machine::new();
    let nested = format!(
        "{} exec --data-dir locks --lock other -- sh -c 'echo $LEASEHOLD_RESOURCE >inner'",
        env!("CARGO_BIN_EXE_leasehold")
    );
    let (code, said) = machine.run(&[], &nested);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(lines_of(machine.folder.path(), "inner"), ["other"]);
}

#[tokio::test]
async fn dev_is_the_server_of_its_directory() {
    let machine = Machine::new();
    let dev = Dev::start(&machine.data(), &[]).await;
    let (code, said) = machine.run(&[], "true");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(machine.server(), Some(Pid::from_child(&dev.process)));
}

#[tokio::test]
async fn unusable_directory_is_reported() {
    let machine = Machine::new();
    let elsewhere = format!(
        "--unix-socket={}",
        machine.folder.path().join("s").display()
    );
    let _dev = Dev::start(&machine.data(), &[&elsewhere]).await;
    let (code, said) = machine.run(&[], "true");
    assert_eq!(code, Some(202), "{said}");
    assert!(said.contains("is in use by another process"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");

    let machine = Machine::new();
    fs::create_dir(machine.data()).unwrap();
    fs::write(machine.data().join("leasehold.redb"), "something else").unwrap();
    let (code, said) = machine.run(&[], "true");
    assert_eq!(code, Some(202), "{said}");
    assert!(
        said.contains("its server did not start") && said.contains("is damaged"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");

    fs::write(machine.folder.path().join("file"), "").unwrap();
    let long = "x".repeat(100);
    for (directory, flags, sentence) in [
        (&*long, &[][..], "use at most 100 bytes"),
        ("file", &[], "it is not a directory"),
        (
            "locks",
            &["--context=c"],
            "--context is for exec in a cluster",
        ),
    ] {
        let output = machine.exec_with(directory, "job", flags, "true").output();
        let (code, said) = ended(&output.unwrap());
        assert_eq!(code, Some(203), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
    let mut beside_a_url = machine.exec_of("job", &[], "true");
    let output = beside_a_url
        .env("LEASEHOLD_URL", "http://127.0.0.1:1")
        .output();
    let (code, said) = ended(&output.unwrap());
    assert_eq!(code, Some(203), "{said}");
    assert!(
        said.contains("--data-dir is for exec without a sidecar"),
        "{said}"
    );
}

/// Runs the jobs as cron does: by `sh`, in the home directory, with few variables.
#[test]
fn jobs_of_the_example_run_as_it_says() {
    let machine = Machine::new();
    let home = machine.folder.path();
    fs::create_dir(home.join("bin")).unwrap();
    let run = |job: &str| format!("echo {job} >>\"$HOME/runs\"");
    for (program, script) in [
        ("nightly.sh", run("nightly")),
        ("import.sh", run("import")),
        // Midnight may come between two runs.
        ("date", "echo 2026-04-01".into()),
    ] {
        let script = format!("#!/bin/sh\n{script}\n");
        let file = home.join("bin").join(program);
        fs::write(&file, script).unwrap();
        let made = Command::new("chmod").arg("+x").arg(file).status().unwrap();
        assert!(made.success());
    }
    let table = fs::read_to_string("examples/cron/crontab").unwrap();
    let variables = table.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        name.bytes()
            .all(|byte| byte.is_ascii_uppercase())
            .then_some((name, value))
    });
    let variables: Vec<_> = variables.collect();
    assert_eq!(variables.len(), 2);
    let binary = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().unwrap();
    let jobs = table.lines().filter(|line| line.contains("leasehold exec"));
    for (round, job) in [1, 2]
        .into_iter()
        .flat_map(|round| jobs.clone().map(move |job| (round, job)))
    {
        let command = job.splitn(6, ' ').last().unwrap().replace("\\%", "%");
        let mut cron = Command::new("sh");
        cron.arg("-c").arg(command).current_dir(home).env_clear();
        cron.env("HOME", home).envs(variables.iter().copied());
        let path = format!("{}:{}", home.join("bin").display(), binary.display());
        cron.env("PATH", format!("{path}:/usr/bin:/bin"));
        let output = cron.output().unwrap();
        assert!(output.stdout.is_empty(), "{round}: {job}: {output:?}");
        assert!(output.stderr.is_empty(), "{round}: {job}: {output:?}");
    }
    assert_eq!(lines_of(home, "runs"), ["nightly", "import", "import"]);
}

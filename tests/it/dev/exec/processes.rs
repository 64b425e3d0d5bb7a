//! Processes of `exec` and of its command that are killed, stopped or left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rustix::process::{Signal, geteuid, kill_process};

use super::super::eventually;
use super::{DEAF, Exec, Server, UNTIL_END, runs};

#[tokio::test]
async fn child_of_the_shell_before_exec_is_left_alone() {
    let server = Server::start().await;
    let exec = server.exec(&[], "exit 4");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", r#"sleep 1000 & echo $! >other; exec "$0" "$@""#])
        .arg(exec.get_program())
        .args(exec.get_args())
        .envs(
            exec.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(server.folder.path());
    let mut running = Exec {
        process: shell.spawn().unwrap(),
        folder: server.folder.path().to_owned(),
    };
    let other = running.pid("other").await;
    assert_eq!(running.process.wait().unwrap().code(), Some(4));
    assert!(runs(other));
    kill_process(other, Signal::KILL).unwrap();
}

#[tokio::test]
async fn killed_exec_leaves_no_process_and_no_lock() {
    let server = Server::start().await;
    for who in ["front", "keeper"] {
        let exec = server.spawn(&[], &format!("setsid sleep 1000 & echo $! >child; {DEAF}"));
        let command = [exec.pid("child").await, exec.pid("pid").await];
        let keeper = exec.keeper().await;
        let killed = if who == "front" { exec.front() } else { keeper };
        kill_process(killed, Signal::KILL).unwrap();
        // It gets the lock once no process is left.
        assert_eq!(server.run(&[], "true").0, Some(0));
        assert!(command.iter().all(|pid| !runs(*pid)), "{who}: {command:?}");
        assert_eq!(exec.ended(), (who == "keeper").then_some(201), "{who}");
        for file in ["pid", "child"] {
            fs::remove_file(server.folder.path().join(file)).unwrap();
        }
        eventually(async || (!runs(keeper)).then_some(())).await;
    }
    server.must_be_tidy();
}

#[tokio::test]
async fn command_dies_with_both_processes_of_exec() {
    let server = Server::start().await;
    let exec = server.spawn(&[], DEAF);
    let command = exec.pid("pid").await;
    let keeper = exec.keeper().await;
    // Neither can act: only the kernel does.
    for pid in [exec.front(), keeper] {
        kill_process(pid, Signal::STOP).unwrap();
    }
    for pid in [keeper, exec.front()] {
        kill_process(pid, Signal::KILL).unwrap();
    }
    eventually(async || (!runs(command)).then_some(())).await;
    assert_eq!(exec.ended(), None);
}

#[tokio::test]
async fn front_acts_for_a_stopped_keeper() {
    let server = Server::start().await;
    let exec = server.spawn(&[], DEAF);
    let command = exec.pid("pid").await;
    kill_process(exec.keeper().await, Signal::STOP).unwrap();
    assert_eq!(exec.ended(), Some(201));
    assert!(!runs(command));
    assert_eq!(server.run(&[], "true").0, Some(0));
}

#[tokio::test]
async fn stopped_front_keeps_command_and_lock() {
    let server = Server::start().await;
    let exec = server.running(UNTIL_END).await;
    kill_process(exec.front(), Signal::STOP).unwrap();
    // Longer than the session TTL of 3 s: without renewals this would get the lock.
    let (ended, said) = server.run(&["--wait-timeout=5s"], "true");
    assert_eq!(ended, Some(200), "{said}");
    fs::write(server.folder.path().join("end"), "").unwrap();
    assert_eq!(server.run(&[], "true").0, Some(0));
    kill_process(exec.front(), Signal::CONT).unwrap();
    assert_eq!(exec.ended(), Some(0));
}

#[tokio::test]
async fn processes_left_behind_end_before_the_release() {
    let server = Server::start().await;
    // The kernel cuts the name of the process inside of the last letter.
    let name = server.folder.path().join("aaaaaaaaaaaaaaé");
    fs::write(&name, "#!/bin/sh\necho $$ >named; sleep 1000; exit 1\n").unwrap();
    fs::set_permissions(&name, fs::Permissions::from_mode(0o755)).unwrap();
    let script = r"setsid ./aaaaaaaaaaaaaaé & sleep 1000 & echo $! >child; setsid sh -c 'echo $$ >other; exec sleep 1000' &
        while [ ! -s other ] || [ ! -s named ]; do sleep 0.05; done; exit 5";
    let exec = server.spawn(&[], script);
    let mut left = Vec::new();
    for file in ["child", "other", "named"] {
        left.push(exec.pid(file).await);
    }
    assert_eq!(exec.ended(), Some(5));
    assert!(left.iter().all(|pid| !runs(*pid)), "{left:?}");
}

#[tokio::test]
async fn first_process_of_a_namespace_reaps_orphans() {
    let server = Server::start().await;
    // An orphan has ended when /proc is read. Its session and process group are outside of the namespace.
    let script = r#"sh -c "sleep 0.1 & exit 0"; sleep 0.5
        ! cat /proc/[0-9]*/stat | grep ") Z " && echo $$ >pid && exit 9"#;
    let exec = server.exec(&[], script);
    let mut namespace = Command::new("unshare");
    if !geteuid().is_root() {
        namespace.args(["--user", "--map-root-user"]);
    }
    namespace
        .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
        .arg(exec.get_program())
        .args(exec.get_args())
        .envs(
            exec.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .current_dir(server.folder.path());
    let output = namespace.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(9), "{said}");
}

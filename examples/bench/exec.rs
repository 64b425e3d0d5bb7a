//! What a lock adds to a command that does nothing: `leasehold exec`, `flock` of util-linux and `etcdctl lock`.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::harness::{
    Binaries, Etcd, Exec, KubeVersion, Namespace, PATIENCE, Sidecar, directory, eventually,
};
use crate::rows::Rows;

const ROUNDS: usize = 50;
const WARM_UP: usize = 3;

const ALONE: &str = "true";
const FLOCK: &str = "flock FILE true";
const ETCD: &str = "etcdctl lock NAME true";
const BESIDE: &str = "leasehold exec, beside a sidecar";
const WITHOUT: &str = "leasehold exec, without a sidecar";
const ROWS: [&str; 5] = [ALONE, FLOCK, ETCD, BESIDE, WITHOUT];

/// Measures all in turns, and prints the memory of one exec of each kind.
pub(crate) async fn measure(binary: &str, namespace: &Namespace) -> Result<()> {
    let folder = directory()?.join("exec");
    std::fs::create_dir(&folder)?;
    let binaries = Binaries::find(KubeVersion::from_env()?)?;
    let etcd = Etcd::new(&folder, &binaries, true);
    let _process = etcd.start().await?;
    let pod = namespace.pod("exec").await?;
    let sidecar = Sidecar::launch(binary, &pod).default_log().start().await?;

    let (file, kubeconfig) = (folder.join("lock"), pod.kubeconfig.path.clone());
    let (file, kubeconfig) = (file.to_string_lossy(), kubeconfig.to_string_lossy());
    let (etcdctl, endpoint) = (binaries.etcdctl.to_string_lossy(), etcd.endpoint());
    let exec = [binary, "exec", "--quiet"];
    let mut kinds: Vec<(&'static str, Vec<&str>)> = vec![
        (ALONE, vec!["true"]),
        (FLOCK, vec!["flock", &file, "true"]),
        (
            ETCD,
            vec![&etcdctl, "--endpoints", &endpoint, "lock", "bench", "true"],
        ),
        (
            BESIDE,
            [
                &exec[..],
                &["--lock", "beside", "--url", &sidecar.url, "--", "true"],
            ]
            .concat(),
        ),
        (
            WITHOUT,
            [
                &exec[..],
                &[
                    "--lock",
                    "without",
                    "--kubeconfig",
                    &kubeconfig,
                    "--",
                    "true",
                ],
            ]
            .concat(),
        ),
    ];
    let mut rows = Rows::default();
    for round in 0..WARM_UP + ROUNDS {
        if round == WARM_UP {
            rows = Rows::default();
        }
        fastrand::shuffle(&mut kinds);
        for (name, command) in &kinds {
            rows.time(name, run(command)).await?;
        }
    }
    rows.print(&ROWS, ALONE);
    print_memory(
        "beside a sidecar",
        &Exec::start(binary, &sidecar, &["--lock", "memory"], WAITS)?,
    )
    .await?;
    print_memory(
        "without a sidecar",
        &Exec::alone(binary, &pod.kubeconfig, &["--lock", "alone"], WAITS)?,
    )
    .await
}

/// A command whose exec is measured meanwhile.
const WAITS: &str = "sleep 600";

async fn run(command: &[&str]) -> Result<()> {
    let (program, args) = command.split_first().context("a program")?;
    let status = Command::new(program)
        .args(args)
        .env_remove("LEASEHOLD_URL")
        .stdout(Stdio::null())
        .status()
        .await
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

#[allow(clippy::print_stdout, reason = "a bench prints what it measured")]
async fn print_memory(what: &str, exec: &Exec) -> Result<()> {
    let pids = exec.pids().await?;
    let all = [
        ("front", Some(pids.front)),
        ("keeper", Some(pids.keeper)),
        ("agent", pids.agent),
    ];
    for (process, pid) in all {
        if let Some(pid) = pid {
            let kib = eventually("its memory", PATIENCE, async || resident_kib(pid)).await?;
            println!(
                "resident memory of exec's {process}, {what}: {:.1} MiB",
                kib / 1024.0
            );
        }
    }
    Ok(())
}

fn resident_kib(pid: i32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

//! More connections than the initial limit of open files permits: the process raises the limit.

use std::process::Command;

use tokio::net::TcpStream;

use super::Dev;

/// The process's initial limit of open files.
const ALLOWED: usize = 100;
const CONNECTIONS: usize = 300;

#[tokio::test]
async fn file_limit_is_raised_for_many_connections() {
    let data = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let script = format!("ulimit -Sn {ALLOWED}; exec \"$@\"");
    command
        .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_leasehold"), "dev"])
        .args(["--log-format=json", "--session-ttl=3"])
        .args(["--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"])
        .arg("--data-dir")
        .arg(data.path());
    let dev = Dev::spawn(command).await;
    let address = dev.url.trim_start_matches("http://").to_owned();
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        idle.push(TcpStream::connect(&address).await.unwrap());
    }
    dev.acquire("res").await;
    let open = std::fs::read_dir(format!("/proc/{}/fd", dev.process.id()));
    assert!(open.unwrap().count() > CONNECTIONS);
}

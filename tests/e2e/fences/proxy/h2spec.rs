//! h2spec, a test suite of HTTP/2 servers, against the fence.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use reqwest::Client;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::{Append, Fenced, append};
use crate::harness::{PATIENCE, target_directory};

/// h2spec sends bytes that are not HTTP/2 and expects no response. A fence that also speaks HTTP/1.1 responds with 400,
/// as RFC 9113, section 3.4 allows (GOAWAY may be omitted), and closes the connection.
const EXCEPT: &str = "× 2: Sends invalid connection preface";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn h2spec_finds_no_failure() -> Result<()> {
    let fenced = Fenced::start().await?;
    // Some of its cases need a response of several bytes.
    let value = Append {
        token: 1,
        value: "a response of several bytes".to_owned(),
        pause: Duration::ZERO,
    };
    append(&Client::new(), &fenced.url, &value).await?;
    let address = fenced.url.trim_start_matches("http://").to_owned();
    let (host, port) = address.split_once(':').context("a port")?;
    let mut h2spec = Command::new(target_directory().join("controlplane/h2spec/h2spec"));
    h2spec.args(["-h", host, "-p", port, "-P", "/log", "-o", "60"]);
    let output = tokio::task::spawn_blocking(move || h2spec.output()).await??;
    let report = String::from_utf8(output.stdout)?;
    let (_, failures) = report.split_once("Failures:").context("a failure")?;
    let failed: Vec<_> = failures
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with('×'))
        .collect();
    ensure!(failed == [EXCEPT], "{failures}");
    ensure!(
        failures.contains("145 tests, 144 passed, 0 skipped, 1 failed"),
        "{failures}"
    );

    let mut client = TcpStream::connect(&address).await?;
    client
        .write_all(b"INVALID CONNECTION PREFACE\r\n\r\n")
        .await?;
    let mut response = String::new();
    timeout(PATIENCE, client.read_to_string(&mut response)).await??;
    ensure!(response.starts_with("HTTP/1.1 400"), "{response}");
    Ok(())
}

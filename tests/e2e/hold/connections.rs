//! Many connections and slow ones: the others are served all the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hold_of;
use crate::harness::{Cluster, Sidecar, TakeOver};
use crate::support::sidecar;

const IDLE: usize = 5_000;

/// As many open files as this process may have at most; a child has as many.
fn raise_file_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("the limit of open files")
}

async fn connect(sidecar: &Sidecar) -> Result<TcpStream> {
    let address = sidecar.url.strip_prefix("http://").context("a plain URL")?;
    Ok(TcpStream::connect(address).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_served_beside_5000_idle_connections() -> Result<()> {
    raise_file_limit()?;
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("hold-idle").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let app = a.curl_hold(&hold_of("res"))?;
    app.until("acquired").await?;
    let memory_before = a.rss_kib()?;
    let mut idle = Vec::new();
    for number in 0..IDLE {
        let mut stream = connect(&a).await?;
        if number % 2 == 0 {
            stream.write_all(b"POST /v1/lo").await?;
        }
        idle.push(stream);
    }
    for number in 0..20 {
        let lease = a.acquire(&format!("res-{number}")).await?.granted()?;
        a.renew(&lease.id).await?.granted()?;
        a.release_for_good(&lease.id).await?;
    }
    println!(
        "memory: {memory_before} KiB, with {IDLE} idle connections {} KiB",
        a.rss_kib()?
    );
    // No busy connection was closed for them.
    app.until("heartbeat").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_sender_times_out_and_blocks_no_other_client() -> Result<()> {
    let cluster = Cluster::shared(TakeOver::Peer).await?;
    let namespace = cluster.namespace("hold-slow").await?;
    let a = sidecar(&namespace.pod("a").await?, 15).await?;
    let body = json!({"resource": "slow", "padding": "x".repeat(1_000)}).to_string();
    let head = format!(
        "POST /v1/locks/hold HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let (mut reading, mut writing) = connect(&a).await?.into_split();
    writing.write_all(head.as_bytes()).await?;
    let sending = tokio::spawn(async move {
        for byte in body.as_bytes() {
            if writing.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    a.acquire("res").await?.granted()?;
    let mut answer = [0; 12];
    let answered = reading.read_exact(&mut answer);
    tokio::time::timeout(Duration::from_secs(40), answered).await??;
    sending.abort();
    let answer = String::from_utf8_lossy(&answer);
    ensure!(answer == "HTTP/1.1 408", "{answer}");
    Ok(())
}

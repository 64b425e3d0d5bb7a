//! A slow connection: the others are served all the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Cluster, Sidecar, TakeOver};
use crate::support::sidecar;

async fn connect(sidecar: &Sidecar) -> Result<TcpStream> {
    let address = sidecar.url.strip_prefix("http://").context("a plain URL")?;
    Ok(TcpStream::connect(address).await?)
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

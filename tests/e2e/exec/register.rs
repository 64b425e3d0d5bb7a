//! A register that checks fencing tokens: it refuses a write whose token is older than one that it has
//! seen.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::harness::{PATIENCE, eventually, now};

/// A write that arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Write {
    /// When the whole request had arrived.
    pub(super) at: Moment,
    pub(super) token: u64,
    pub(super) accepted: bool,
}

/// A server for `GET /TOKEN`. Dropping it ends it.
pub(super) struct Register {
    address: SocketAddr,
    writes: Arc<Mutex<Vec<Write>>>,
    server: JoinHandle<()>,
}

impl Register {
    pub(super) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let writes = Arc::new(Mutex::new(vec![]));
        let register = Arc::clone(&writes);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&register)));
            }
        });
        Ok(Self {
            address,
            writes,
            server,
        })
    }

    /// Returns a script that prints its token and its lease, and writes in parallel without end.
    pub(super) fn writer(&self, parallel: usize) -> String {
        format!(
            r#"echo "lease $LEASEHOLD_TOKEN $LEASEHOLD_LEASE_ID"
            for number in $(seq {parallel}); do
                while :; do curl -s -m 2 "http://{}/$LEASEHOLD_TOKEN"; sleep 0.02; done &
            done
            wait"#,
            self.address
        )
    }

    /// Returns the writes so far, in the order of their arrival.
    pub(super) fn writes(&self) -> Vec<Write> {
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.clone()
    }

    /// Returns the moments at which writes with this token arrived.
    pub(super) fn arrivals(&self, token: u64) -> Vec<Moment> {
        let writes = self.writes().into_iter();
        let ours = writes.filter(|write| write.token == token);
        ours.map(|write| write.at).collect()
    }

    /// Waits until some writes with a token larger than this one arrived, and returns the first.
    pub(super) async fn until_newer(&self, than: u64, count: usize) -> Result<Write> {
        let what = format!("{count} writes with a token larger than {than}");
        eventually(&what, PATIENCE, async || {
            let mut newer = self.writes();
            newer.retain(|write| write.token > than);
            newer.first().copied().filter(|_| newer.len() >= count)
        })
        .await
    }

    /// Fails if a write with an older token was accepted after one with a newer token.
    pub(super) fn check(&self) -> Result<()> {
        let mut newest = 0;
        for write in self.writes() {
            ensure!(
                !write.accepted || write.token >= newest,
                "{write:?} after {newest}"
            );
            newest = newest.max(write.token);
        }
        Ok(())
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Serves one request. A client that ends before it has sent its request wrote nothing.
async fn serve(mut stream: TcpStream, register: Arc<Mutex<Vec<Write>>>) {
    let Ok(token) = receive(&mut stream).await else {
        return;
    };
    let accepted = record(&register, token);
    let status = if accepted {
        "204 No Content"
    } else {
        "409 Conflict"
    };
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    // The client may have been killed since.
    let _sent = stream.write_all(answer.as_bytes()).await;
}

async fn receive(stream: &mut TcpStream) -> Result<u64> {
    let mut request = vec![];
    while !request.ends_with(b"\r\n\r\n") {
        ensure!(stream.read_buf(&mut request).await? > 0, "an end");
    }
    let request = String::from_utf8(request)?;
    let path = request.split(' ').nth(1).context("a path")?;
    Ok(path.trim_start_matches('/').parse()?)
}

fn record(register: &Mutex<Vec<Write>>, token: u64) -> bool {
    let mut writes = register.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = writes.iter().map(|write| write.token).max();
    let accepted = newest.is_none_or(|newest| token >= newest);
    writes.push(Write {
        at: now(),
        token,
        accepted,
    });
    accepted
}

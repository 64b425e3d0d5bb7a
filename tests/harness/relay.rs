//! A TCP relay in front of the API server that adds latency and counts connections. TLS and HTTP/2
//! are end to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use leasehold::protocol::time::Moment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cluster::Cluster;
use super::wait::now;

/// The relay. Dropping it closes its port; connections that are open stay.
pub(crate) struct Relay {
    /// The address where it listens.
    pub(crate) url: String,
    accepted: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// Starts a relay in front of a cluster's API server, which makes a round trip this much
    /// longer.
    pub(crate) async fn start(cluster: &Cluster, round_trip: Duration) -> Result<Self> {
        let server = cluster.control_plane().server();
        let server = server.strip_prefix("https://").context("not https")?;
        let (server, one_way) = (server.to_owned(), round_trip / 2);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}", listener.local_addr()?);
        let accepted = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&accepted);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                let server = server.clone();
                tokio::spawn(async move {
                    // If the API server is down, the connection closes.
                    if let Ok(far) = TcpStream::connect(server).await {
                        join(near, far, one_way);
                    }
                });
            }
        });
        Ok(Self {
            url,
            accepted,
            accepting,
        })
    }

    /// Returns the number of connections opened so far.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn join(near: TcpStream, far: TcpStream, one_way: Duration) {
    for stream in [&near, &far] {
        // Without it small requests wait for acknowledgements, and the relay must add only its own
        // delay.
        drop(stream.set_nodelay(true));
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    pass_on(near_in, far_out, one_way);
    pass_on(far_in, near_out, one_way);
}

/// Continues to read while earlier bytes wait to be written, so that the delay does not limit the
/// throughput.
fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let (sender, mut receiver) = mpsc::channel::<(Moment, Vec<u8>)>(1_024);
    tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let due = now().after(one_way);
            if sender.send((due, buffer[..length].to_vec())).await.is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, bytes)) = receiver.recv().await {
            tokio::time::sleep(due.since(now())).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
}

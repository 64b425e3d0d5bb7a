//! The memory of the fence with 10,000 slow clients.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::routing::get;
use futures::stream;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::fence;
use crate::fences::server::new_directory;
use crate::harness::{PATIENCE, Process, eventually, own_port};

/// Clients whose heads never end. The fence does not forward them.
const HEADS: usize = 5_000;
/// Clients whose bodies never end, and as many that read an endless response byte by byte. Each needs two file
/// descriptors here and two in the fence, and the usual limit is 20,000.
const BODIES: usize = 2_500;
const READERS: usize = 2_500;
const ALL: u64 = 10_000;
/// What one client may cost on average, in KiB. Measured in a debug build: 20 for a head, 43 for a body with its
/// connection to the service, and 84 for a reader before its buffers are full: 58 on average when they are.
const KIB_EACH: u64 = 80;

/// Rounds in which each client sends or reads one byte. In the first ones the buffers fill.
const ROUNDS: usize = 400;

const WRITE: &str = "POST /slow HTTP/1.1\r\nHost: a\r\nX-Fencing-Token: 1\r\nX-Fencing-Resource: r\r\n\
                     Transfer-Encoding: chunked\r\n\r\n";

/// Which clients are there.
struct Clients {
    heads: Vec<TcpStream>,
    bodies: Vec<TcpStream>,
    readers: Vec<TcpStream>,
}

type Arrived = Arc<AtomicUsize>;

async fn read_slowly(State(arrived): State<Arrived>, mut body: Body) {
    arrived.fetch_add(1, Ordering::Relaxed);
    while let Some(Ok(_)) = body.frame().await {}
}

async fn endless(State(arrived): State<Arrived>) -> Body {
    arrived.fetch_add(1, Ordering::Relaxed);
    let part = Bytes::from_static(&[b'a'; 16 * 1024]);
    Body::from_stream(stream::repeat_with(move || anyhow::Ok(part.clone())))
}

async fn open(port: u16, count: usize, start: &str) -> Result<Vec<TcpStream>> {
    let mut clients = Vec::with_capacity(count);
    for _ in 0..count {
        let mut client = TcpStream::connect(("127.0.0.1", port)).await?;
        client.write_all(start.as_bytes()).await?;
        clients.push(client);
    }
    Ok(clients)
}

impl Clients {
    async fn open(port: u16) -> Result<Self> {
        Ok(Self {
            heads: open(port, HEADS, "GET /log HTTP/1.1\r\nX: ").await?,
            bodies: open(port, BODIES, WRITE).await?,
            readers: open(port, READERS, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").await?,
        })
    }

    /// Each client sends or reads one byte. All must still be connected.
    async fn continue_slowly(&mut self) -> Result<()> {
        for client in &mut self.heads {
            client.write_all(b"a").await?;
        }
        for client in &mut self.bodies {
            client.write_all(b"1\r\na\r\n").await?;
        }
        for client in &self.readers {
            match client.try_read(&mut [0]) {
                Ok(count) => ensure!(count == 1, "a client was disconnected"),
                Err(error) => ensure!(error.kind() == ErrorKind::WouldBlock, "{error}"),
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the servers of `make fences`"]
async fn memory_stays_flat_with_ten_thousand_slow_clients() -> Result<()> {
    let arrived = Arrived::default();
    let router = Router::new()
        .route("/slow", get(endless).post(read_slowly))
        .with_state(arrived.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let upstream = format!("http://{}", listener.local_addr()?);
    let _service =
        AbortOnDropHandle::new(tokio::spawn(async { axum::serve(listener, router).await }));
    let (directory, port) = (new_directory("memory")?, own_port()?);
    let mut command = fence(&directory, &upstream, port);
    // No client is too slow for this test.
    command
        .args(["--trust-tokens", "--max-requests", "8192"])
        .args(["--client-idle", "86400", "--upstream-timeout", "86400"]);
    let fence = Process::spawn("fence", &mut command, &directory.join("log"))?;
    let started = async || TcpStream::connect(("127.0.0.1", port)).await.ok();
    eventually("the fence", PATIENCE, started).await?;
    let before = fence.peak_rss_kib()?;

    let mut clients = Clients::open(port).await?;
    let all_arrived = async || {
        let count = arrived.load(Ordering::Relaxed);
        (count == BODIES + READERS).then_some(())
    };
    eventually("all requests at the service", PATIENCE, all_arrived).await?;
    for _ in 0..ROUNDS {
        clients.continue_slowly().await?;
    }
    let first = fence.peak_rss_kib()?;
    for _ in 0..ROUNDS {
        clients.continue_slowly().await?;
    }
    let second = fence.peak_rss_kib()?;
    let each = (second - before) / ALL;
    println!(
        "fence: {before} KiB, {first} KiB with {ALL} slow clients, {second} KiB after as many bytes of each more, {each} KiB each"
    );
    ensure!(each <= KIB_EACH, "{each} KiB for each client");
    // Allocators keep some of what they get.
    ensure!(second <= first + first / 20, "from {first} to {second} KiB");
    fence.must_run()
}

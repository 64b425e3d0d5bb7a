//! Connections whose bytes a test writes and reads itself, on either side of the fence.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// A limit that no successful step reaches.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(super) struct Raw {
    stream: TcpStream,
    /// What arrived and was not read yet.
    buffer: Vec<u8>,
}

/// A response whose end the test knows.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

/// A service: a test accepts and answers each of its connections.
pub(super) struct Service(TcpListener);

impl Service {
    pub(super) async fn listen() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// Returns the next connection.
    pub(super) async fn accept(&self) -> Raw {
        let accepted = timeout(PATIENCE, self.0.accept()).await;
        Raw::new(accepted.expect("a connection in time").unwrap().0)
    }

    /// The same, however long it takes.
    pub(super) async fn accept_any(&self) -> Raw {
        Raw::new(self.0.accept().await.unwrap().0)
    }

    /// Returns the next connection and the head of its first request.
    pub(super) async fn request(&self) -> (Raw, String) {
        loop {
            let mut connection = self.accept().await;
            // Another test may wait until its port is closed, when this service has got the port.
            if connection.receive().await {
                let head = connection.head().await;
                return (connection, head);
            }
        }
    }
}

impl Raw {
    pub(super) fn new(stream: TcpStream) -> Self {
        let buffer = Vec::new();
        Self { stream, buffer }
    }

    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self::new(TcpStream::connect(address).await.unwrap())
    }

    pub(super) async fn send(&mut self, text: impl AsRef<[u8]>) {
        self.try_send(text).await.unwrap();
    }

    /// Sends to a peer that may have closed.
    pub(super) async fn try_send(&mut self, text: impl AsRef<[u8]>) -> std::io::Result<()> {
        let sent = timeout(PATIENCE, self.stream.write_all(text.as_ref())).await;
        sent.expect("sent in time")
    }

    /// Ends the direction to the peer.
    pub(super) async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Receives more. Returns whether the peer has not closed.
    pub(super) async fn receive(&mut self) -> bool {
        let received = timeout(PATIENCE, self.stream.read_buf(&mut self.buffer)).await;
        let read = received.unwrap_or_else(|_late| {
            panic!(
                "nothing came after {:?}",
                String::from_utf8_lossy(&self.buffer)
            )
        });
        read.is_ok_and(|count| count > 0)
    }

    /// Reads exactly so many bytes, or `None` if the peer closes first.
    pub(super) async fn exactly(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.receive().await {
                return None;
            }
        }
        Some(self.buffer.drain(..count).collect())
    }

    /// Reads up to and including a text, or returns `None` if the peer closes first.
    pub(super) async fn find(&mut self, end: &str) -> Option<String> {
        loop {
            let mut windows = self.buffer.windows(end.len());
            if let Some(start) = windows.position(|window| window == end.as_bytes()) {
                let text = self.buffer.drain(..start + end.len()).collect();
                // The corpus has bytes that are not UTF-8.
                return Some(String::from_utf8(text).unwrap_or_else(|error| {
                    error.as_bytes().iter().map(|byte| *byte as char).collect()
                }));
            }
            if !self.receive().await {
                return None;
            }
        }
    }

    /// The same on a connection that may be idle for long before.
    pub(super) async fn find_idle(&mut self, end: &str) -> Option<String> {
        if self.buffer.is_empty() {
            let read = self.stream.read_buf(&mut self.buffer).await;
            read.ok().filter(|count| *count > 0)?;
        }
        self.find(end).await
    }

    /// Reads up to and including a text.
    pub(super) async fn until(&mut self, end: &str) -> String {
        let found = self.find(end).await;
        found.unwrap_or_else(|| {
            let rest = String::from_utf8_lossy(&self.buffer);
            panic!("closed before {end:?} after {rest:?}")
        })
    }

    /// Reads the head of a message.
    pub(super) async fn head(&mut self) -> String {
        self.until("\r\n\r\n").await
    }

    /// Reads a response that has a length.
    pub(super) async fn answer(&mut self) -> Answer {
        self.find_answer().await.expect("a whole response")
    }

    /// The same, or `None` if the peer closes first.
    pub(super) async fn find_answer(&mut self) -> Option<Answer> {
        let head = self.find("\r\n\r\n").await?;
        let status = head.get(9..12)?.parse().ok()?;
        let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
        let body = String::from_utf8(self.exactly(length).await?).unwrap();
        Some(Answer { status, head, body })
    }

    /// Waits until the peer has closed, and returns what came before.
    pub(super) async fn rest(mut self) -> String {
        while self.receive().await {}
        String::from_utf8_lossy(&self.buffer).into_owned()
    }
}

/// Returns the value of a header.
pub(super) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(found, _)| found.eq_ignore_ascii_case(name))?;
    Some(value.trim())
}

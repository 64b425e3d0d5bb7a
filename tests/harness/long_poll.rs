//! A caller that waits for a lock on a connection of its own, and may hang up.
//!
//! The request is written by hand: an HTTP client would close the connection at a time of its own, and the tests of
//! hanging up depend on that time.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use leasehold::protocol::time::Moment;

use super::sidecar::{Answer, Sidecar};
use super::wait::now;

/// A request for a lock whose answer has not been read. Dropping it is hanging up.
pub(crate) struct LongPoll {
    stream: TcpStream,
    /// From before the connection was opened.
    asked: Moment,
}

impl Sidecar {
    /// Waits for a lock for this many seconds, for an app that has the pod's name and is silent for at most 60 s.
    pub(crate) async fn wait_for(&self, resource: &str, wait_seconds: u64) -> Result<LongPoll> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 60,
            "waitSeconds": wait_seconds});
        self.wait_with(&body).await
    }

    /// The same, for an app that may be silent for an hour (see [`Sidecar::acquire_for_long`]).
    pub(crate) async fn wait_for_long(
        &self,
        resource: &str,
        wait_seconds: u64,
    ) -> Result<LongPoll> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 3600,
            "waitSeconds": wait_seconds});
        self.wait_with(&body).await
    }

    /// Sends an `acquire` with a body of one's own.
    pub(crate) async fn wait_with(&self, body: &Value) -> Result<LongPoll> {
        let asked = now();
        let address = self.url.strip_prefix("http://").context("a plain URL")?;
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let body = body.to_string();
        let request = format!(
            "POST /v1/locks/acquire HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(LongPoll { stream, asked })
    }
}

impl LongPoll {
    /// Waits for the answer.
    pub(crate) async fn answer(self) -> Result<Answer> {
        let answer = self.read_to_end().await?;
        answer.context("the connection ended without an answer")
    }

    /// Closes the writing side, and reads until the other side closes too. A full answer arrived although its client
    /// hung up; without one no client received the grant.
    pub(crate) async fn close_half(mut self) -> Result<Option<Answer>> {
        self.stream.shutdown().await?;
        self.read_to_end().await
    }

    /// Goes away as a killed process does that had something to read: a reset, and no more.
    /// Whether an answer was on its way is not known.
    pub(crate) fn reset(self) -> Result<()> {
        self.stream.set_zero_linger()?;
        drop(self.stream);
        Ok(())
    }

    async fn read_to_end(mut self) -> Result<Option<Answer>> {
        let mut read = Vec::new();
        self.stream.read_to_end(&mut read).await?;
        if read.is_empty() {
            return Ok(None);
        }
        parsed(&String::from_utf8(read)?, self.asked).map(Some)
    }
}

fn parsed(text: &str, asked: Moment) -> Result<Answer> {
    let (head, body) = text.split_once("\r\n\r\n").context("a half answer")?;
    let header = |name: &str| {
        let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim().to_owned())
    };
    let length = header("content-length").context("a length")?;
    ensure!(length.parse() == Ok(body.len()), "a half answer: {text}");
    let status = head.split(' ').nth(1).context("a status")?;
    Ok(Answer {
        status: status.parse()?,
        json: serde_json::from_str(body)?,
        took: now().since(asked),
        retry_after: header("retry-after"),
    })
}

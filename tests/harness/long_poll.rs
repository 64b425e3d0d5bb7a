//! A caller that waits for a lock on its own connection, and may disconnect.
//!
//! The request is written by hand. An HTTP client would choose the time when it closes the
//! connection, and the tests of disconnects depend on that time.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use leasehold::protocol::time::Moment;

use super::sidecar::{Answer, Sidecar};
use super::wait::now;

/// A request for a lock whose answer has not been read. Dropping it disconnects.
pub(crate) struct LongPoll {
    stream: TcpStream,
    /// The time before the connection was opened.
    asked: Moment,
}

impl Sidecar {
    /// Waits up to this many seconds for a lock, for an app with the pod's name and a TTL of 60 s.
    pub(crate) async fn wait_for(&self, resource: &str, wait_seconds: u64) -> Result<LongPoll> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 60,
            "waitSeconds": wait_seconds});
        self.wait_with(&body).await
    }

    /// The same, for an app with a TTL of an hour (see [`Sidecar::acquire_for_long`]).
    pub(crate) async fn wait_for_long(
        &self,
        resource: &str,
        wait_seconds: u64,
    ) -> Result<LongPoll> {
        let body = json!({"resource": resource, "ownerId": self.pod.name, "ttlSeconds": 3600,
            "waitSeconds": wait_seconds});
        self.wait_with(&body).await
    }

    /// Sends an `acquire` with this body.
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

    /// Closes the writing side, and reads until the other side closes, too. A complete answer means
    /// that it arrived although its client disconnected; without one no client received the grant.
    pub(crate) async fn close_half(mut self) -> Result<Option<Answer>> {
        self.stream.shutdown().await?;
        self.read_to_end().await
    }

    /// Disconnects like a killed process that had unread data: with a reset only. Whether an answer
    /// was on its way is unknown.
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

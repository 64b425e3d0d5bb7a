//! Clients of event streams: a real curl, which can be killed or stopped like any app, and a client
//! on our own socket, which knows when it sent its request and reads only on demand.

use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leasehold::protocol::time::Moment;
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::process::{Process, directory};
use super::sidecar::Sidecar;
use super::wait::{eventually, now};

/// How long a curl may take to receive something, or to end.
const LIMIT: Duration = Duration::from_secs(30);

/// One event.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Its name.
    pub(crate) name: String,
    /// Its data.
    pub(crate) data: Value,
}

impl Event {
    /// Returns how long the app may act, from when it sent its request; `None` if the event has no
    /// validity.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        self.data["validForMs"].as_u64().map(Duration::from_millis)
    }
}

/// Returns the complete events, in order. Anything else, such as the sizes of chunks, is skipped.
pub(crate) fn events_in(text: &str) -> Result<Vec<Event>> {
    let mut lines = text.lines();
    let mut events = Vec::new();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix("event: ") else {
            continue;
        };
        let Some(data) = lines.next().and_then(|line| line.strip_prefix("data: ")) else {
            break;
        };
        // The last line may be incomplete.
        if lines.next().is_none() {
            break;
        }
        events.push(Event {
            name: name.to_owned(),
            data: serde_json::from_str(data).with_context(|| data.to_owned())?,
        });
    }
    Ok(events)
}

/// A curl with an open stream. Dropping it kills it.
pub(crate) struct Curl {
    process: Process,
}

/// A client that reads its stream only on demand.
pub(crate) struct SleepyClient {
    stream: TcpStream,
    sent: Moment,
    read: Vec<u8>,
}

impl Sidecar {
    /// Holds a lock with curl.
    pub(crate) fn curl_hold(&self, body: &Value) -> Result<Curl> {
        self.curl_stream("/v1/locks/hold", body)
    }

    /// Starts a curl that sends this body and reads the events of the answer.
    pub(crate) fn curl_stream(&self, path: &str, body: &Value) -> Result<Curl> {
        let json = ["-H", "content-type: application/json"];
        self.curl(path, &[json[0], json[1], "-d", &body.to_string()])
    }

    /// Starts a curl that requests events.
    pub(crate) fn curl_events(&self, path: &str) -> Result<Curl> {
        self.curl(path, &[])
    }

    fn curl(&self, path: &str, args: &[&str]) -> Result<Curl> {
        static STARTED: AtomicU32 = AtomicU32::new(0);

        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let log = directory()?.join(format!("curl-{number}.log"));
        let mut command = Command::new("curl");
        command.args(["-sN", &format!("{}{path}", self.url)]);
        let process = Process::spawn("curl", command.args(args), &log)?;
        Ok(Curl { process })
    }

    /// Holds a lock with a client that does not read yet.
    pub(crate) async fn sleepy_hold(&self, body: &Value) -> Result<SleepyClient> {
        let address = self.url.strip_prefix("http://").context("a plain URL")?;
        let mut stream = TcpStream::connect(address).await?;
        let body = body.to_string();
        let request = format!(
            "POST /v1/locks/hold HTTP/1.1\r\nHost: {address}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let sent = now();
        stream.write_all(request.as_bytes()).await?;
        let read = Vec::new();
        Ok(SleepyClient { stream, sent, read })
    }
}

impl Curl {
    /// Returns the events received so far.
    pub(crate) fn events(&self) -> Result<Vec<Event>> {
        events_in(&self.process.log())
    }

    /// Waits until it receives this event.
    pub(crate) async fn until(&self, name: &str) -> Result<Event> {
        let what = format!("the event {name}");
        let found = eventually(&what, LIMIT, async || {
            let events = self.events().ok()?;
            events.into_iter().find(|event| event.name == name)
        });
        found.await.with_context(|| self.process.log())
    }

    /// Kills it without any notice to the sidecar.
    pub(crate) fn kill9(&self) -> Result<()> {
        self.process.kill()
    }

    /// Stops it, so that it reads nothing.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.process.signal(Signal::STOP)
    }

    /// Continues it.
    pub(crate) fn thaw(&self) -> Result<()> {
        self.process.signal(Signal::CONT)
    }

    /// Returns whether it has exited.
    pub(crate) fn is_over(&self) -> bool {
        self.process.exited().ok().flatten().is_some()
    }

    /// Waits for its exit, which follows the end of the stream.
    pub(crate) async fn ended(&self) -> Result<ExitStatus> {
        self.process.wait(LIMIT).await
    }
}

impl SleepyClient {
    /// Returns when it sent its request: validity counts from there.
    pub(crate) const fn sent(&self) -> Moment {
        self.sent
    }

    /// Reads until this event arrives, and returns all events read so far.
    pub(crate) async fn read_until(&mut self, name: &str) -> Result<Vec<Event>> {
        let told = tokio::time::timeout(LIMIT, async {
            loop {
                let events = events_in(&String::from_utf8_lossy(&self.read))?;
                if events.iter().any(|event| event.name == name) {
                    return Ok(events);
                }
                let count = self.stream.read_buf(&mut self.read).await?;
                ensure!(count > 0, "it ended without {name}: {events:?}");
            }
        });
        told.await.with_context(|| format!("no {name}"))?
    }
}

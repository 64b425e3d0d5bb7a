//! A lock that lives by its connection: the stream of its events, and the work under the lock.

use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, error::TryRecvError};

use super::{App, Held};
use crate::history::Op;
use crate::recorder::now_ns;

/// How long an app stays queued before it disconnects.
const PATIENCE: Duration = Duration::from_secs(8);

/// A stream of events. Dropping it closes the connection.
pub(super) struct Stream {
    /// The time before the request was sent: validity counts from there.
    sent: u64,
    said: mpsc::UnboundedReceiver<Said>,
    reading: tokio::task::JoinHandle<()>,
    has_ended: bool,
}

/// What a connection delivers.
enum Said {
    /// The answer is not a stream of events.
    Refused(StatusCode),
    Event(String, Value),
}

/// The event that an app has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// No change, or an extension.
    Nothing,
    Lost,
    /// The stream has ended.
    End,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl App {
    /// Holds a lock by a connection and works under it.
    pub(super) async fn hold(&mut self, resource: &str) -> Result<()> {
        let operation = self.recorder.invoke(Op::acquire(resource))?;
        let mut stream = self.open(resource);
        let acquired = tokio::time::timeout(PATIENCE, stream.until_acquired()).await;
        let told = match acquired {
            Ok(Some(Said::Event(_, told))) => told,
            Ok(Some(Said::Refused(status))) if status.is_client_error() => {
                return self.recorder.fail(operation, Op::acquire(resource));
            }
            _ => return self.recorder.unknown(operation, Op::acquire(resource)),
        };
        let held = self.granted(resource, stream.sent, &told)?;
        let Held { lease, token, .. } = &held;
        let granted = Op::granted(resource, lease, *token, held.believes_until);
        self.recorder.ok(operation, granted)?;
        self.work_held(held, stream).await
    }

    async fn work_held(&mut self, mut held: Held, mut stream: Stream) -> Result<()> {
        let enough = now_ns() + self.how_long() * 1_000_000;
        while now_ns() < enough {
            let is_over = !held.is_believed();
            if is_over && !self.listen_until_notified(&mut held, &mut stream).await? {
                return Ok(());
            }
            if self.listen(&mut held, &mut stream)? == Heard::Lost {
                return Ok(());
            }
            if self.act_if_believed(&held).await?.is_the_last() {
                break;
            }
        }
        self.record_expiry_if_any(&held)?;
        if self.dice.bool() {
            return self.release(&held.lease).await;
        }
        // Closing the connection releases the lock. No answer says when that has happened.
        let operation = self.recorder.invoke(Op::release(&held.lease))?;
        drop(stream);
        self.recorder.unknown(operation, Op::release(&held.lease))
    }

    /// Reads the events that have arrived. The newest one counts.
    pub(super) fn listen(&mut self, held: &mut Held, stream: &mut Stream) -> Result<Heard> {
        loop {
            let (name, told) = match stream.said.try_recv() {
                Ok(Said::Event(name, told)) => (name, told),
                Ok(Said::Refused(_)) => continue,
                Err(TryRecvError::Empty) => return Ok(Heard::Nothing),
                Err(TryRecvError::Disconnected) => {
                    if !std::mem::replace(&mut stream.has_ended, true) {
                        self.recorder.info(Op::stream_end(&held.lease))?;
                    }
                    return Ok(Heard::End);
                }
            };
            if name == "lost" {
                self.recorder.info(Op::lost(&held.lease))?;
                return Ok(Heard::Lost);
            }
            let Some(valid_for) = told["validForMs"].as_u64() else {
                continue;
            };
            let until = self.belief(stream.sent, valid_for);
            if until != held.believes_until {
                self.recorder.info(Op::renewed(&held.lease, until))?;
                held.believes_until = until;
            }
        }
    }

    fn open(&self, resource: &str) -> Stream {
        let (told, said) = mpsc::unbounded_channel();
        let url = format!("{}/v1/locks/hold", self.config.sidecar);
        let body = json!({"resource": resource, "ownerId": self.config.name});
        let asked = self.http.post(url).json(&body);
        let sent = now_ns();
        let reading = tokio::spawn(async move {
            // However the stream ends, the app receives nothing more.
            let _end = read(asked, told).await;
        });
        Stream {
            sent,
            said,
            reading,
            has_ended: false,
        }
    }
}

impl Stream {
    /// Returns the event that grants the lock, or the refusal; `None` if the stream ends otherwise.
    async fn until_acquired(&mut self) -> Option<Said> {
        loop {
            let said = self.said.recv().await?;
            match &said {
                Said::Event(name, _) if name == "lost" || name == "error" => return None,
                Said::Event(name, _) if name != "acquired" => {}
                Said::Event(..) | Said::Refused(_) => return Some(said),
            }
        }
    }
}

async fn read(asked: reqwest::RequestBuilder, told: mpsc::UnboundedSender<Said>) -> Result<()> {
    let answer = asked.send().await?;
    if !answer.status().is_success() {
        return Ok(told.send(Said::Refused(answer.status()))?);
    }
    let mut pieces = answer.bytes_stream();
    let mut rest = String::new();
    while let Some(piece) = pieces.next().await {
        rest.push_str(std::str::from_utf8(&piece?)?);
        while let Some((event, after)) = rest.split_once("\n\n") {
            if let Some(event) = parsed(event) {
                let (name, data) = event;
                told.send(Said::Event(name, data))?;
            }
            rest = after.to_owned();
        }
    }
    Ok(())
}

fn parsed(event: &str) -> Option<(String, Value)> {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
    let data = serde_json::from_str(field("data: ")?).ok()?;
    Some((field("event: ")?.to_owned(), data))
}

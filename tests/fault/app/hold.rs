//! A lock that lives by its connection: what the stream of events says, and work meanwhile.

use std::time::Duration;

use anyhow::Result;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{App, Held};
use crate::history::Op;
use crate::journal::now_ns;

/// How long an app stays in line before it goes away.
const PATIENCE: Duration = Duration::from_secs(8);

/// The events of a stream, as they come. Dropping it closes the connection.
struct Stream {
    /// From before the request was sent: what is told counts from there.
    sent: u64,
    events: mpsc::UnboundedReceiver<(String, Value)>,
    reading: tokio::task::JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl App {
    /// Holds a lock by a connection and works under it.
    pub(super) async fn hold(&mut self, resource: &str) -> Result<()> {
        let operation = self.journal.invoke(Op::acquire(resource))?;
        let mut stream = self.open(resource);
        let acquired = tokio::time::timeout(PATIENCE, stream.until_acquired()).await;
        let Some(told) = acquired.ok().flatten() else {
            return self.journal.unknown(operation, Op::acquire(resource));
        };
        let held = self.granted(resource, stream.sent, &told)?;
        let Held { lease, token, .. } = &held;
        let granted = Op::granted(resource, lease, *token, held.believes_until);
        self.journal.ok(operation, granted)?;
        self.work_held(held, stream).await
    }

    async fn work_held(&mut self, mut held: Held, mut stream: Stream) -> Result<()> {
        let enough = now_ns() + self.how_long() * 1_000_000;
        while now_ns() < enough {
            if !self.listen(&mut held, &mut stream)? {
                return Ok(());
            }
            if !self.write_if_believed(&held).await? {
                break;
            }
        }
        if self.dice.bool() {
            return self.release(&held.lease).await;
        }
        // To close the connection is to let go. Nobody says when that has happened.
        let operation = self.journal.invoke(Op::release(&held.lease))?;
        drop(stream);
        self.journal.unknown(operation, Op::release(&held.lease))
    }

    /// Takes in what was told meanwhile; `false` when the lease is lost.
    fn listen(&mut self, held: &mut Held, stream: &mut Stream) -> Result<bool> {
        while let Ok((name, told)) = stream.events.try_recv() {
            if name == "lost" {
                self.journal.info(Op::lost(&held.lease))?;
                return Ok(false);
            }
            let Some(valid_for) = told["validForMs"].as_u64() else {
                continue;
            };
            let until = self.belief(stream.sent, valid_for);
            // An older event says less than what is known.
            if until > held.believes_until {
                let operation = self.journal.invoke(Op::renew(&held.lease))?;
                self.journal
                    .ok(operation, Op::renewed(&held.lease, until))?;
                held.believes_until = until;
            }
        }
        Ok(true)
    }

    fn open(&self, resource: &str) -> Stream {
        let (told, events) = mpsc::unbounded_channel();
        let url = format!("{}/v1/locks/hold", self.config.sidecar);
        let body = json!({"resource": resource, "ownerId": self.config.name});
        let asked = self.http.post(url).json(&body);
        let sent = now_ns();
        let reading = tokio::spawn(async move {
            // However it ends, the app hears nothing more.
            let _end = read(asked, told).await;
        });
        Stream {
            sent,
            events,
            reading,
        }
    }
}

impl Stream {
    /// What is told with the lock; nothing when it is not to be had.
    async fn until_acquired(&mut self) -> Option<Value> {
        loop {
            let (name, told) = self.events.recv().await?;
            match name.as_str() {
                "acquired" => return Some(told),
                "lost" | "error" => return None,
                _ => {}
            }
        }
    }
}

async fn read(
    asked: reqwest::RequestBuilder,
    told: mpsc::UnboundedSender<(String, Value)>,
) -> Result<()> {
    let mut pieces = asked.send().await?.error_for_status()?.bytes_stream();
    let mut rest = String::new();
    while let Some(piece) = pieces.next().await {
        rest.push_str(std::str::from_utf8(&piece?)?);
        while let Some((event, after)) = rest.split_once("\n\n") {
            if let Some(event) = parsed(event) {
                told.send(event)?;
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

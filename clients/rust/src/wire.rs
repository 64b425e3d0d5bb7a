//! The HTTP API of one sidecar: calls with one answer, and streams of events.

use std::time::Duration;

use reqwest::{Client as Http, Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api::{Acquired, Lease};
use crate::error::Error;

/// How long a call may take that does not wait for a lock. The sidecar answers a release after two
/// seconds at most, and tries other writes for about five.
pub(crate) const CALL: Duration = Duration::from_secs(10);
/// An event of a sidecar has some kilobytes at most.
const LARGEST_EVENT: usize = 1 << 20;
/// Renewals of many leases share this many connections, and open more while more are under way.
const IDLE_CONNECTIONS: usize = 4;

/// This address of a sidecar cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0:?} must be http://HOST:PORT or unix:///PATH")]
pub struct InvalidAddress(String);

/// The body of a call without arguments.
#[derive(Serialize)]
pub(crate) struct Nothing {}

/// An answer that says how long a lease is valid.
pub(crate) trait Granted: DeserializeOwned {
    /// Whether it is the answer of a sidecar: others lack these fields.
    fn is_whole(&self) -> bool;
}

impl Granted for Acquired {
    fn is_whole(&self) -> bool {
        !self.lease_id.is_empty() && self.fencing_token > 0
    }
}

impl Granted for Lease {
    fn is_whole(&self) -> bool {
        !self.lease_id.is_empty()
    }
}

#[derive(Clone)]
pub(crate) struct Sidecar {
    base: String,
    pub(crate) address: String,
    http: Http,
}

impl Sidecar {
    pub(crate) fn new(address: &str) -> Result<Self, InvalidAddress> {
        let invalid = || InvalidAddress(address.to_owned());
        let mut http = Http::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .user_agent(concat!("leasehold-rust/", env!("CARGO_PKG_VERSION")));
        let mut base = address.trim_end_matches('/').to_owned();
        if let Some(path) = address.strip_prefix("unix://") {
            if !path.starts_with('/') {
                return Err(invalid());
            }
            http = http.unix_socket(path);
            "http://localhost".clone_into(&mut base);
        } else {
            let parsed = reqwest::Url::parse(address).map_err(|_| invalid())?;
            let is_plain =
                parsed.path() == "/" && parsed.query().is_none() && parsed.username().is_empty();
            if parsed.scheme() != "http" || !is_plain {
                return Err(invalid());
            }
        }
        let http = http.build().map_err(|_| invalid())?;
        Ok(Self {
            base,
            address: address.to_owned(),
            http,
        })
    }

    /// Sends a request, and reads its answer, within a time.
    pub(crate) async fn call<T: Granted>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, Error> {
        let call = async {
            let answer = self.send(Method::POST, path, body).await?;
            let read = answer.bytes().await.map_err(|error| self.silent(&error))?;
            self.read(&read)
        };
        timeout(limit, call)
            .await
            .unwrap_or_else(|_| Err(self.slow()))
    }

    /// Reads a grant or a renewal.
    pub(crate) fn read<T: Granted>(&self, text: &[u8]) -> Result<T, Error> {
        let read = serde_json::from_slice(text).ok().filter(T::is_whole);
        read.ok_or_else(|| Error::stranger(&self.address))
    }

    /// Sends a request whose answer is without a body.
    pub(crate) async fn order(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<u16, Error> {
        let call = async { Ok(self.send(method, path, body).await?.status().as_u16()) };
        timeout(limit, call)
            .await
            .unwrap_or_else(|_| Err(self.slow()))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Response, Error> {
        let request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .json(body);
        let answer = request.send().await.map_err(|error| self.silent(&error))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let said = answer.bytes().await.map_err(|error| self.silent(&error))?;
        Err(Error::of_answer(status, &said))
    }

    /// Opens a stream of events. Dropping it closes its connection.
    pub(crate) async fn stream(&self, path: &str, body: &impl Serialize) -> Result<Events, Error> {
        let answer = self.send(Method::POST, path, body).await?;
        let kind = answer.headers().get("Content-Type");
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        if !is_stream {
            return Err(Error::stranger(&self.address));
        }
        Ok(Events {
            sidecar: self.clone(),
            answer,
            read: Vec::new(),
        })
    }

    /// No answer came in time.
    pub(crate) fn slow(&self) -> Error {
        Error::no_answer(&self.address, "it did not answer in time")
    }

    fn silent(&self, error: &reqwest::Error) -> Error {
        // The last source is the operating system's word; the others repeat the address.
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        Error::no_answer(&self.address, &why.to_string())
    }
}

/// A server-sent event.
pub(crate) struct Event {
    pub(crate) name: String,
    pub(crate) data: String,
}

/// A stream of events.
pub(crate) struct Events {
    sidecar: Sidecar,
    answer: Response,
    read: Vec<u8>,
}

impl Events {
    /// Returns the next event. A call that is dropped loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = take_event(&mut self.read) {
                return Ok(event);
            }
            let chunk = self.answer.chunk().await;
            let chunk = chunk.map_err(|error| self.sidecar.silent(&error))?;
            let Some(chunk) = chunk.filter(|_| self.read.len() < LARGEST_EVENT) else {
                let why = "the stream has ended";
                return Err(Error::no_answer(&self.sidecar.address, why));
            };
            // The sidecar may end lines as any HTTP server.
            self.read
                .extend(chunk.iter().filter(|byte| **byte != b'\r'));
        }
    }
}

/// Takes the first whole event that has a name.
fn take_event(read: &mut Vec<u8>) -> Option<Event> {
    while let Some(end) = read.windows(2).position(|pair| pair == b"\n\n") {
        let block: Vec<u8> = read.drain(..end + 2).collect();
        let text = String::from_utf8_lossy(&block);
        let mut event = Event {
            name: String::new(),
            data: String::new(),
        };
        for line in text.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => value.clone_into(&mut event.name),
                "data" => event.data.push_str(value),
                _ => {}
            }
        }
        if !event.name.is_empty() {
            return Some(event);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_may_come_in_pieces() {
        let text =
            ": comment\n\nevent: waiting\ndata: {}\n\nevent:acquired\ndata: {\"x\":\"€\"}\n\n";
        let mut read = Vec::new();
        let mut events = Vec::new();
        for byte in text.bytes() {
            read.push(byte);
            events.extend(take_event(&mut read));
        }
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].name, "acquired");
        assert_eq!(events[1].data, "{\"x\":\"€\"}");
        assert!(read.is_empty());
    }

    #[test]
    fn addresses_are_checked() {
        for bad in [
            "localhost:7373",
            "https://h",
            "unix://relative",
            "http://h/path",
            "http://",
            "http://u@h",
        ] {
            assert!(Sidecar::new(bad).is_err(), "{bad}");
        }
        for good in [
            "http://127.0.0.1:7373",
            "http://[::1]:7373/",
            "unix:///run/socket",
        ] {
            assert!(Sidecar::new(good).is_ok(), "{good}");
        }
    }
}

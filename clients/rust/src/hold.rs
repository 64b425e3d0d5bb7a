//! Holds a lock by a connection: `POST /v1/locks/hold`, or a candidacy. Nothing has to happen in time.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::acquire::Acquisition;
use crate::clock::now;
use crate::error::Error;
use crate::keeper::keep;
use crate::lease::{Grant, Lease, ReleaseRequest, Shared, Validity};
use crate::wire::{CALL, Event, Events};

/// A stream has an event at least every 40 s while its caller waits.
const SILENCE: Duration = Duration::from_secs(90);

/// Makes one attempt. Dropping it closes the connection, and nothing is held.
pub(crate) async fn attempt(of: &mut Acquisition) -> Result<Lease, Error> {
    let sent = now();
    let mut body = of.wanted.body();
    if let Some(left) = of.left() {
        body["waitSeconds"] = json!(left);
    }
    let path = if of.wanted.is_lead {
        format!("/v1/elections/{}/candidacy", escaped(&of.wanted.name))
    } else {
        "/v1/locks/hold".into()
    };
    let slow = of.sidecar.slow();
    let opened = timeout(silence(of), of.sidecar.stream(&path, &body)).await;
    let mut events = opened.unwrap_or_else(|_| Err(slow.clone()))?;
    loop {
        let next = timeout(silence(of), events.next()).await;
        let Event { name, data } = next.unwrap_or_else(|_| Err(slow.clone()))?;
        match name.as_str() {
            "acquired" => return granted(of, &data, sent, events),
            "error" => return Err(Error::of_event(&data)),
            "waiting" => of.alive(),
            _ => {}
        }
    }
}

/// Returns how long the next event may take.
fn silence(of: &Acquisition) -> Duration {
    let left = of.left().map(|left| Duration::from_secs(left) + CALL);
    left.map_or(SILENCE, |left| left.min(SILENCE))
}

fn escaped(name: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(escape).collect()
}

fn granted(of: &Acquisition, data: &str, sent: Duration, events: Events) -> Result<Lease, Error> {
    let grant: Grant =
        serde_json::from_str(data).map_err(|_| Error::stranger(&of.sidecar.address))?;
    let deadline = grant.validity.deadline(sent);
    if deadline <= now() {
        let why = "the sidecar stood still, and the lease is over";
        return Err(Error::no_answer(&of.sidecar.address, why));
    }
    let shared = Shared::new(of.sidecar.clone(), grant, deadline);
    keep(shared.clone(), follow(shared.clone(), events, sent));
    Ok(Lease::new(shared))
}

/// Reads the events of a lease. It keeps the stream also when nothing can be read any more: the
/// sidecar must not release the lock before the deadline.
async fn follow(shared: Arc<Shared>, mut events: Events, sent: Duration) -> Infallible {
    loop {
        match events.next().await {
            Ok(event) => take(&shared, &event, sent),
            Err(why) => {
                // The sidecar is gone, and keeps its promise until the deadline.
                shared.doubt(&why);
                pending::<()>().await;
            }
        }
    }
}

fn take(shared: &Shared, event: &Event, sent: Duration) {
    match event.name.as_str() {
        "lost" => {
            #[derive(Default, serde::Deserialize)]
            #[serde(default)]
            struct Loss {
                reason: String,
                detail: String,
            }
            let Loss { reason, detail } = serde_json::from_str(&event.data).unwrap_or_default();
            shared.lose(reason, detail);
        }
        "release-requested" => {
            if let Ok(request) = serde_json::from_str::<ReleaseRequest>(&event.data) {
                shared.ask_for_release(request);
            }
        }
        _ => {}
    }
    if let Ok(validity) = serde_json::from_str::<Validity>(&event.data) {
        shared.prolong(validity.deadline(sent));
    }
}

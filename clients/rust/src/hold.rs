//! Holds a lock by a connection: `POST /v1/locks/hold`, or a candidacy. Nothing has to happen in time.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::acquire::Acquisition;
use crate::api::{
    Acquired, CandidacyRequest, HeartbeatEvent, HoldRequest, LostEvent, ReleaseRequestedEvent,
};
use crate::clock::now;
use crate::error::Error;
use crate::keeper::keep;
use crate::lease::{Lease, Shared, after};
use crate::wire::{CALL, Event, Events};

/// A stream has an event at least every 40 s while its caller waits.
const SILENCE: Duration = Duration::from_secs(90);

/// Makes one attempt. Dropping it closes the connection, and nothing is held.
pub(crate) async fn attempt(of: &mut Acquisition) -> Result<Lease, Error> {
    let sent = now();
    let slow = of.sidecar.slow();
    let opened = timeout(silence(of), open(of)).await;
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

async fn open(of: &Acquisition) -> Result<Events, Error> {
    let wanted = &of.wanted;
    if wanted.is_lead {
        let path = format!("/v1/elections/{}/candidacy", escaped(&wanted.name));
        let candidacy = CandidacyRequest {
            owner_id: wanted.owner_id.clone(),
            metadata: wanted.metadata(),
            preferred: wanted.is_preferred.then_some(true),
            ..CandidacyRequest::default()
        };
        return of.sidecar.stream(&path, &candidacy).await;
    }
    let hold = HoldRequest {
        resource: wanted.name.clone(),
        owner_id: wanted.owner_id.clone(),
        metadata: wanted.metadata(),
        wait_seconds: of.left(),
        ..HoldRequest::default()
    };
    of.sidecar.stream("/v1/locks/hold", &hold).await
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
    let grant: Acquired = of.sidecar.read(data.as_bytes())?;
    let deadline = after(sent, grant.valid_for_ms);
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
            let lost: LostEvent = serde_json::from_str(&event.data).unwrap_or_default();
            shared.lose(lost.reason, lost.detail);
        }
        "release-requested" => {
            if let Ok(request) = serde_json::from_str::<ReleaseRequestedEvent>(&event.data) {
                shared.ask_for_release(request.into());
            }
        }
        _ => {}
    }
    let alive: HeartbeatEvent = serde_json::from_str(&event.data).unwrap_or_default();
    if alive.valid_for_ms > 0 {
        shared.prolong(after(sent, alive.valid_for_ms));
    }
}

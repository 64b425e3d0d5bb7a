//! A lock that an app holds by a connection: the app receives events about it until either side
//! ends it. Events arrive late, and each confirms only validity that counts from when the app sent
//! its request.

use std::time::Duration;

use leasehold::agent::{AcquireRequest, HoldError, LeaseEvent, Life};
use leasehold::protocol::ids::{LeaseId, Resource};
use tokio::sync::{mpsc, oneshot};

use super::{App, Asks, Held, Invocation, Op};
use crate::pod::Sidecar;

impl App {
    /// Waits for a lock and holds it by a connection, which it closes after a while.
    pub(super) async fn hold_by_connection(&mut self, resource: Resource) {
        let ttl = self.ttl();
        let mut request = self.request(resource, Duration::MAX);
        request.life = Life::Connection {
            max_hold: ttl.mul_f64(1.0 + 7.0 * self.random.f64()),
        };
        let asks = self.asks(Op::acquire(request.resource.as_str()));
        let there = self.way();
        tokio::time::sleep(there).await;
        let Some(sidecar) = self.pod.sidecar() else {
            return;
        };
        let (tell, mut told) = mpsc::unbounded_channel();
        let connection = self.connect(&sidecar, request, tell);
        self.world.count("hold");
        let closes_after = self.up_to(ttl * 8).min(self.world.left() + ttl);
        let closing = tokio::time::sleep(closes_after);
        tokio::pin!(closing);
        let mut held: Option<Held> = None;
        loop {
            let event = tokio::select! {
                biased;
                () = &mut closing => break,
                () = sidecar.crashed.cancelled() => break,
                event = told.recv() => event,
            };
            let Some((event, said)) = event else { break };
            let back = self.way();
            tokio::time::sleep(back).await;
            match event {
                LeaseEvent::Acquired(view)
                | LeaseEvent::Heartbeat(view)
                | LeaseEvent::AtRisk(view)
                | LeaseEvent::ReleaseRequested(view, _) => {
                    let is_new = held.is_none();
                    let request = said.filter(|_| !is_new);
                    let asks = Asks {
                        request: request.unwrap_or_else(|| asks.request.clone()),
                        ..asks.clone()
                    };
                    let heard = self.believe(&view, asks, is_new);
                    self.write(&heard);
                    let until = held.map_or(heard.until, |held| held.until.max(heard.until));
                    held = Some(Held { until, ..heard });
                }
                LeaseEvent::Lost(lease, loss) => {
                    self.world.note(&self.name, format_args!("{lease}: {loss}"));
                    self.world.count("hold lost");
                    self.is_lost(&lease);
                    break;
                }
                LeaseEvent::Failed(_) | LeaseEvent::Waiting { .. } => {}
            }
        }
        if let Some(held) = held {
            self.world
                .note(&self.name, format_args!("lets go of {}", held.lease));
            self.stop_believing(&held);
            self.over(&held);
        }
        // Dropped with the connection; then the sidecar detects its end.
        drop(connection);
    }
}

impl App {
    /// The connection stays open until the returned value is dropped. Each event is recorded as a
    /// request when it is sent.
    fn connect(
        &self,
        sidecar: &Sidecar,
        request: AcquireRequest,
        tell: mpsc::UnboundedSender<(LeaseEvent, Option<Invocation>)>,
    ) -> oneshot::Receiver<Result<(), HoldError>> {
        let (world, name) = (self.world.clone(), self.name.clone());
        sidecar.serve(move |agent, arrived| async move {
            let mut hold = agent.hold(request, arrived).await?;
            while let Some(event) = hold.next().await {
                let asked = said_of(&event).map(|lease| {
                    let (now, op) = (world.now(), Op::renew(lease.as_str()));
                    world.records().recorder.asks(now, &name, op)
                });
                if tell.send((event, asked)).is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Returns the lease that this event confirms.
const fn said_of(event: &LeaseEvent) -> Option<&LeaseId> {
    match event {
        LeaseEvent::Acquired(view)
        | LeaseEvent::Heartbeat(view)
        | LeaseEvent::AtRisk(view)
        | LeaseEvent::ReleaseRequested(view, _) => Some(&view.lease),
        LeaseEvent::Lost(..) | LeaseEvent::Failed(_) | LeaseEvent::Waiting { .. } => None,
    }
}

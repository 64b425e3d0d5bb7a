//! WebSockets: after the service agreed, bytes pass until both sides have ended, or a newer token is recorded. A
//! WebSocket counts as a running request.

use std::sync::Arc;

use http::Response;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::exchange::Exchange;
use super::gate::Pass;
use super::refusal::{Code, Refusal};

/// Both connections, which change to a WebSocket when the response is sent.
pub(super) struct Tunnel {
    client: OnUpgrade,
    service: OnUpgrade,
}

impl Tunnel {
    /// # Errors
    /// A [`Refusal`] if the client did not ask for it.
    pub(super) fn new(
        client: Option<OnUpgrade>,
        response: &mut Response<Incoming>,
    ) -> Result<Self, Refusal> {
        let service = response.extensions_mut().remove::<OnUpgrade>();
        let (Some(client), Some(service)) = (client, service) else {
            let detail = "the service changed the protocol of a request that did not ask for it";
            return Err(Refusal::new(Code::ServiceFailed, detail));
        };
        Ok(Self { client, service })
    }

    /// Copies until the end. The service may still work on what it received last, so the outcome stays unknown.
    pub(super) async fn run(self, pass: Option<Arc<Pass>>, exchange: Exchange) {
        match &pass {
            None => self.copy().await,
            Some(pass) => tokio::select! {
                biased;
                () = pass.until_cut(pass.tunnel_cut()) => pass.was_cut(),
                () = self.copy() => {}
            },
        }
        drop(exchange);
    }

    async fn copy(self) {
        let (Ok(client), Ok(service)) = tokio::join!(self.client, self.service) else {
            return;
        };
        let (mut client, mut service) = (TokioIo::new(client), TokioIo::new(service));
        // Each error means that a side has closed.
        let _ended = copy_bidirectional(&mut client, &mut service).await;
    }
}

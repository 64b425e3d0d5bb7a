//! What connections are answered with, and what is told about it: metrics and readiness.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Encoder, IntGauge, Registry, TextEncoder};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::read::Pair;
use crate::protocol::time::WallTime;

/// The certificate of the webhook, which can be another one for each connection. Cloning gives
/// another handle to the same.
#[derive(Clone)]
pub struct Served(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    registry: Registry,
    not_before: IntGauge,
    not_after: IntGauge,
}

struct State {
    pair: Option<Pair>,
    /// What is missing until the webhook can be called; none once it could.
    missing: Option<String>,
}

impl Default for Served {
    fn default() -> Self {
        let registry = Registry::new();
        let gauge = |name, help| {
            let gauge = IntGauge::new(name, help).expect("the metric must be valid");
            let registered = registry.register(Box::new(gauge.clone()));
            registered.expect("a metric must be registered once");
            gauge
        };
        let not_before = gauge(
            "leasehold_webhook_certificate_not_before_timestamp_seconds",
            "The start of validity of the certificate that the webhook serves.",
        );
        let not_after = gauge(
            "leasehold_webhook_certificate_not_after_timestamp_seconds",
            "The end of validity of the certificate that the webhook serves.",
        );
        Self(Arc::new(Inner {
            state: Mutex::new(State {
                pair: None,
                missing: Some("no certificate exists yet".to_owned()),
            }),
            registry,
            not_before,
            not_after,
        }))
    }
}

impl Served {
    /// Serves this one from now on. Connections that are open go on.
    pub fn serve(&self, pair: Pair) {
        self.0.not_before.set(pair.not_before);
        self.0.not_after.set(pair.not_after);
        self.state().pair = Some(pair);
    }

    /// What is served, in DER.
    #[must_use]
    pub fn certificate(&self) -> Option<Vec<u8>> {
        let state = self.state();
        let pair = state.pair.as_ref()?;
        Some(pair.key.cert.first()?.to_vec())
    }

    /// Whether what is served is not valid then: not yet, or not any more.
    #[must_use]
    pub fn is_invalid_at(&self, at: WallTime) -> bool {
        let at = at.0.div_euclid(1_000_000);
        let valid = |pair: &Pair| (pair.not_before..=pair.not_after).contains(&at);
        self.state().pair.as_ref().is_some_and(|pair| !valid(pair))
    }

    /// Says what is still missing before the API server can call the webhook. Once nothing was
    /// missing this changes nothing: who is called and fails is told by alerts, and an unready
    /// replica more would help nobody.
    pub fn misses(&self, what: &str) {
        if let Some(missing) = &mut self.state().missing {
            what.clone_into(missing);
        }
    }

    /// The API server can call the webhook.
    pub fn is_complete(&self) {
        self.state().missing = None;
    }

    /// Whether the API server can call the webhook, or could.
    ///
    /// # Errors
    /// What is missing.
    pub fn ready(&self) -> Result<(), String> {
        match &self.state().missing {
            Some(what) => Err(format!("the webhook cannot be called: {what}")),
            None => Ok(()),
        }
    }

    /// From when until when the certificate is valid, in the text format of Prometheus; nothing
    /// while there is none.
    #[must_use]
    pub fn metrics(&self) -> String {
        // Its times would be told as 1970.
        if self.state().pair.is_none() {
            return String::new();
        }
        let mut text = Vec::new();
        // Writing to memory cannot fail, and what is registered is well-formed.
        let _never = TextEncoder::new().encode(&self.0.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

impl ResolvesServerCert for Served {
    /// Asked with each handshake. While there is none, handshakes fail.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let state = self.state();
        state.pair.as_ref().map(|pair| pair.key.clone())
    }
}

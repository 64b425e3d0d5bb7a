//! The certificate for connections, with its metrics and readiness.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{Encoder, IntGauge, Registry, TextEncoder};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::read::Pair;
use crate::protocol::time::WallTime;

/// The certificate of the webhook, which may change between connections. A clone is another handle
/// to the same certificate.
#[derive(Clone)]
pub struct ServedCertificate(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    registry: Registry,
    not_before: IntGauge,
    not_after: IntGauge,
}

struct State {
    pair: Option<Pair>,
    /// What is missing before the webhook can be called; `None` once it could be.
    missing: Option<String>,
}

impl Default for ServedCertificate {
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

impl ServedCertificate {
    /// Serves this certificate for new connections. Open connections stay.
    pub fn serve(&self, pair: Pair) {
        self.0.not_before.set(pair.not_before);
        self.0.not_after.set(pair.not_after);
        self.state().pair = Some(pair);
    }

    /// Returns the served certificate, in DER.
    #[must_use]
    pub fn certificate(&self) -> Option<Vec<u8>> {
        let state = self.state();
        let pair = state.pair.as_ref()?;
        Some(pair.key.cert.first()?.to_vec())
    }

    /// Returns whether the served certificate is not valid at this time.
    #[must_use]
    pub fn is_invalid_at(&self, at: WallTime) -> bool {
        let at = at.0.div_euclid(1_000_000);
        let valid = |pair: &Pair| (pair.not_before..=pair.not_after).contains(&at);
        self.state().pair.as_ref().is_some_and(|pair| !valid(pair))
    }

    /// Sets what is missing before the API server can call the webhook. It has no effect once
    /// nothing was missing: failing calls are reported by alerts, and another unready replica would
    /// not help.
    pub fn set_missing(&self, what: &str) {
        if let Some(missing) = &mut self.state().missing {
            what.clone_into(missing);
        }
    }

    /// Records that the API server can call the webhook.
    pub fn set_complete(&self) {
        self.state().missing = None;
    }

    /// Returns whether the API server can call the webhook, or could before.
    ///
    /// # Errors
    /// What is missing.
    pub fn ready(&self) -> Result<(), String> {
        match &self.state().missing {
            Some(what) => Err(format!("the webhook cannot be called: {what}")),
            None => Ok(()),
        }
    }

    /// Returns the validity of the certificate in the text format of Prometheus; empty without a
    /// certificate.
    #[must_use]
    pub fn metrics(&self) -> String {
        // The gauges would show 1970.
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

impl fmt::Debug for ServedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served")
    }
}

impl ResolvesServerCert for ServedCertificate {
    /// Called for each handshake, which fails without a certificate.
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let state = self.state();
        state.pair.as_ref().map(|pair| pair.key.clone())
    }
}

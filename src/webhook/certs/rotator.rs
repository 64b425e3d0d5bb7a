//! Rotates the webhook's certificate as `plan` decides: a Secret with the certificate, the CA in
//! the webhook's configuration, and the served certificate.
//!
//! Every replica runs one, without a leader: a replica whose write conflicts reads the other's
//! result. A write with an unknown outcome is followed by a read. The only state is since when the
//! certificate in the Secret is trusted, and which certificate is served.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;

use super::issue::{IssueError, issue};
use super::plan::{Action, Authority, Bundle, Certificate, Observation, SecretState, Timing, plan};
use super::read::{Pair, authorities, pem_of};
use super::served::ServedCertificate;
use crate::clock::Clock;
use crate::protocol::time::Moment;
use crate::store::certificates::{CertificateStore, TlsFiles, TrustStore};
use crate::store::{StoreError, Stored};

/// The maximum interval between two reconciliations.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(60);
/// The first backoff after a failure; it doubles.
const BACKOFF: Duration = Duration::from_millis(250);
/// The longest backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// The maximum number of actions in one reconciliation; a rotation takes four.
const STEPS_MAX: usize = 8;

/// The ports of a rotator.
pub struct RotatorPorts {
    /// The Secret.
    pub certificates: Arc<dyn CertificateStore>,
    /// The configuration.
    pub trust: Arc<dyn TrustStore>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// Rotates the certificate of one replica.
pub struct Rotator {
    ports: RotatorPorts,
    /// The DNS names and addresses of the certificate.
    names: Vec<String>,
    timing: Timing,
    served: ServedCertificate,
    serving: Option<Certificate>,
    /// Since when all webhooks have been observed to trust the certificate.
    trusted: Option<(Certificate, Moment)>,
    /// When this replica last issued one.
    issued_at: Option<Moment>,
}

/// Why a reconciliation failed.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error("the Secret with the webhook's certificate cannot be {0}: {1}")]
    Secret(&'static str, StoreError),
    #[error("the webhook's configuration cannot be {0}: {1}")]
    Configuration(&'static str, StoreError),
    #[error(
        "changes to the webhook's Secret or configuration are reverted repeatedly; find the other writer, \
         such as cert-manager or a GitOps tool"
    )]
    Reverted,
    #[error(transparent)]
    Issue(#[from] IssueError),
}

impl Rotator {
    /// Creates a rotator.
    #[must_use]
    pub const fn new(
        ports: RotatorPorts,
        names: Vec<String>,
        timing: Timing,
        served: ServedCertificate,
    ) -> Self {
        Self {
            ports,
            names,
            timing,
            served,
            serving: None,
            trusted: None,
            issued_at: None,
        }
    }

    /// Runs forever.
    pub async fn run(mut self) {
        let Self { ports, .. } = &self;
        let mut changes =
            futures::stream::select(ports.certificates.changes(), ports.trust.changes());
        let mut failures = 0;
        let mut logged = String::new();
        loop {
            let rest = match self.reconcile().await {
                Ok(rest) => {
                    failures = 0;
                    logged.clear();
                    rest.min(RECONCILE_INTERVAL)
                }
                Err(error) => {
                    failures += 1;
                    let words = error.to_string();
                    self.served.set_missing(&words);
                    if logged != words {
                        tracing::warn!(error = words, "maintaining the webhook certificate failed");
                        logged = words;
                    }
                    backoff(failures)
                }
            };
            // The notifications report failures, too, and must not bypass the backoff.
            let is_well = failures == 0;
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                Some(()) = changes.next(), if is_well => {}
            }
        }
    }

    /// Reconciles until nothing is left to do. Returns how long to wait.
    async fn reconcile(&mut self) -> Result<Duration, RotationError> {
        for _ in 0..STEPS_MAX {
            if let Some(rest) = self.reconcile_once().await? {
                return Ok(rest);
            }
        }
        Err(RotationError::Reverted)
    }

    /// Performs one action. Returns how long to wait if there is none.
    async fn reconcile_once(&mut self) -> Result<Option<Duration>, RotationError> {
        let RotatorPorts {
            certificates,
            trust,
            ..
        } = &self.ports;
        let secret = certificates.get().await;
        let secret = secret.map_err(|error| RotationError::Secret("read", error))?;
        let configuration = trust.get().await;
        let configuration =
            configuration.map_err(|error| RotationError::Configuration("read", error))?;
        let (found, pair) = self.read_secret(secret.as_ref());
        let bundles: Option<Vec<Bundle>> = configuration.as_ref().map(|configuration| {
            let each = configuration.value.iter();
            each.map(|bundle| authorities(bundle)).collect()
        });
        let trusted_for = self.trusted_for(&found, bundles.as_deref());
        let seen = Observation {
            found: &found,
            trusted: bundles.as_deref(),
            served: self.serving.as_ref(),
            trusted_for,
            now: self.wall_seconds(),
        };
        match plan(&seen, self.timing) {
            Action::Issue(why) => self.issue_certificate(secret.as_ref(), &why).await,
            Action::Renew => {
                // The served certificate is valid whatever the result of the renewal.
                self.update_readiness(bundles.as_deref());
                if let Some(configuration) = &configuration {
                    self.check_write_access(configuration).await?;
                }
                let why = "a third of its life is left to the one in the Secret";
                self.issue_certificate(secret.as_ref(), why).await
            }
            Action::Publish(next) => {
                if let Some(configuration) = &configuration {
                    self.publish(configuration, next).await?;
                }
                Ok(None)
            }
            Action::Serve => {
                self.serve(found, pair);
                Ok(None)
            }
            Action::Wait(rest) => {
                self.update_readiness(bundles.as_deref());
                Ok(Some(rest))
            }
        }
    }

    fn read_secret(&self, secret: Option<&Stored<TlsFiles>>) -> (SecretState, Option<Pair>) {
        match secret.map(|secret| Pair::read_for(&secret.value, &self.names)) {
            None => (SecretState::Missing, None),
            Some(Err(why)) => (SecretState::Unusable(why.to_string()), None),
            Some(Ok((pair, certificate))) => (SecretState::Usable(certificate), Some(pair)),
        }
    }

    /// Returns for how long the certificate in the Secret has been trusted.
    fn trusted_for(&mut self, found: &SecretState, bundles: Option<&[Bundle]>) -> Option<Duration> {
        let now = self.ports.clock.now();
        let SecretState::Usable(certificate) = found else {
            self.trusted = None;
            return None;
        };
        let is_in = |bundle: &Bundle| {
            let mut there = bundle.iter().flatten();
            there.any(|authority| *authority == certificate.authority)
        };
        if !bundles.is_some_and(|bundles| bundles.iter().all(is_in)) {
            self.trusted = None;
            return None;
        }
        let since = match &self.trusted {
            Some((before, since)) if before == certificate => *since,
            _ => now,
        };
        self.trusted = Some((certificate.clone(), since));
        Some(now.since(since))
    }

    /// Issues a certificate, by compare-and-swap on the Secret that was read. Of all replicas that
    /// do so at once one writes it, and the others find it.
    async fn issue_certificate(
        &mut self,
        secret: Option<&Stored<TlsFiles>>,
        why: &str,
    ) -> Result<Option<Duration>, RotationError> {
        let now = self.ports.clock.now();
        // Two replicas with very different wall clocks would replace each other's certificates
        // forever.
        let rest = self
            .issued_at
            .map(|issued_at| self.timing.settling().saturating_sub(now.since(issued_at)))
            .filter(|rest| !rest.is_zero());
        if rest.is_some() {
            return Ok(rest);
        }
        let files = issue(&self.names, self.timing.lifetime(), self.wall_seconds())?;
        self.issued_at = Some(now);
        tracing::info!(reason = why, "issuing a webhook certificate");
        let certificates = &self.ports.certificates;
        let written = match secret {
            None => certificates.create(&files).await,
            Some(current) => certificates.update(current, &files).await,
        };
        match written {
            Ok(()) | Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(None),
            Err(error) => Err(RotationError::Secret("written", error)),
        }
    }

    /// Checks that the configuration can be written, before a valid certificate is replaced. If the
    /// new CA could not be published, for example without the permission, a replica that starts
    /// would have nothing to serve.
    async fn check_write_access(
        &self,
        configuration: &Stored<Vec<Vec<u8>>>,
    ) -> Result<(), RotationError> {
        let nothing = vec![None; configuration.value.len()];
        match self.ports.trust.update(configuration, &nothing).await {
            // A conflict means that the write was permitted.
            Ok(()) | Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(()),
            Err(error) => Err(RotationError::Configuration("written", error)),
        }
    }

    async fn publish(
        &self,
        configuration: &Stored<Vec<Vec<u8>>>,
        next: Vec<Option<Vec<Authority>>>,
    ) -> Result<(), RotationError> {
        let counts: Vec<_> = next.iter().flatten().map(Vec::len).collect();
        let next: Vec<_> = next
            .iter()
            .map(|bundle| bundle.as_deref().map(pem_of))
            .collect();
        // On the version that was read: otherwise the CA that another replica publishes at this
        // time would be lost, and its certificate not trusted.
        match self.ports.trust.update(configuration, &next).await {
            Ok(()) => {
                tracing::info!(authorities = ?counts, "published the CA bundle");
                Ok(())
            }
            Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(()),
            Err(error) => Err(RotationError::Configuration("written", error)),
        }
    }

    fn serve(&mut self, found: SecretState, pair: Option<Pair>) {
        let (SecretState::Usable(certificate), Some(pair)) = (found, pair) else {
            return;
        };
        tracing::info!(
            notAfter = certificate.not_after,
            "serving a new certificate"
        );
        self.served.serve(pair);
        self.serving = Some(certificate);
    }

    fn update_readiness(&self, bundles: Option<&[Bundle]>) {
        let (Some(bundles), Some(serving)) = (bundles, &self.serving) else {
            self.served
                .set_missing("its MutatingWebhookConfiguration does not exist");
            return;
        };
        let trusts = |bundle: &Bundle| {
            let mut there = bundle.iter().flatten();
            there.any(|authority| *authority == serving.authority)
        };
        if bundles.iter().all(trusts) {
            self.served.set_complete();
        }
    }

    fn wall_seconds(&self) -> i64 {
        self.ports.clock.wall().0.div_euclid(1_000_000)
    }
}

/// Returns a backoff with jitter that doubles with each failure.
fn backoff(failures: u32) -> Duration {
    let longest = BACKOFF
        .saturating_mul(1 << failures.min(16))
        .min(BACKOFF_MAX);
    BACKOFF + longest.mul_f64(fastrand::f64())
}

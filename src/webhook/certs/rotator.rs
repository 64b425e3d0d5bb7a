//! Does what `plan` decides: keeps a certificate in a Secret, its authority in the webhook's
//! configuration, and serves it.
//!
//! Every replica runs one, and none leads: whose write comes second reads what the first one wrote. An
//! answer that does not say whether it was written is followed by a read, as everything is. What is
//! kept between two looks is only since when what is in the Secret is trusted, and what is served.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;

use super::issue::{IssueFailed, issue};
use super::plan::{Authority, Bundle, Certificate, Found, Seen, Step, Terms, plan};
use super::read::{Pair, authorities, pem_of};
use super::served::Served;
use crate::clock::Clock;
use crate::protocol::time::Moment;
use crate::store::certificates::{CertificateStore, TlsFiles, TrustStore};
use crate::store::{StoreError, Stored};

/// The longest time between two looks, whatever the feeds tell.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The first rest after a failure; it doubles.
const RETRY: Duration = Duration::from_millis(250);
/// The longest one.
const RETRY_MAX: Duration = Duration::from_secs(15);
/// How many steps one look leads to at most; a rotation takes four.
const STEPS_MAX: usize = 8;

/// What a keeper works on.
pub struct KeeperPorts {
    /// The Secret.
    pub certificates: Arc<dyn CertificateStore>,
    /// The configuration.
    pub trust: Arc<dyn TrustStore>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

/// Keeps the certificate of one replica.
pub struct Keeper {
    ports: KeeperPorts,
    /// What the certificate is for: DNS names and addresses.
    names: Vec<String>,
    terms: Terms,
    served: Served,
    serves: Option<Certificate>,
    /// Since when the certificate is seen as trusted by all webhooks.
    trusted: Option<(Certificate, Moment)>,
    /// When one was last made here.
    made: Option<Moment>,
}

/// What kept a look from its end.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the Secret with the webhook's certificate cannot be {0}: {1}")]
    Secret(&'static str, StoreError),
    #[error("the webhook's configuration cannot be {0}: {1}")]
    Configuration(&'static str, StoreError),
    #[error(
        "changes to the webhook's Secret or configuration are reverted repeatedly; find the other writer, \
         such as cert-manager or a GitOps tool"
    )]
    Undone,
    #[error(transparent)]
    Issue(#[from] IssueFailed),
}

impl Keeper {
    /// One that has done nothing yet.
    #[must_use]
    pub const fn new(ports: KeeperPorts, names: Vec<String>, terms: Terms, served: Served) -> Self {
        Self {
            ports,
            names,
            terms,
            served,
            serves: None,
            trusted: None,
            made: None,
        }
    }

    /// Keeps it, for ever.
    pub async fn run(mut self) {
        let Self { ports, .. } = &self;
        let mut changes =
            futures::stream::select(ports.certificates.changes(), ports.trust.changes());
        let mut failures = 0;
        let mut said = String::new();
        loop {
            let rest = match self.look().await {
                Ok(rest) => {
                    failures = 0;
                    said.clear();
                    rest.min(LOOK_EVERY)
                }
                Err(trouble) => {
                    failures += 1;
                    let words = trouble.to_string();
                    self.served.misses(&words);
                    if said != words {
                        tracing::warn!(error = words, "maintaining the webhook certificate failed");
                        said = words;
                    }
                    pause(failures)
                }
            };
            // A feed that tells of its own failures must not make for more looks than that.
            let is_well = failures == 0;
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                Some(()) = changes.next(), if is_well => {}
            }
        }
    }

    /// Looks, and does what there is to do. Gives how long to rest.
    async fn look(&mut self) -> Result<Duration, Trouble> {
        for _ in 0..STEPS_MAX {
            if let Some(rest) = self.step().await? {
                return Ok(rest);
            }
        }
        Err(Trouble::Undone)
    }

    /// One look, one step; gives how long to rest where there is none.
    async fn step(&mut self) -> Result<Option<Duration>, Trouble> {
        let KeeperPorts {
            certificates,
            trust,
            ..
        } = &self.ports;
        let secret = certificates.get().await;
        let secret = secret.map_err(|error| Trouble::Secret("read", error))?;
        let configuration = trust.get().await;
        let configuration = configuration.map_err(|error| Trouble::Configuration("read", error))?;
        let (found, pair) = self.found(secret.as_ref());
        let bundles: Option<Vec<Bundle>> = configuration.as_ref().map(|configuration| {
            let each = configuration.value.iter();
            each.map(|bundle| authorities(bundle)).collect()
        });
        let trusted_for = self.trusted_for(&found, bundles.as_deref());
        let seen = Seen {
            found: &found,
            trusted: bundles.as_deref(),
            served: self.serves.as_ref(),
            trusted_for,
            now: self.wall_seconds(),
        };
        match plan(&seen, self.terms) {
            Step::Make(why) => self.make(secret.as_ref(), &why).await,
            Step::Renew => {
                // What is served is good until then, whatever becomes of this.
                self.tell_what_is_missing(bundles.as_deref());
                if let Some(configuration) = &configuration {
                    self.write_nothing(configuration).await?;
                }
                let why = "a third of its life is left to the one in the Secret";
                self.make(secret.as_ref(), why).await
            }
            Step::Publish(next) => {
                if let Some(configuration) = &configuration {
                    self.publish(configuration, next).await?;
                }
                Ok(None)
            }
            Step::Serve => {
                self.serve(found, pair);
                Ok(None)
            }
            Step::Rest(rest) => {
                self.tell_what_is_missing(bundles.as_deref());
                Ok(Some(rest))
            }
        }
    }

    fn found(&self, secret: Option<&Stored<TlsFiles>>) -> (Found, Option<Pair>) {
        match secret.map(|secret| Pair::read_for(&secret.value, &self.names)) {
            None => (Found::Missing, None),
            Some(Err(why)) => (Found::Unusable(why.to_string()), None),
            Some(Ok((pair, certificate))) => (Found::Usable(certificate), Some(pair)),
        }
    }

    /// For how long what the Secret has is seen as trusted.
    fn trusted_for(&mut self, found: &Found, bundles: Option<&[Bundle]>) -> Option<Duration> {
        let now = self.ports.clock.now();
        let Found::Usable(certificate) = found else {
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

    /// Makes one, by compare-and-swap on the Secret that was read: of all replicas that make one at
    /// the same time one puts it there, and the others find it.
    async fn make(
        &mut self,
        secret: Option<&Stored<TlsFiles>>,
        why: &str,
    ) -> Result<Option<Duration>, Trouble> {
        let now = self.ports.clock.now();
        // Two replicas whose wall clocks are far apart would replace each other's for ever.
        let rest = self
            .made
            .map(|made| self.terms.settling().saturating_sub(now.since(made)))
            .filter(|rest| !rest.is_zero());
        if rest.is_some() {
            return Ok(rest);
        }
        let files = issue(&self.names, self.terms.life(), self.wall_seconds())?;
        self.made = Some(now);
        tracing::info!(reason = why, "issuing a webhook certificate");
        let certificates = &self.ports.certificates;
        let written = match secret {
            None => certificates.create(&files).await,
            Some(current) => certificates.update(current, &files).await,
        };
        match written {
            Ok(()) | Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(None),
            Err(error) => Err(Trouble::Secret("written", error)),
        }
    }

    /// The new certificate takes the place of a good one. If its authority could not be published, for want of
    /// a right say, a replica that starts would have nothing to serve; so that is tried before.
    async fn write_nothing(&self, configuration: &Stored<Vec<Vec<u8>>>) -> Result<(), Trouble> {
        let nothing = vec![None; configuration.value.len()];
        match self.ports.trust.update(configuration, &nothing).await {
            // Whoever came before was let.
            Ok(()) | Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(()),
            Err(error) => Err(Trouble::Configuration("written", error)),
        }
    }

    async fn publish(
        &self,
        configuration: &Stored<Vec<Vec<u8>>>,
        next: Vec<Option<Vec<Authority>>>,
    ) -> Result<(), Trouble> {
        let counts: Vec<_> = next.iter().flatten().map(Vec::len).collect();
        let next: Vec<_> = next
            .iter()
            .map(|bundle| bundle.as_deref().map(pem_of))
            .collect();
        // On the version that was read: an authority that another replica publishes at this moment
        // would be lost otherwise, and with it what that one serves.
        match self.ports.trust.update(configuration, &next).await {
            Ok(()) => {
                tracing::info!(authorities = ?counts, "published the CA bundle");
                Ok(())
            }
            Err(StoreError::Conflict | StoreError::Ambiguous(_)) => Ok(()),
            Err(error) => Err(Trouble::Configuration("written", error)),
        }
    }

    fn serve(&mut self, found: Found, pair: Option<Pair>) {
        let (Found::Usable(certificate), Some(pair)) = (found, pair) else {
            return;
        };
        tracing::info!(
            notAfter = certificate.not_after,
            "serving a new certificate"
        );
        self.served.serve(pair);
        self.serves = Some(certificate);
    }

    fn tell_what_is_missing(&self, bundles: Option<&[Bundle]>) {
        let (Some(bundles), Some(serves)) = (bundles, &self.serves) else {
            self.served
                .misses("its MutatingWebhookConfiguration does not exist");
            return;
        };
        let trusts = |bundle: &Bundle| {
            let mut there = bundle.iter().flatten();
            there.any(|authority| *authority == serves.authority)
        };
        if bundles.iter().all(trusts) {
            self.served.is_complete();
        }
    }

    fn wall_seconds(&self) -> i64 {
        self.ports.clock.wall().0.div_euclid(1_000_000)
    }
}

/// Full jitter, on twice as much after each failure.
fn pause(failures: u32) -> Duration {
    let longest = RETRY.saturating_mul(1 << failures.min(16)).min(RETRY_MAX);
    RETRY + longest.mul_f64(fastrand::f64())
}

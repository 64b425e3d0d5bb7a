//! Plans the rotation of the certificate, from the Secret, the trusted CA bundles and the time.
//!
//! Pure. All replicas plan and may act at once: each write is a compare-and-swap, and the others
//! then observe it. Invariant of a rotation: the served certificate is trusted. So the new CA is
//! published beside the old one, then the new certificate is served. Only after every replica had
//! time for that, the old CA is removed.
//!
//! The wall clock decides about validity, as for every other reader of the certificate.

use std::sync::Arc;
use std::time::Duration;

/// How long before its issue a certificate becomes valid, because clocks differ.
pub const BACKDATED: Duration = Duration::from_secs(60 * 60);
/// The maximum number of published CAs. More than three only exist if another tool keeps adding
/// some.
const AUTHORITIES_MAX: usize = 8;

/// A CA, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The certificate, in DER.
    pub der: Arc<[u8]>,
    /// The end of its validity, in seconds since 1970.
    pub not_after: i64,
}

/// A certificate that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, in DER.
    pub der: Arc<[u8]>,
    /// The CA that issued it.
    pub authority: Authority,
    /// The start of its validity, in seconds since 1970.
    pub not_before: i64,
    /// The end of its validity.
    pub not_after: i64,
}

impl Certificate {
    const fn is_valid(&self, now: i64) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// The content of the Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretState {
    /// The Secret does not exist.
    Missing,
    /// It has no usable certificate, for this reason.
    Unusable(String),
    /// It has this certificate.
    Usable(Certificate),
}

/// The CA bundle of one webhook; `None` if it cannot be read.
pub type Bundle = Option<Vec<Authority>>;

/// What a replica observes.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    /// The content of the Secret.
    pub found: &'a SecretState,
    /// The CA bundle of each webhook; `None` if the configuration does not exist.
    pub trusted: Option<&'a [Bundle]>,
    /// The certificate that this replica serves.
    pub served: Option<&'a Certificate>,
    /// For how long this replica has observed that all webhooks trust the certificate in the
    /// Secret.
    pub trusted_for: Option<Duration>,
    /// The wall clock, in seconds since 1970.
    pub now: i64,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Issue a certificate and write it to the Secret, for this reason.
    Issue(String),
    /// Issue another certificate while the one in the Secret is valid, if the CA bundles can be
    /// written.
    Renew,
    /// Write these CA bundles; `None` for a webhook that needs no change.
    Publish(Vec<Option<Vec<Authority>>>),
    /// Serve the certificate in the Secret.
    Serve,
    /// Wait this long.
    Wait(Duration),
}

/// The durations of a rotation.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    lifetime: Duration,
}

impl Timing {
    /// Derives the durations from the lifetime of a certificate.
    #[must_use]
    pub const fn new(lifetime: Duration) -> Self {
        Self { lifetime }
    }

    /// Returns the lifetime of a certificate.
    #[must_use]
    pub const fn lifetime(self) -> Duration {
        self.lifetime
    }

    /// Returns the remaining lifetime at which a certificate is renewed: a third.
    #[must_use]
    pub fn renewed_before(self) -> Duration {
        self.lifetime / 3
    }

    /// Returns how long the API servers may take to observe a change of the configuration.
    #[must_use]
    pub fn settling(self) -> Duration {
        (self.lifetime / 20).min(Duration::from_secs(10))
    }

    /// Returns how long both CAs are trusted: until a replica without access to the API server has
    /// it again, or was replaced.
    #[must_use]
    pub fn overlap(self) -> Duration {
        (self.lifetime / 10).min(Duration::from_secs(60 * 60))
    }
}

/// Plans the next action.
#[must_use]
pub fn plan(seen: &Observation<'_>, timing: Timing) -> Action {
    let pair = match seen.found {
        SecretState::Missing => {
            return Action::Issue("no Secret with a certificate exists".to_owned());
        }
        SecretState::Unusable(why) => return Action::Issue(why.clone()),
        SecretState::Usable(pair) => pair,
    };
    if pair.not_before > seen.now {
        // The clock of its issuer differs. In the end the majority decides.
        return Action::Issue("the certificate in the Secret is not valid yet".to_owned());
    }
    if pair.not_after <= seen.now {
        return Action::Issue("the certificate in the Secret has expired".to_owned());
    }
    let is_served = seen.served.is_some_and(|served| served.der == pair.der);
    let Some(bundles) = seen.trusted else {
        // The API server does not call the webhook. Once the configuration exists, its CA bundle is
        // written first.
        return if is_served {
            until_due(pair, seen.now, timing)
        } else {
            Action::Serve
        };
    };
    let next = bundles
        .iter()
        .map(|bundle| with_new_authority(bundle, pair, seen));
    if let Some(publish) = plan_publish(next) {
        return publish;
    }
    let trusted_for = seen.trusted_for.unwrap_or_default();
    if !is_served {
        let trusts = |served: &Certificate, bundle: &Bundle| {
            let there = bundle.as_deref().unwrap_or_default();
            there.contains(&served.authority)
        };
        let serves_well = seen.served.is_some_and(|served| {
            served.is_valid(seen.now) && bundles.iter().all(|bundle| trusts(served, bundle))
        });
        let left = timing.settling().saturating_sub(trusted_for);
        return if serves_well && !left.is_zero() {
            Action::Wait(left)
        } else {
            Action::Serve
        };
    }
    let rest = match until_due(pair, seen.now, timing) {
        Action::Wait(rest) => rest,
        due => return due,
    };
    let left = timing.overlap().saturating_sub(trusted_for);
    let only = bundles
        .iter()
        .map(|bundle| without_old_authorities(bundle, pair));
    match plan_publish(only) {
        Some(drop) if left.is_zero() => drop,
        Some(_later) => Action::Wait(rest.min(left)),
        None => Action::Wait(rest),
    }
}

/// Returns a bundle with the new CA, if a webhook does not trust it. It also has the CA of the
/// served certificate, and all that are trusted already and still valid.
fn with_new_authority(
    bundle: &Bundle,
    pair: &Certificate,
    seen: &Observation<'_>,
) -> Option<Vec<Authority>> {
    let there = bundle.as_deref().unwrap_or_default();
    if there.contains(&pair.authority) {
        return None;
    }
    let mut next = vec![pair.authority.clone()];
    let served = seen.served.map(|served| &served.authority);
    for authority in served.into_iter().chain(there) {
        let is_valid = authority.not_after > seen.now;
        if is_valid && !next.contains(authority) && next.len() < AUTHORITIES_MAX {
            next.push(authority.clone());
        }
    }
    Some(next)
}

/// Returns a bundle with only the new CA, if a webhook trusts others, too.
fn without_old_authorities(bundle: &Bundle, pair: &Certificate) -> Option<Vec<Authority>> {
    let only = std::slice::from_ref(&pair.authority);
    (bundle.as_deref() != Some(only)).then(|| only.to_vec())
}

/// Returns the action that writes the bundles, if any has to change.
fn plan_publish(next: impl Iterator<Item = Option<Vec<Authority>>>) -> Option<Action> {
    let next: Vec<_> = next.collect();
    let is_any = next.iter().any(Option::is_some);
    is_any.then_some(Action::Publish(next))
}

fn until_due(pair: &Certificate, now: i64, timing: Timing) -> Action {
    let left = u64::try_from(pair.not_after.saturating_sub(now)).unwrap_or_default();
    let rest = Duration::from_secs(left).saturating_sub(timing.renewed_before());
    if rest.is_zero() {
        return Action::Renew;
    }
    Action::Wait(rest)
}

//! Decides what is to be done about the certificate: from what the Secret has, what the API server
//! trusts, and what time it is.
//!
//! Pure. Every replica asks it, and all of them may act at once: each write is a compare-and-swap, and
//! what one has done the others find done. The invariant of a rotation: what is served is trusted.
//! So the new authority is published beside the old one, then the new certificate is served, and
//! only when every replica had the time for that, the old authority goes.
//!
//! Validity is by the wall clock, as everybody's who looks at a certificate.

use std::sync::Arc;
use std::time::Duration;

/// How long before it was made a certificate begins to be valid: clocks differ.
pub const BACKDATED: Duration = Duration::from_secs(60 * 60);
/// How many authorities are published at most. More than three are there only if somebody keeps
/// adding some.
const AUTHORITIES_MAX: usize = 8;

/// An authority, by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Its certificate, in DER.
    pub der: Arc<[u8]>,
    /// Until when it is valid, in seconds since 1970.
    pub not_after: i64,
}

/// A certificate that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// It, in DER.
    pub der: Arc<[u8]>,
    /// Who issued it.
    pub authority: Authority,
    /// From when on it is valid, in seconds since 1970.
    pub not_before: i64,
    /// Until when.
    pub not_after: i64,
}

impl Certificate {
    const fn is_valid(&self, now: i64) -> bool {
        self.not_before <= now && now < self.not_after
    }
}

/// What the Secret has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// There is no Secret.
    Missing,
    /// It has nothing that can be served, and this is why.
    Unusable(String),
    /// It has this one.
    Usable(Certificate),
}

/// What one webhook of the configuration trusts: the authorities, or nothing that can be read.
pub type Bundle = Option<Vec<Authority>>;

/// What is seen.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// What the Secret has.
    pub found: &'a Found,
    /// What each webhook trusts; none when there is no configuration.
    pub trusted: Option<&'a [Bundle]>,
    /// What this replica serves.
    pub served: Option<&'a Certificate>,
    /// For how long this replica has seen that what the Secret has is trusted by all webhooks.
    pub trusted_for: Option<Duration>,
    /// The wall clock, in seconds since 1970.
    pub now: i64,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a certificate and put it into the Secret; for this reason.
    Make(String),
    /// Make another one while the one in the Secret is still good: only if its authority can be published.
    Renew,
    /// Write these authorities; none where a webhook has what it should have.
    Publish(Vec<Option<Vec<Authority>>>),
    /// Serve what the Secret has.
    Serve,
    /// Nothing, for so long.
    Rest(Duration),
}

/// How long things take.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    life: Duration,
}

impl Terms {
    /// For certificates that live so long.
    #[must_use]
    pub const fn new(life: Duration) -> Self {
        Self { life }
    }

    /// How long a certificate lives.
    #[must_use]
    pub const fn life(self) -> Duration {
        self.life
    }

    /// A certificate with less than that left is renewed: a third of its life.
    #[must_use]
    pub fn renewed_before(self) -> Duration {
        self.life / 3
    }

    /// How long the API servers, each of which watches the configuration, are given to see it.
    #[must_use]
    pub fn settling(self) -> Duration {
        (self.life / 20).min(Duration::from_secs(10))
    }

    /// How long both authorities are trusted: until a replica that could not reach the API server
    /// has, or is no replica any more.
    #[must_use]
    pub fn overlap(self) -> Duration {
        (self.life / 10).min(Duration::from_secs(60 * 60))
    }
}

/// Decides.
#[must_use]
pub fn plan(seen: &Seen<'_>, terms: Terms) -> Step {
    let pair = match seen.found {
        Found::Missing => return Step::Make("no Secret with a certificate exists".to_owned()),
        Found::Unusable(why) => return Step::Make(why.clone()),
        Found::Usable(pair) => pair,
    };
    if pair.not_before > seen.now {
        // Whoever made it has another idea of the time. That of most decides in the end.
        return Step::Make("the certificate in the Secret is not valid yet".to_owned());
    }
    if pair.not_after <= seen.now {
        return Step::Make("the certificate in the Secret has expired".to_owned());
    }
    let is_served = seen.served.is_some_and(|served| served.der == pair.der);
    let Some(bundles) = seen.trusted else {
        // Nobody is sent here. Who is, when the configuration comes, is told first.
        return if is_served {
            until_due(pair, seen.now, terms)
        } else {
            Step::Serve
        };
    };
    let next = bundles.iter().map(|bundle| widened(bundle, pair, seen));
    if let Some(publish) = changed(next) {
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
        let left = terms.settling().saturating_sub(trusted_for);
        return if serves_well && !left.is_zero() {
            Step::Rest(left)
        } else {
            Step::Serve
        };
    }
    let rest = match until_due(pair, seen.now, terms) {
        Step::Rest(rest) => rest,
        due => return due,
    };
    let left = terms.overlap().saturating_sub(trusted_for);
    let only = bundles.iter().map(|bundle| narrowed(bundle, pair));
    match changed(only) {
        Some(drop) if left.is_zero() => drop,
        Some(_later) => Step::Rest(rest.min(left)),
        None => Step::Rest(rest),
    }
}

/// What a webhook is to trust where it does not trust the pair's authority: that one, the one of
/// what is served, and those that it trusts already, as long as they are valid.
fn widened(bundle: &Bundle, pair: &Certificate, seen: &Seen<'_>) -> Option<Vec<Authority>> {
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

/// The pair's authority alone, where a webhook trusts others too.
fn narrowed(bundle: &Bundle, pair: &Certificate) -> Option<Vec<Authority>> {
    let only = std::slice::from_ref(&pair.authority);
    (bundle.as_deref() != Some(only)).then(|| only.to_vec())
}

/// None where no webhook needs anything.
fn changed(next: impl Iterator<Item = Option<Vec<Authority>>>) -> Option<Step> {
    let next: Vec<_> = next.collect();
    let is_any = next.iter().any(Option::is_some);
    is_any.then_some(Step::Publish(next))
}

fn until_due(pair: &Certificate, now: i64, terms: Terms) -> Step {
    let left = u64::try_from(pair.not_after.saturating_sub(now)).unwrap_or_default();
    let rest = Duration::from_secs(left).saturating_sub(terms.renewed_before());
    if rest.is_zero() {
        return Step::Renew;
    }
    Step::Rest(rest)
}

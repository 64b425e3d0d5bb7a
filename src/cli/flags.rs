//! The flags of every role with an agent.
//!
//! Each has an environment variable. An invalid value is a usage error before anything is started.

use std::collections::BTreeSet;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use http::uri::Authority;

use super::{elections, listen};
use crate::agent::{Config, OnTerm};
use crate::http::HttpOptions;
use crate::protocol::ids::{RESOURCE_MAX_BYTES, Resource};
use crate::protocol::session::PodRef;
use crate::protocol::time::SessionTtl;
use crate::protocol::token::MAX_BASE;

/// The maximum number of prefixes with a contention metric of their own.
const METRICS_PREFIXES_MAX: usize = 50;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "serving")]
pub(super) struct Flags {
    #[command(flatten)]
    pub(super) listening: listen::Args,
    /// A name besides localhost that is allowed in the Host header, without a port; can be
    /// repeated.
    #[arg(
        long, env = "LEASEHOLD_ALLOW_HOST", value_name = "NAME", value_delimiter = ',',
        value_parser = host,
    )]
    pub(super) allow_host: Vec<String>,
    /// The session TTL in seconds, 3 to 3600: how long after the last renewal the locks of this process
    /// can be taken over.
    #[arg(
        long, env = "LEASEHOLD_SESSION_TTL", value_name = "SECONDS", default_value = "15",
        value_parser = session_ttl,
    )]
    session_ttl: SessionTtl,
    /// How SIGTERM treats held locks.
    #[arg(long, env = "LEASEHOLD_ON_TERM", value_enum, default_value_t = OnTermFlag::Wait)]
    on_term: OnTermFlag,
    /// Added to every fencing token. Must be the same in the whole installation, and never lowered.
    #[arg(
        long, env = "LEASEHOLD_TOKEN_FLOOR", value_name = "TOKEN", default_value_t = 0,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_BASE),
    )]
    token_floor: u64,
    /// A resource prefix with a contention metric of its own; can be repeated or comma-separated,
    /// at most 50 times.
    #[arg(
        long, env = "LEASEHOLD_METRICS_PREFIX", value_name = "PREFIX", value_delimiter = ',',
        value_parser = prefix,
    )]
    metrics_prefix: Vec<String>,
    #[command(flatten)]
    pub(super) elections: elections::Args,
    #[command(flatten)]
    pub(super) log: super::log::Args,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnTermFlag {
    /// Wait until each lease is released or its validity has passed.
    Wait,
    /// Release all locks without a valid lease and stop. Valid leases stay with the session, for a
    /// restarted sidecar (--state-dir), or until the pod ends or the session expires.
    ReleaseNow,
    /// Release all locks immediately; only if the apps have already exited.
    AppsEnded,
}

impl Flags {
    /// Checks the combination of the flags.
    pub(super) fn check(&self) -> Result<(), String> {
        let prefixes = self.metrics_prefixes().len();
        if prefixes > METRICS_PREFIXES_MAX {
            return Err(format!(
                "{prefixes} values for --metrics-prefix; give at most {METRICS_PREFIXES_MAX}"
            ));
        }
        self.listening.check()?;
        self.elections.check()
    }

    /// Returns the configuration of a pod's agent.
    pub(super) fn agent_config(&self, pod: PodRef) -> Config {
        Config {
            session_ttl: self.session_ttl,
            token_floor: self.token_floor,
            metrics_prefixes: self.metrics_prefixes(),
            ..Config::new(pod)
        }
    }

    fn metrics_prefixes(&self) -> BTreeSet<String> {
        self.metrics_prefix.iter().cloned().collect()
    }

    pub(super) fn http_options(&self) -> HttpOptions {
        HttpOptions {
            allowed_hosts: self.allow_host.clone(),
            namespace: None,
        }
    }

    pub(super) const fn on_term(&self) -> OnTerm {
        match self.on_term {
            OnTermFlag::Wait => OnTerm::Wait,
            OnTermFlag::ReleaseNow => OnTerm::ReleaseNow,
            OnTermFlag::AppsEnded => OnTerm::AppsEnded,
        }
    }
}

pub(super) fn session_ttl(text: &str) -> Result<SessionTtl, String> {
    let seconds = text
        .parse()
        .map_err(|_| "give a whole number of seconds, without a unit".to_owned())?;
    SessionTtl::from_secs(seconds).map_err(|error| error.to_string())
}

/// Parses the host of a Host header, without a port. Anything else would never match, without a
/// visible error.
fn host(text: &str) -> Result<String, String> {
    let is_host = |authority: &Authority| {
        authority.host() == text && !text.contains(['@', '*']) && authority.port().is_none()
    };
    match text.parse::<Authority>() {
        Ok(authority) if is_host(&authority) => Ok(text.to_owned()),
        _ => Err(
            "give a host name or an address alone, like lock.internal: no scheme, port, path \
                  or pattern"
                .into(),
        ),
    }
}

/// Parses a prefix of resources; an empty one would count all of them again.
fn prefix(text: &str) -> Result<String, String> {
    match Resource::parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!(
            "give 1 to {RESOURCE_MAX_BYTES} bytes of printable text, the prefix of resources"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_and_nothing_more() {
        for good in ["lock.internal", "10.0.0.1", "[fd00::1]", "LOCKS"] {
            assert!(host(good).is_ok(), "{good}");
        }
        let bad = [
            "",
            "evil:80",
            "evil:",
            "http://evil",
            "evil/x",
            "me@evil",
            "*.evil",
            "a b",
            "fd00::1",
        ];
        for bad in bad {
            assert!(host(bad).is_err(), "{bad}");
        }
    }
}

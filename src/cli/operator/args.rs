//! The flags of `leasehold operator`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::builder::RangedU64ValueParser;

use crate::agent::Config;
use crate::cli::flags::session_ttl;
use crate::cli::{cluster, log, pod};
use crate::operator::plan::Rules;
use crate::protocol::time::SessionTtl;
use crate::protocol::token::MAX_BASE;

/// The longest time that a lock's spec can say.
const TEN_YEARS: u64 = 315_360_000;
/// Where /healthz, /readyz and /metrics are unless it is said.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080);

/// What `--namespace` is for, which elsewhere is the namespace of the locks.
const NAMESPACE_HELP: &str = "The namespace that the operator is in, where its replicas elect the active \
                              one; the pod's own, or the context's, unless said. It looks after the \
                              locks of all namespaces";

/// The flags.
#[derive(Debug, clap::Args)]
#[command(mut_arg("namespace", |arg| arg.help(NAMESPACE_HELP).long_help(NAMESPACE_HELP)))]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) cluster: cluster::Args,
    #[command(flatten)]
    pod: pod::Args,
    /// Where /healthz, /readyz and /metrics are. Unless said: port 8080 on all addresses.
    #[arg(long, env = "LEASEHOLD_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// For how many seconds, 3 to 120, the active replica may be silent before another one takes
    /// its place.
    #[arg(
        long, env = "LEASEHOLD_SESSION_TTL", value_name = "SECONDS", default_value = "15",
        value_parser = session_ttl,
    )]
    session_ttl: SessionTtl,
    /// For how many seconds a free and idle lock object is kept where its spec.retainSeconds does
    /// not say; counted from when this process first saw it so.
    #[arg(
        long, env = "LEASEHOLD_RETAIN_SECONDS", value_name = "SECONDS", default_value_t = 86_400,
        value_parser = RangedU64ValueParser::<u64>::new().range(60..=TEN_YEARS),
    )]
    retain_seconds: u64,
    /// For how many seconds an ended session's object is kept when no lock names it; counted from
    /// when this process first saw it ended.
    #[arg(
        long, env = "LEASEHOLD_KEEP_SESSIONS_SECONDS", value_name = "SECONDS", default_value_t = 600,
        value_parser = RangedU64ValueParser::<u64>::new().range(10..=TEN_YEARS),
    )]
    keep_sessions_seconds: u64,
    /// After how many seconds a held lock is marked as long-held where its spec.longHeldSeconds does
    /// not say. Elections are marked only where it does.
    #[arg(
        long, env = "LEASEHOLD_LONG_HELD_SECONDS", value_name = "SECONDS", default_value_t = 3_600,
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=TEN_YEARS),
    )]
    long_held_seconds: u64,
    /// Added to every fencing token; the same in the whole installation, and never lowered.
    #[arg(
        long, env = "LEASEHOLD_TOKEN_FLOOR", value_name = "TOKEN", default_value_t = 0,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_BASE),
    )]
    token_floor: u64,
    /// Gives the pod that leads an election the label leasehold.dev/leader-NAME=true, for Services
    /// that select it. The operator must be allowed to patch pods.
    #[arg(long, env = "LEASEHOLD_LEADER_LABELS")]
    leader_labels: bool,
    #[command(flatten)]
    pub(super) log: log::Args,
}

impl Args {
    /// What the agent by which this replica is elected is told, or what is wrong with the flags.
    pub(in crate::cli) fn agent_config(&self) -> Result<Config, String> {
        Ok(Config {
            session_ttl: self.session_ttl,
            token_floor: self.token_floor,
            ..Config::new(self.pod.pod()?)
        })
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.admin_listen.unwrap_or(LISTEN)
    }

    pub(super) fn rules(&self, pod: &Arc<str>) -> Rules {
        Rules {
            actor: pod.clone(),
            token_floor: self.token_floor,
            retain: Duration::from_secs(self.retain_seconds),
            keep_sessions: Duration::from_secs(self.keep_sessions_seconds),
            long_held: Duration::from_secs(self.long_held_seconds),
            leader_labels: self.leader_labels,
        }
    }
}

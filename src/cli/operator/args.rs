//! The flags of `leasehold operator`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use super::webhook;
use crate::agent::Config;
use crate::cli::flags::session_ttl;
use crate::cli::{cluster, log, pod};
use crate::crd::SPEC_SECONDS_MAX;
use crate::operator::{BindSidecars, Rules};
use crate::protocol::time::SessionTtl;
use crate::protocol::token::MAX_BASE;

/// The default address of /healthz, /readyz and /metrics.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080);

/// Parses the TTL of the operator's own session.
fn operator_ttl(text: &str) -> Result<SessionTtl, String> {
    let ttl = session_ttl(text)?;
    if ttl.get() > ttl.period() {
        let longest = SessionTtl::LONGEST_PERIOD.as_secs();
        return Err(format!(
            "{ttl_seconds} s is too long for the operator; use {shortest} to {longest} seconds",
            ttl_seconds = ttl.as_secs(),
            shortest = SessionTtl::MIN.as_secs(),
        ));
    }
    Ok(ttl)
}

/// The help of `--namespace`, which is the namespace of the locks in other roles.
const NAMESPACE_HELP: &str = "The namespace of the operator, where its replicas elect the active one; \
                              default: the pod's namespace, or the context's. The operator reconciles \
                              the locks of all namespaces";

/// The flags.
#[derive(Debug, clap::Args)]
#[command(mut_arg("namespace", |arg| arg.help(NAMESPACE_HELP).long_help(NAMESPACE_HELP)))]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) cluster: cluster::Args,
    #[command(flatten)]
    pod: pod::Args,
    /// Address of /healthz, /readyz and /metrics. Default: port 8080 on all addresses.
    #[arg(long, env = "LEASEHOLD_ADMIN_LISTEN", value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// The session TTL in seconds, 3 to 120: how long after the last renewal of the active replica
    /// another one becomes active. A longer one would only delay that: in an outage of the API server no
    /// replica can do anything.
    #[arg(
        long, env = "LEASEHOLD_SESSION_TTL", value_name = "SECONDS", default_value = "15",
        value_parser = operator_ttl,
    )]
    session_ttl: SessionTtl,
    /// For how many seconds a free and idle lock object is kept if it has no spec.retainSeconds. A lock
    /// that remembers completed work is kept for at least seven days. For a lock that was free when this
    /// process started, the time counts from the last change of a field of the lock.
    #[arg(
        long, env = "LEASEHOLD_RETAIN_SECONDS", value_name = "SECONDS", default_value_t = 86_400,
        value_parser = RangedU64ValueParser::<u64>::new().range(60..=SPEC_SECONDS_MAX),
    )]
    retain_seconds: u64,
    /// For how many seconds the object of an ended session is kept if no lock names it; counted from
    /// when this process first observed its end.
    #[arg(
        long, env = "LEASEHOLD_KEEP_SESSIONS_SECONDS", value_name = "SECONDS", default_value_t = 600,
        value_parser = RangedU64ValueParser::<u64>::new().range(10..=SPEC_SECONDS_MAX),
    )]
    keep_sessions_seconds: u64,
    /// After how many seconds a held lock is marked as long-held if it has no spec.longHeldSeconds.
    /// Locks of elections are marked only if they have it.
    #[arg(
        long, env = "LEASEHOLD_LONG_HELD_SECONDS", value_name = "SECONDS", default_value_t = 3_600,
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=SPEC_SECONDS_MAX),
    )]
    long_held_seconds: u64,
    /// Added to every fencing token. Must be the same in the whole installation, and never lowered.
    #[arg(
        long, env = "LEASEHOLD_TOKEN_FLOOR", value_name = "TOKEN", default_value_t = 0,
        value_parser = RangedU64ValueParser::<u64>::new().range(0..=MAX_BASE),
    )]
    token_floor: u64,
    /// Labels the pod that leads an election with leasehold.dev/leader-NAME=true, for Services that
    /// select it. The operator needs permission to patch pods.
    #[arg(long, env = "LEASEHOLD_LEADER_LABELS")]
    leader_labels: bool,
    /// How many seconds apart the operator checks the pod of a leader whose annotation elect-always names the
    /// election. If the pod is not Ready from one check to the next, and another candidate's pod is, the leader is
    /// asked to resign. Requires --leader-labels.
    #[arg(
        long, env = "LEASEHOLD_UNREADY_LEADER_SECONDS", value_name = "SECONDS", default_value_t = 60,
        value_parser = RangedU64ValueParser::<u64>::new().range(5..=86_400),
    )]
    unready_leader_seconds: u64,
    /// Which service accounts the operator binds to the sidecar's role, in each namespace with the label
    /// leasehold.dev/injection. It needs permission to create role bindings.
    #[arg(
        long, env = "LEASEHOLD_BIND_SIDECARS", value_enum,
        default_value_t = BindSidecarsFlag::None,
    )]
    bind_sidecars: BindSidecarsFlag,
    #[command(flatten)]
    pub(super) webhook: webhook::Args,
    #[command(flatten)]
    pub(super) log: log::Args,
}

/// Which service accounts are bound.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum BindSidecarsFlag {
    /// All service accounts of the namespace.
    Namespace,
    /// The service accounts with the label leasehold.dev/sidecar=true.
    ServiceAccount,
    /// None: role bindings are managed elsewhere.
    None,
}

impl From<BindSidecarsFlag> for BindSidecars {
    fn from(flag: BindSidecarsFlag) -> Self {
        match flag {
            BindSidecarsFlag::Namespace => Self::Namespace,
            BindSidecarsFlag::ServiceAccount => Self::ServiceAccount,
            BindSidecarsFlag::None => Self::None,
        }
    }
}

/// The resolved flags.
#[derive(Debug)]
pub(in crate::cli) struct Settings {
    /// The configuration of the agent that elects the active replica.
    pub(super) agent: Config,
    /// The settings of the webhook, if it is served.
    pub(super) webhook: Option<webhook::Settings>,
}

impl Args {
    /// Returns the resolved flags, or a usage error.
    pub(in crate::cli) fn settings(&self) -> Result<Settings, String> {
        Ok(Settings {
            agent: self.agent_config()?,
            webhook: self.webhook.settings()?,
        })
    }

    fn agent_config(&self) -> Result<Config, String> {
        Ok(Config {
            session_ttl: self.session_ttl,
            token_floor: self.token_floor,
            ..Config::new(self.pod.pod()?)
        })
    }

    pub(super) fn listen(&self) -> SocketAddr {
        self.admin_listen.unwrap_or(LISTEN)
    }

    /// Returns the operator's rules for a pod of this name, in this namespace.
    pub(super) fn rules(&self, pod: &Arc<str>, namespace: &str) -> Rules {
        let bind_sidecars = self.bind_sidecars.into();
        Rules {
            actor: pod.clone(),
            token_floor: self.token_floor,
            retain: Duration::from_secs(self.retain_seconds),
            keep_sessions: Duration::from_secs(self.keep_sessions_seconds),
            long_held: Duration::from_secs(self.long_held_seconds),
            leader_labels: self.leader_labels,
            unready_leader: Duration::from_secs(self.unready_leader_seconds),
            bind_sidecars,
            // In these cases it has the permission to watch labelled namespaces.
            report_uninjected: bind_sidecars != BindSidecars::None || self.webhook.is_served(),
            namespace: namespace.into(),
        }
    }
}

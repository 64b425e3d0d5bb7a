//! The flags of `leasehold fence`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use http::Method;
use http::uri::{Authority, Scheme, Uri};

use crate::cli::client::Server;
use crate::cli::{listen, log};
use crate::fence::{AccessLog, ConnectionLimits, Limits, Rules, Source, Upstream, paths};
use crate::protocol::ids::Resource;

/// Stands for WebSockets among the methods that need no token.
const WEBSOCKET: &str = "WEBSOCKET";

/// The flags.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The URL of the service: `http://HOST:PORT`. It must be reachable only through this fence.
    #[arg(
        long, env = "LEASEHOLD_FENCE_UPSTREAM", value_name = "URL", value_parser = upstream,
        required_unless_present = "authorize",
    )]
    pub(super) upstream: Option<Authority>,
    /// Forwards nothing: it answers the proxy in front of the service whether a request may pass, as `ext_authz`
    /// of Envoy and `auth_request` of nginx ask. `--settle` must be longer than that proxy lets a request run.
    #[arg(
        long, env = "LEASEHOLD_FENCE_AUTHORIZE", requires = "settle",
        conflicts_with_all = ["upstream", "upstream_http2", "upstream_timeout", "upstream_idle", "older_requests", "max_body_bytes"],
    )]
    authorize: bool,
    /// Sends requests to the service by HTTP/2 without TLS, for example for gRPC. Otherwise HTTP/1.1.
    #[arg(long, env = "LEASEHOLD_FENCE_UPSTREAM_HTTP2")]
    upstream_http2: bool,
    /// The address for clients: HTTP/1.1, and HTTP/2 without TLS.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_LISTEN",
        value_name = "ADDRESS",
        default_value = "[::]:7375"
    )]
    pub(super) listen: SocketAddr,
    /// Address of /healthz, /readyz and /metrics; none disables them.
    #[arg(
        long, env = "LEASEHOLD_FENCE_ADMIN_LISTEN", value_name = "ADDRESS",
        default_value = "[::]:7376", value_parser = listen::admin_address,
    )]
    pub(super) admin_listen: listen::AdminAddress,
    /// A directory for the largest tokens, on a disk that survives a restart of this process.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_STATE_DIR",
        value_name = "DIRECTORY",
        required_unless_present = "leader"
    )]
    pub(super) state_dir: Option<PathBuf>,
    /// One of several fences of a service, each the command of `leasehold exec` under one lock: it forwards while that
    /// lease is valid, and verifies each token again after its start.
    #[arg(
        long, env = "LEASEHOLD_FENCE_LEADER",
        conflicts_with_all = ["state_dir", "trust_tokens"],
    )]
    pub(super) leader: bool,
    /// The URL of a sidecar of the namespace of the locks, which verifies tokens that are new to this fence:
    /// `http://HOST:PORT`, or `unix:///PATH`.
    #[arg(
        long, env = "LEASEHOLD_URL", value_name = "URL", default_value = "http://127.0.0.1:7373",
        value_parser = Server::parse,
    )]
    pub(super) url: Server,
    /// Accepts each token that is larger than the recorded one without asking the lock. After a loss of the
    /// state directory an older token passes, and a wrong one that is too large blocks its resource.
    #[arg(long, env = "LEASEHOLD_FENCE_TRUST_TOKENS")]
    pub(super) trust_tokens: bool,
    /// The name of the lock of all requests. Otherwise each request has the header X-Fencing-Resource.
    #[arg(
        long, env = "LEASEHOLD_FENCE_RESOURCE", value_name = "NAME", value_parser = resource,
        conflicts_with = "resource_rule",
    )]
    resource: Option<Resource>,
    /// The lock of requests to a path: PATH=NAME, as `/accounts/{id}/{*rest}=account-{id}`; can be
    /// repeated. Requests of other paths are refused.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_RESOURCE_RULE",
        value_name = "RULE",
        value_delimiter = ','
    )]
    resource_rule: Vec<String>,
    /// A method that changes nothing, so that its requests need no token; can be repeated or comma-separated.
    /// WEBSOCKET stands for WebSockets.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_OPEN_METHOD",
        value_name = "METHOD",
        value_delimiter = ',',
        default_value = "GET,HEAD,OPTIONS"
    )]
    open_method: Vec<String>,
    /// How many seconds a newer token waits for requests with older ones before they are cut.
    #[arg(
        long, env = "LEASEHOLD_FENCE_OLDER_REQUESTS", value_name = "SECONDS", default_value_t = 10,
        value_parser = seconds(0),
    )]
    older_requests: u64,
    /// For how many seconds the service may work on a request after its connection was closed. A newer token waits
    /// so long after a request of unknown outcome, and all do after a crash of this process. With `--authorize`, how
    /// long a request may run after it was allowed.
    #[arg(
        long, env = "LEASEHOLD_FENCE_SETTLE", value_name = "SECONDS", default_value_t = 10,
        value_parser = seconds(0),
    )]
    settle: u64,
    /// For how many seconds nothing may move before a response begins.
    #[arg(
        long, env = "LEASEHOLD_FENCE_UPSTREAM_TIMEOUT", value_name = "SECONDS", default_value_t = 60,
        value_parser = seconds(1),
    )]
    upstream_timeout: u64,
    /// For how many seconds an idle connection to the service is kept: less than the service keeps it.
    #[arg(
        long, env = "LEASEHOLD_FENCE_UPSTREAM_IDLE", value_name = "SECONDS", default_value_t = 4,
        value_parser = seconds(0),
    )]
    upstream_idle: u64,
    /// For how many seconds the head of a request may arrive, and a connection may be idle.
    #[arg(
        long, env = "LEASEHOLD_FENCE_CLIENT_IDLE", value_name = "SECONDS", default_value_t = 75,
        value_parser = seconds(1),
    )]
    client_idle: u64,
    /// For how many seconds requests may continue after SIGTERM.
    #[arg(
        long, env = "LEASEHOLD_FENCE_DRAIN", value_name = "SECONDS", default_value_t = 20,
        value_parser = seconds(0),
    )]
    drain: u64,
    /// The maximum number of resources.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_MAX_RESOURCES",
        value_name = "COUNT",
        default_value_t = 100_000,
        value_parser = count(),
    )]
    max_resources: u32,
    /// The maximum number of requests at once, including those that wait.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_MAX_REQUESTS",
        value_name = "COUNT",
        default_value_t = 4_096,
        value_parser = count(),
    )]
    max_requests: u32,
    /// The maximum number of connections of clients.
    #[arg(
        long,
        env = "LEASEHOLD_FENCE_MAX_CONNECTIONS",
        value_name = "COUNT",
        default_value_t = 16_384,
        value_parser = count(),
    )]
    pub(super) max_connections: u32,
    /// The maximum length of the body of a request.
    #[arg(long, env = "LEASEHOLD_FENCE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 1 << 30)]
    max_body_bytes: u64,
    /// Which requests are logged.
    #[arg(long, env = "LEASEHOLD_FENCE_ACCESS_LOG", value_enum, default_value_t = AccessLogFlag::Refused)]
    access_log: AccessLogFlag,
    #[command(flatten)]
    pub(super) log: log::Args,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccessLogFlag {
    /// Those that the fence refused.
    Refused,
    /// All.
    All,
}

impl Args {
    pub(super) fn rules(&self) -> Result<Rules, String> {
        let is_websocket = |method: &&String| method.as_str() == WEBSOCKET;
        let methods = self.open_method.iter().filter(|m| !is_websocket(m));
        let methods = methods.map(|method| {
            let is_capital = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
            let is_valid = method.bytes().all(is_capital);
            let method = Method::from_bytes(method.as_bytes())
                .ok()
                .filter(|_| is_valid);
            method.ok_or_else(|| "--open-method: write methods in capitals, as GET".to_owned())
        });
        Ok(Rules {
            open_methods: methods.collect::<Result<_, _>>()?,
            has_open_websockets: self.open_method.iter().any(|m| is_websocket(&m)),
            source: match &self.resource {
                Some(resource) => Source::Fixed(resource.clone()),
                None if self.resource_rule.is_empty() => Source::Header,
                None => paths(&self.resource_rule)
                    .map_err(|error| format!("--resource-rule {error}"))?,
            },
        })
    }

    /// Returns the service, or `None` if another proxy forwards.
    pub(super) fn upstream(&self) -> Option<Upstream> {
        let timeout = Duration::from_secs(self.upstream_timeout);
        Some(Upstream {
            authority: self.upstream.clone()?,
            is_http2: self.upstream_http2,
            connect_timeout: Duration::from_secs(5),
            timeout,
            // Where a cut does not discard what the kernel has, because a partition ended the lead or other requests share
            // the connection, newer tokens wait for `--settle` only. A service that reads nothing for half of it loses the
            // connection; the other half is for its work.
            unacknowledged: if self.settle > 0 && (self.leader || self.upstream_http2) {
                timeout.min(Duration::from_secs(self.settle) / 2)
            } else {
                timeout
            },
            idle: Duration::from_secs(self.upstream_idle),
            body_max_bytes: self.max_body_bytes,
        })
    }

    pub(super) fn limits(&self) -> Limits {
        Limits {
            older_requests: Duration::from_secs(self.older_requests),
            settle: Duration::from_secs(self.settle),
            resources: self.max_resources as usize,
        }
    }

    /// Checks what clap does not: a variable that is `false` counts there as present.
    pub(super) fn check(&self) -> Result<(), String> {
        let why = if self.upstream.is_none() && !self.authorize {
            "--upstream or --authorize is missing"
        } else if self.state_dir.is_none() && !self.leader {
            "--state-dir or --leader is missing"
        } else if self.authorize && self.settle == 0 {
            "--authorize needs a --settle of at least 1, or nothing is fenced"
        } else if self.leader && self.settle == 0 {
            "--leader needs a --settle of at least 1: the requests of the last leader may be running"
        } else {
            return Ok(());
        };
        Err(why.to_owned())
    }

    pub(super) const fn max_requests(&self) -> usize {
        self.max_requests as usize
    }

    pub(super) fn connections(&self) -> ConnectionLimits {
        ConnectionLimits {
            open: self.max_connections as usize,
            head_timeout: Duration::from_secs(self.client_idle),
            drain: Duration::from_secs(self.drain),
        }
    }

    pub(super) const fn access_log(&self) -> AccessLog {
        match self.access_log {
            AccessLogFlag::Refused => AccessLog::Refused,
            AccessLogFlag::All => AccessLog::All,
        }
    }
}

fn seconds(least: u64) -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(least..=86_400)
}

fn count() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(1..)
}

fn resource(text: &str) -> Result<Resource, String> {
    Resource::parse(text).map_err(|error| error.to_string())
}

fn upstream(text: &str) -> Result<Authority, String> {
    const WRITE: &str = "write http://HOST:PORT, without a path; TLS is not supported";
    let uri: Uri = text.parse().map_err(|_no_url| WRITE.to_owned())?;
    let is_bare = uri.path_and_query().is_none_or(|rest| rest == "/");
    let authority = uri
        .authority()
        .filter(|authority| !authority.as_str().contains('@'));
    match authority {
        Some(authority) if is_bare && uri.scheme() == Some(&Scheme::HTTP) => Ok(authority.clone()),
        _ => Err(WRITE.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn kernel_sends_for_half_of_settle_where_a_cut_discards_nothing() {
        for (flags, seconds) in [
            ("--state-dir=state", 60),
            ("--state-dir=state --upstream-http2", 5),
            ("--state-dir=state --upstream-http2 --settle=0", 60),
            ("--state-dir=state --upstream-http2 --upstream-timeout=2", 2),
            ("--leader --settle=60", 30),
        ] {
            let flags = ["fence", "--upstream=http://a:80"]
                .into_iter()
                .chain(flags.split(' '));
            let upstream = Cli::parse_from(flags).args.upstream().unwrap();
            assert_eq!(upstream.unacknowledged.as_secs(), seconds);
        }
    }
}

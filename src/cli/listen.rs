//! Binding the addresses that a role listens on.
//!
//! An address that somebody asked for must be bound or the start fails. A default one may be
//! missing where the machine has no IPv6, as long as one is left.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Context;
use tokio::net::TcpListener;

/// The port of the API.
const API_PORT: u16 = 7373;
/// The port for the kubelet and Prometheus.
const ADMIN_PORT: u16 = 7374;

/// Where the API listens unless it is said.
const LOCAL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
/// Where the admin port listens unless it is said.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdminDefault {
    /// On all of the pod's addresses of both families, because kubelet and Prometheus come from
    /// outside of the pod.
    Everywhere,
    /// Only for this machine.
    Local,
}

impl AdminDefault {
    const fn address(self) -> SocketAddr {
        match self {
            Self::Everywhere => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), ADMIN_PORT),
            Self::Local => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ADMIN_PORT),
        }
    }
}

/// Everywhere, where the machine has no IPv6.
const EVERYWHERE_V4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), ADMIN_PORT);

/// The API's listeners: on the addresses asked for, else on the default ones.
pub(super) async fn bind_api(asked: &[SocketAddr]) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for address in asked {
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "this address is not local: whoever reaches it can take and \
                release locks here");
        }
        listeners.push(bind(*address, "--listen").await?);
    }
    if !asked.is_empty() {
        return Ok(listeners);
    }
    bind_local(API_PORT, "--listen").await
}

/// Listeners for this machine alone: of both families, where the machine has both.
pub(super) async fn bind_local(port: u16, flag: &str) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for ip in LOCAL {
        let address = SocketAddr::new(ip, port);
        match TcpListener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if address.is_ipv6() && has_no_ipv6(&error) => {
                tracing::warn!(%address, %error, "not listening there: no IPv6 on this machine");
            }
            Err(error) => return Err(cannot_listen(error, address, flag)),
        }
    }
    Ok(listeners)
}

/// The admin port's listener.
pub(super) async fn bind_admin(
    asked: Option<SocketAddr>,
    default: AdminDefault,
) -> anyhow::Result<TcpListener> {
    if let Some(address) = asked {
        return bind(address, "--admin-listen").await;
    }
    let address = default.address();
    match TcpListener::bind(address).await {
        Err(error) if has_no_ipv6(&error) => bind(EVERYWHERE_V4, "--admin-listen").await,
        bound => bound.map_err(|error| cannot_listen(error, address, "--admin-listen")),
    }
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| cannot_listen(error, address, flag))
}

fn cannot_listen(error: io::Error, address: SocketAddr, flag: &str) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => format!("something else listens there; choose another {flag}"),
        ErrorKind::PermissionDenied => format!("ports below 1024 are privileged; change {flag}"),
        _ => format!("choose another {flag}"),
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address} ({advice})"))
}

/// No such address family, or the loopback address is not configured.
fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AddrNotAvailable | ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Where a listener is bound; with port 0 only now it is known.
pub(super) fn address(listener: &TcpListener) -> anyhow::Result<SocketAddr> {
    listener.local_addr().context("the listener has no address")
}

/// Logs where a listener is bound.
pub(super) fn announce(listener: &TcpListener, what: &'static str) -> anyhow::Result<()> {
    let addr = address(listener)?;
    tracing::info!(%addr, api = what, "listening");
    Ok(())
}

//! The listen flags, and binding the listeners.
//!
//! An address in a flag must be bound, otherwise the start fails. A default address, or one of
//! those behind a name, may be unavailable if the machine has no IPv6, as long as another one is
//! bound.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use tokio::net::TcpListener;

use super::unix_socket;

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "listening")]
pub(super) struct Args {
    /// Address of the API: ADDRESS:PORT, or localhost:PORT (127.0.0.1 and, if IPv6 is available,
    /// `[::1]`); can be repeated or comma-separated. Port 0 selects a free port; none leaves only
    /// --unix-socket. Default: localhost:7373.
    #[arg(
        long, env = "LEASEHOLD_LISTEN", value_name = "ADDRESS", value_delimiter = ',',
        value_parser = api_address,
    )]
    pub(super) listen: Vec<Address>,
    /// Also serves the API and /healthz on a Unix socket with this path. Every process that can access
    /// its directory can acquire and release locks; only this process should be able to write to it.
    #[arg(
        long, env = "LEASEHOLD_UNIX_SOCKET", value_name = "PATH",
        value_parser = PathBufValueParser::new().try_map(unix_socket::path),
    )]
    pub(super) unix_socket: Option<PathBuf>,
    /// Address of /healthz, /readyz and /metrics; none disables them. Default: port 7374, in a pod on
    /// all addresses, for the kubelet and Prometheus, otherwise on 127.0.0.1.
    #[arg(
        long, env = "LEASEHOLD_ADMIN_LISTEN", value_name = "ADDRESS",
        value_parser = admin_address,
    )]
    pub(super) admin_listen: Option<AdminAddress>,
}

/// An address of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// No address.
    None,
    /// Only for this machine, in both families if it has both.
    Localhost(u16),
    At(SocketAddr),
}

/// The address of the admin port, which kubelet and Prometheus reach from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdminAddress {
    /// No address.
    None,
    At(SocketAddr),
}

impl Args {
    /// Checks the combination of the flags.
    pub(super) fn check(&self) -> Result<(), String> {
        if !self.listen.contains(&Address::None) {
            return Ok(());
        }
        if self.listen.len() > 1 {
            return Err("--listen none cannot be combined with addresses; omit one of them".into());
        }
        if self.unix_socket.is_none() {
            return Err("--listen none requires --unix-socket".into());
        }
        Ok(())
    }
}

fn api_address(text: &str) -> Result<Address, String> {
    const WRITE: &str = "write ADDRESS:PORT like 127.0.0.1:7373, localhost:PORT, or none";
    if text == "none" {
        return Ok(Address::None);
    }
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port.parse().map_err(|_no_port| WRITE.to_owned())?;
        return Ok(Address::Localhost(port));
    }
    let address = text.parse().map_err(|_no_address| WRITE.to_owned())?;
    Ok(Address::At(address))
}

pub(super) fn admin_address(text: &str) -> Result<AdminAddress, String> {
    if text == "none" {
        return Ok(AdminAddress::None);
    }
    let address = text
        .parse()
        .map_err(|_no_address| "write ADDRESS:PORT like 0.0.0.0:7374, or none".to_owned())?;
    Ok(AdminAddress::At(address))
}

/// The port of the API.
pub(super) const API_PORT: u16 = 7373;
/// The flag of the admin port.
pub(super) const ADMIN: &str = "--admin-listen";
/// The port for the kubelet and Prometheus.
const ADMIN_PORT: u16 = 7374;

/// The default addresses of the API.
pub(super) const LOCAL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];
/// The default address of the admin port.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdminDefault {
    /// All addresses of the pod in both families, because kubelet and Prometheus are outside of the
    /// pod.
    Everywhere,
    /// Only for this machine.
    Local,
}

impl AdminDefault {
    /// Returns the address.
    pub(super) const fn address(self) -> SocketAddr {
        match self {
            Self::Everywhere => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), ADMIN_PORT),
            Self::Local => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), ADMIN_PORT),
        }
    }
}

/// Binds the listeners of the API, at the requested or the default addresses.
pub(super) async fn bind_api(requested: &[Address]) -> anyhow::Result<Vec<TcpListener>> {
    if requested.is_empty() {
        return bind_local(API_PORT, "--listen").await;
    }
    let mut listeners = Vec::new();
    for address in requested {
        match *address {
            Address::None => {}
            Address::Localhost(port) => listeners.extend(bind_local(port, "--listen").await?),
            Address::At(address) => {
                if !address.ip().is_loopback() {
                    tracing::warn!(
                        %address, advice = "let only trusted clients reach it",
                        "listening on a non-loopback address"
                    );
                }
                listeners.push(bind(address, "--listen").await?);
            }
        }
    }
    Ok(listeners)
}

/// Binds listeners only for this machine, in both families if it has both.
pub(super) async fn bind_local(port: u16, flag: &str) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for ip in LOCAL {
        let address = SocketAddr::new(ip, port);
        match TcpListener::bind(address).await {
            Ok(listener) => listeners.push(listener),
            Err(error) if address.is_ipv6() && has_no_ipv6(&error) => {
                tracing::warn!(%address, %error, "IPv6 not available; address skipped");
            }
            Err(error) => return Err(cannot_listen(error, address, flag)),
        }
    }
    Ok(listeners)
}

/// Binds the listener of the admin port, if it is enabled.
pub(super) async fn bind_admin(
    requested: Option<AdminAddress>,
    default: AdminDefault,
) -> anyhow::Result<Option<TcpListener>> {
    match requested {
        Some(AdminAddress::None) => Ok(None),
        Some(AdminAddress::At(address)) => bind_any(address, ADMIN).await.map(Some),
        None => bind_any(default.address(), ADMIN).await.map(Some),
    }
}

/// Binds a listener. `[::]` falls back to `0.0.0.0` without IPv6.
pub(super) async fn bind_any(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && has_no_ipv6(&error) => {
            let everywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
            bind(everywhere, flag).await
        }
        bound => bound.map_err(|error| cannot_listen(error, address, flag)),
    }
}

pub(super) async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|error| cannot_listen(error, address, flag))
}

fn cannot_listen(error: io::Error, address: SocketAddr, flag: &str) -> anyhow::Error {
    let advice = match error.kind() {
        ErrorKind::AddrInUse => format!("the address is in use; choose another {flag}"),
        ErrorKind::PermissionDenied => format!("ports below 1024 are privileged; change {flag}"),
        _ => format!("choose another {flag}"),
    };
    anyhow::Error::new(error).context(format!("cannot listen on {address} ({advice})"))
}

/// The address family does not exist, or the loopback address is not configured.
fn has_no_ipv6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AddrNotAvailable | ErrorKind::Unsupported
    ) || error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

/// Returns the address of a listener, with the actual port.
pub(super) fn address(listener: &TcpListener) -> anyhow::Result<SocketAddr> {
    listener.local_addr().context("the listener has no address")
}

/// Logs the address of a listener.
pub(super) fn announce(listener: &TcpListener, what: &'static str) -> anyhow::Result<()> {
    log_listening(&address(listener)?, what);
    Ok(())
}

/// Logs an address that is served.
pub(super) fn log_listening(address: &impl fmt::Display, what: &'static str) {
    tracing::info!(%address, api = what, "listening");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listen_address_is_one_address_localhost_or_none() {
        let at = |text: &str| Ok(Address::At(text.parse().unwrap()));
        assert_eq!(api_address("none"), Ok(Address::None));
        assert_eq!(api_address("localhost:7400"), Ok(Address::Localhost(7400)));
        assert_eq!(api_address("[::1]:7400"), at("[::1]:7400"));
        assert_eq!(admin_address("none"), Ok(AdminAddress::None));
        let everywhere = "[::]:7400".parse().map(AdminAddress::At);
        assert_eq!(admin_address("[::]:7400").ok(), everywhere.ok());
        for bad in [
            "",
            "localhost",
            "localhost:",
            "localhost:70000",
            "None",
            "x:1",
            "7373",
        ] {
            assert!(api_address(bad).is_err(), "{bad}");
            assert!(admin_address(bad).is_err(), "{bad}");
        }
    }
}

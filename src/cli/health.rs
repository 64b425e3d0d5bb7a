//! `leasehold health`: checks that the sidecar answers, for a probe in the sidecar's own container.
//!
//! It reads the sidecar's listen flags, and sends a request to one of its listeners: all are bound
//! before the first is served. It sends no request to the API server, whose outage must not restart
//! a sidecar.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::bail;
use http::StatusCode;

use super::client::Server;
use super::listen::{self, API_PORT, Address, AdminAddress, AdminDefault, LOCAL};
use super::output;
use super::serve::block_on;

/// The health endpoint.
const PATH: &str = "/healthz";
/// A probe runs each second, and a hanging sidecar fails it.
const LIMIT: Duration = Duration::from_secs(2);

/// The flags.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    listening: listen::Args,
}

impl Args {
    /// Returns the servers to try in this order, or a usage error.
    pub(super) fn servers(&self) -> Result<Vec<Server>, String> {
        self.listening.check()?;
        let addresses = if let Some(path) = &self.listening.unix_socket {
            return Ok(vec![Server::Unix(path.clone())]);
        } else {
            match (self.listening.admin_listen, self.listening.listen.first()) {
                (None, _) => reached(Address::At(AdminDefault::Everywhere.address())),
                (Some(AdminAddress::None), None) => reached(Address::Localhost(API_PORT)),
                (Some(AdminAddress::None), Some(api)) => reached(*api),
                (Some(AdminAddress::At(admin)), _) => reached(Address::At(admin)),
            }
        };
        if addresses.iter().any(|address| address.port() == 0) {
            return Err("--listen or --admin-listen has port 0; give the actual port".into());
        }
        Ok(addresses.into_iter().map(Server::own).collect())
    }
}

/// Returns the local addresses of a listener.
fn reached(address: Address) -> Vec<SocketAddr> {
    let both = |port| LOCAL.map(|ip| SocketAddr::new(ip, port)).to_vec();
    match address {
        Address::None => vec![],
        Address::Localhost(port) => both(port),
        // It listens in both families, unless the machine has only one.
        Address::At(at) if at.ip() == Ipv6Addr::UNSPECIFIED => both(at.port()),
        Address::At(at) if at.ip() == Ipv4Addr::UNSPECIFIED => {
            vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), at.port())]
        }
        Address::At(at) => vec![at],
    }
}

/// Succeeds if any server is healthy.
pub(super) fn run(servers: &[Server]) -> anyhow::Result<()> {
    block_on(async {
        let mut errors = Vec::new();
        for server in servers {
            match server.get(PATH, LIMIT).await {
                Ok(answer) if answer.status == StatusCode::OK => return Ok(output::print("ok\n")?),
                Ok(answer) => errors.push(format!("{server}{PATH} answers {}", answer.status)),
                Err(error) => errors.push(format!("{server}: {error:#}")),
            }
        }
        bail!("the sidecar does not answer: {}", errors.join("; "))
    })
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

    fn asked(flags: &[&str]) -> Result<Vec<String>, String> {
        let args = ["health"].iter().chain(flags);
        let servers = Cli::try_parse_from(args).unwrap().args.servers()?;
        Ok(servers.iter().map(Server::to_string).collect())
    }

    #[test]
    fn health_check_derives_its_address_from_the_sidecars_flags() {
        let cases: &[(&[&str], &[&str])] = &[
            (&[], &["http://127.0.0.1:7374", "http://[::1]:7374"]),
            (&["--admin-listen=10.0.0.7:99"], &["http://10.0.0.7:99"]),
            (&["--admin-listen=0.0.0.0:99"], &["http://127.0.0.1:99"]),
            (
                &["--admin-listen=[::]:99", "--listen=localhost:98"],
                &["http://127.0.0.1:99", "http://[::1]:99"],
            ),
            (
                &["--admin-listen=none"],
                &["http://127.0.0.1:7373", "http://[::1]:7373"],
            ),
            (
                &["--admin-listen=none", "--listen=[::1]:98,10.0.0.7:98"],
                &["http://[::1]:98"],
            ),
            (
                &[
                    "--admin-listen=none",
                    "--listen=none",
                    "--unix-socket=/run/s",
                ],
                &["unix:///run/s"],
            ),
        ];
        for (flags, expected) in cases {
            assert_eq!(asked(flags).unwrap(), *expected, "{flags:?}");
        }
        assert!(
            asked(&["--admin-listen=127.0.0.1:0"])
                .unwrap_err()
                .contains("port 0")
        );
        assert!(
            asked(&["--listen=none"])
                .unwrap_err()
                .contains("--unix-socket")
        );
    }
}

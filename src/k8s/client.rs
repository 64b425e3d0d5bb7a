//! The connection to the API server.
//!
//! Like kube's own client, with four differences that the protocol needs. Nothing is retried: kube
//! repeats 429, 503 and 504 for every verb, so a compare-and-swap could conflict with its own first
//! try. Small requests are sent at once (`TCP_NODELAY`). A dead connection is detected. Calls share
//! one connection (`connection.rs`). From kube it keeps TLS, and credentials that are re-read when
//! they change.

use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderValue, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{ClientBuilder, ConfigExt};
use kube::{Client, Config};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower::timeout::Timeout;
use tower::{BoxError, Service, ServiceBuilder};

use super::connection::{Connector, SharedConnection};

/// The name in the API server's audit log and the objects' `managedFields`.
const AGENT: &str = concat!("leasehold/", env!("CARGO_PKG_VERSION"));
/// How long opening a connection may take: name resolution, TCP, a proxy's CONNECT and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A silent connection is probed after this time, and closed after three unanswered probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long sent bytes may stay unacknowledged.
const TCP_USER_TIMEOUT: Duration = Duration::from_secs(15);
/// An idle connection is closed before common load balancers drop it silently.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of idle connections kept to a server with only HTTP/1.1.
const IDLE_HTTP_1: usize = 32;
/// An HTTP/2 connection with an open watch is pinged after this time without data, and closed after
/// [`PING_TIMEOUT`]. Both values are client-go's.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Creates a client for `config`, which may also have a plain `http://` address, and an `http://`
/// proxy with CONNECT.
///
/// It has no timeout for a whole call; the stores set one for each.
///
/// # Errors
/// If the certificates or credentials of the configuration cannot be used.
pub fn connect(config: &Config) -> Result<Client, kube::Error> {
    let mut config = config.clone();
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(AGENT)));
    match config.proxy_url.clone() {
        None => client(&config, tcp_connector()),
        // For plain http, too: one kind of proxying, and one form of the request line.
        Some(proxy) => {
            let tunnel = Tunnel::new(proxy, tcp_connector());
            client(&config, tunnel)
        }
    }
}

/// Creates a client whose connections `connector` opens.
fn client<C>(config: &Config, connector: C) -> Result<Client, kube::Error>
where
    C: Service<Uri, Response = TokioIo<TcpStream>> + Clone + Send + Sync + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    // One timeout for all steps, because other requests may wait for the connection.
    let connector = Timeout::new(tls(config, connector)?, CONNECT_TIMEOUT);
    // hyper repeats a request only if a pooled connection closed before any byte of it was written.
    // No server can have seen the first try, so this is not a retry of a write.
    let pool = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(IDLE_HTTP_1)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .build(Connector::new(connector));
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(SharedConnection::new(pool));
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

/// Like kube's connector, but offers HTTP/2.
fn tls<C>(config: &Config, connector: C) -> Result<HttpsConnector<C>, kube::Error> {
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = ServerName::try_from(name.clone())
            .map_err(|error| kube::Error::Service(error.into()))?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(connector))
}

fn tcp_connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE));
    connector.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(TCP_USER_TIMEOUT));
    connector
}

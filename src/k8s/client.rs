//! The connection to the API server.
//!
//! Like kube's own client, with four differences that the protocol needs: nothing is retried
//! (kube repeats 429, 503 and 504 for every verb, so a compare-and-swap could meet its own first
//! try), small requests leave at once (`TCP_NODELAY`), a connection whose other end is gone is
//! noticed, and calls share one connection (`connection.rs`). What it keeps of kube: TLS, and
//! credentials that are read again when they change.

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

/// What the API server's audit log and the objects' `managedFields` call us.
const AGENT: &str = concat!("leasehold/", env!("CARGO_PKG_VERSION"));
/// How long a connection may take to open: to find the address, TCP, a proxy's CONNECT and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A silent connection is probed after this long and given up after three unanswered probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long sent bytes may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);
/// An idle connection is closed before usual load balancers drop it silently.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How many idle connections are kept to a server that speaks only HTTP/1.1.
const IDLE_HTTP_1: usize = 32;
/// An HTTP/2 connection with an open watch on which nothing arrives is asked for a sign of life after
/// this long, and given up after [`PING_TIMEOUT`]. Both are client-go's.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// See [`PING_INTERVAL`].
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// A client for `config`, which may also name a plain `http://` address, and an `http://` proxy
/// that knows CONNECT.
///
/// It has no timeout of its own for a whole call; the stores put one on each.
///
/// # Errors
/// When the configuration's certificates or credentials cannot be used.
pub fn connect(config: &Config) -> Result<Client, kube::Error> {
    let mut config = config.clone();
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(AGENT)));
    match config.proxy_url.clone() {
        None => client(&config, tcp_connector()),
        // For plain http too: one kind of proxying, and no request line of another form.
        Some(proxy) => {
            let tunnel = Tunnel::new(proxy, tcp_connector());
            client(&config, tunnel)
        }
    }
}

/// A client whose connections `connector` opens.
fn client<C>(config: &Config, connector: C) -> Result<Client, kube::Error>
where
    C: Service<Uri, Response = TokioIo<TcpStream>> + Clone + Send + Sync + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    // One limit for the whole: other requests may wait for the connection.
    let connector = Timeout::new(tls(config, connector)?, CONNECT_TIMEOUT);
    // hyper repeats a request by itself only when a pooled connection closed before any of it was
    // written: nobody can have seen the first try, so this is no retry of a write.
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
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    connector
}

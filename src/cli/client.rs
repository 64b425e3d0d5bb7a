//! The HTTP client of the short-lived roles, for a sidecar at an address or a Unix socket. Each
//! request has its own connection, a timeout and a limit on the response.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http::header::{CONNECTION, HOST};
use http::uri::{Scheme, Uri};
use http::{HeaderValue, Method, Request, StatusCode, request};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use super::unix_socket;

/// The maximum size of a response.
const ANSWER_MAX_BYTES: usize = 64 * 1024;
/// The pause after the first failure: the sidecar is probably starting.
const FIRST_RETRY: Duration = Duration::from_millis(100);
/// The longest pause after failures.
const RETRY_MAX: Duration = Duration::from_secs(3);
/// The default port of a URL.
const HTTP_PORT: u16 = 80;
/// The Host for a server without a name.
const LOCALHOST: &str = "localhost";

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Unix(PathBuf),
    Tcp {
        /// A name or an address, without brackets.
        host: String,
        port: u16,
        /// The authority for the Host header.
        authority: String,
    },
}

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) body: Vec<u8>,
}

impl Server {
    /// Parses `http://HOST:PORT` or `unix:///PATH`.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        const WRITE: &str = "write http://HOST:PORT or unix:///PATH";
        if let Some(path) = url.strip_prefix("unix://") {
            if !path.starts_with('/') || path.ends_with('/') {
                return Err(WRITE.into());
            }
            return unix_socket::path(path.into()).map(Self::Unix);
        }
        let uri: Uri = url.parse().map_err(|_no_url| WRITE.to_owned())?;
        let is_bare = uri.path_and_query().is_none_or(|rest| rest == "/");
        let authority = uri.authority().filter(|_| is_bare);
        let Some(authority) = authority.filter(|_| uri.scheme() == Some(&Scheme::HTTP)) else {
            return Err(WRITE.into());
        };
        let host = authority.host();
        // An invalid port or a user would otherwise be ignored.
        let port = match authority.port_u16() {
            None if authority == host => HTTP_PORT,
            Some(port) if authority.as_str().starts_with(host) => port,
            _ => return Err(WRITE.into()),
        };
        Ok(Self::Tcp {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            authority: authority.to_string(),
        })
    }

    /// Returns the own listener. It accepts the local name at any address.
    pub(super) fn own(address: SocketAddr) -> Self {
        Self::Tcp {
            host: address.ip().to_string(),
            port: address.port(),
            authority: LOCALHOST.to_owned(),
        }
    }

    /// Sends one GET request.
    ///
    /// # Errors
    /// If no valid HTTP response arrives in time.
    pub(super) async fn get(&self, path: &str, limit: Duration) -> anyhow::Result<Response> {
        self.exchange(Method::GET, path, limit).await
    }

    /// Sends one request without a body.
    ///
    /// # Errors
    /// If no valid HTTP response arrives in time.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        limit: Duration,
    ) -> anyhow::Result<Response> {
        self.send(self.request(method, path).body(String::new())?, limit)
            .await
    }

    /// Sends one request to this server.
    ///
    /// # Errors
    /// If no valid HTTP response arrives in time.
    pub(super) async fn send(
        &self,
        mut request: Request<String>,
        limit: Duration,
    ) -> anyhow::Result<Response> {
        let close = HeaderValue::from_static("close");
        request.headers_mut().insert(CONNECTION, close);
        let exchange = async {
            let mut connection = self.connect().await?;
            let (head, body) = connection.sender.send_request(request).await?.into_parts();
            Ok(Response {
                status: head.status,
                body: read(body).await?,
            })
        };
        match tokio::time::timeout(limit, exchange).await {
            Ok(answer) => answer,
            Err(_elapsed) => bail!("no answer in {} s", limit.as_secs()),
        }
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If nothing listens there.
    pub(super) async fn connect(&self) -> anyhow::Result<Connection> {
        match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let descriptor = stream.as_fd().try_clone_to_owned()?;
                Connection::new(stream, descriptor).await
            }
            Self::Tcp { host, port, .. } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                let descriptor = stream.as_fd().try_clone_to_owned()?;
                Connection::new(stream, descriptor).await
            }
        }
    }

    /// Returns a request to this server.
    pub(super) fn request(&self, method: Method, path: &str) -> request::Builder {
        let host = match self {
            Self::Unix(_) => LOCALHOST,
            Self::Tcp { authority, .. } => authority,
        };
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
    }
}

/// A connection. Dropping it closes it, unless its descriptor was duplicated.
pub(super) struct Connection {
    pub(super) sender: http1::SendRequest<String>,
    pub(super) descriptor: OwnedFd,
    _driver: AbortOnDropHandle<hyper::Result<()>>,
}

impl Connection {
    async fn new(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        descriptor: OwnedFd,
    ) -> anyhow::Result<Self> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self {
            sender,
            descriptor,
            _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
        })
    }
}

/// Reads a whole body, up to the maximum.
pub(super) async fn read(body: Incoming) -> anyhow::Result<Vec<u8>> {
    let body = Limited::new(body, ANSWER_MAX_BYTES).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed);
    Ok(body.context("the answer broke off")?.to_bytes().to_vec())
}

/// Returns the pause after a number of failures, which is at least 1; `random` is from 0 to 1.
pub(super) fn retry_pause(failures: u32, random: f64) -> Duration {
    let bound = FIRST_RETRY * 2_u32.pow(failures.clamp(1, 8) - 1);
    jittered(bound.min(RETRY_MAX), random)
}

/// Returns between half and all of a bound. So many pods that start together do not send requests
/// together.
pub(super) fn jittered(bound: Duration, random: f64) -> Duration {
    bound.mul_f64(0.5 + random / 2.0)
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { host, port, .. } if host.contains(':') => {
                write!(f, "http://[{host}]:{port}")
            }
            Self::Tcp { host, port, .. } => write!(f, "http://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded_and_differ() {
        assert_eq!(jittered(RETRY_MAX, 0.0), RETRY_MAX / 2);
        assert_eq!(retry_pause(1, 1.0), FIRST_RETRY);
        assert!(retry_pause(4, 0.5) > retry_pause(3, 0.5));
        assert_eq!(retry_pause(u32::MAX, 1.0), RETRY_MAX);
    }

    #[test]
    fn a_server_is_an_address_or_a_socket() {
        for good in [
            "http://127.0.0.1:7373",
            "http://[::1]:7373",
            "http://leasehold:80",
            "unix:///run/leasehold.sock",
        ] {
            assert_eq!(Server::parse(good).unwrap().to_string(), good);
        }
        let slash = Server::parse("http://127.0.0.1:7373/").unwrap();
        assert_eq!(slash.to_string(), "http://127.0.0.1:7373");
        let short = Server::parse("http://leasehold").unwrap();
        assert_eq!(short.to_string(), "http://leasehold:80");
        let bad = [
            "",
            "127.0.0.1:7373",
            "https://127.0.0.1:7373",
            "http://",
            "http://127.0.0.1:7373/v1",
            "http://127.0.0.1:7373/?a",
            "http://me@127.0.0.1:7373",
            "http://127.0.0.1:70000",
            "http://127.0.0.1:",
            "http://me@127.0.0.1",
            "unix://run/leasehold.sock",
            "unix:///",
            "unix:/run/leasehold.sock",
        ];
        for bad in bad {
            assert!(Server::parse(bad).is_err(), "{bad}");
        }
        assert!(Server::parse(&format!("unix:///{}", "x".repeat(107))).is_err());
    }
}

//! A service that reads HTTP/1.1 strictly: it records each complete request, and what is not well-formed.

use std::mem::take;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio_util::task::AbortOnDropHandle;

use crate::fence::raw::{Raw, Service};

/// A complete request.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    headers: Vec<Field>,
    pub(super) body: String,
}

type Field = (String, String);
type Recorded = (Vec<Request>, Vec<String>);

/// The service. Dropping it ends it.
pub(super) struct Recorder {
    pub(super) address: SocketAddr,
    recorded: Arc<Mutex<Recorded>>,
    _task: AbortOnDropHandle<()>,
}

impl Recorder {
    pub(super) async fn start() -> Self {
        let service = Service::listen().await;
        let address = service.address();
        let recorded = Arc::new(Mutex::new(Recorded::default()));
        let shared = recorded.clone();
        let task = tokio::spawn(async move {
            loop {
                let connection = service.accept_any().await;
                tokio::spawn(serve(connection, shared.clone()));
            }
        });
        Self {
            address,
            recorded,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Returns the complete requests and the violations since the last call.
    pub(super) fn take(&self) -> Recorded {
        take(&mut self.recorded.lock().unwrap())
    }
}

async fn serve(mut connection: Raw, recorded: Arc<Mutex<Recorded>>) {
    loop {
        match read(&mut connection).await {
            Ok(Some(request)) => {
                let body = format!("{} {}", request.method, request.target);
                let length = body.len();
                let body = if request.method == "HEAD" {
                    String::new()
                } else {
                    body
                };
                // Recorded before the client has its response.
                recorded.lock().unwrap().0.push(request);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
                if connection.try_send(answer).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(violation) => {
                recorded.lock().unwrap().1.push(violation);
                return;
            }
        }
    }
}

/// Reads a request, or `None` if the connection ends first.
async fn read(connection: &mut Raw) -> Result<Option<Request>, String> {
    let Some(head) = connection.find_idle("\r\n\r\n").await else {
        return Ok(None);
    };
    let mut request = parse(&head)?;
    let framing = |name: &str| {
        let mut values = request.headers.iter().filter(|(found, _)| found == name);
        (values.next().map(|(_, value)| value.clone()), values.next())
    };
    let body = match (framing("content-length"), framing("transfer-encoding")) {
        ((None, _), (None, _)) => Some(String::new()),
        ((Some(length), None), (None, _)) => {
            let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse().ok().filter(|_| is_number);
            let length = length.ok_or_else(|| format!("Content-Length in {head:?}"))?;
            connection.exactly(length).await.map(text)
        }
        ((None, _), (Some(coding), None)) if coding == "chunked" => {
            let read = chunks(connection).await?;
            // Some services read trailers as headers.
            read.map(|(body, trailers)| {
                request.headers.extend(trailers);
                body
            })
        }
        _ => return Err(format!("the framing of {head:?}")),
    };
    Ok(body.map(|body| {
        request.body = body;
        request
    }))
}

fn parse(head: &str) -> Result<Request, String> {
    let lines: Vec<_> = head.trim_end_matches("\r\n").split("\r\n").collect();
    let is_clean = |line: &&str| !line.contains(['\r', '\n', '\0']);
    let parts: Vec<_> = lines[0].split(' ').collect();
    let ([method, target, "HTTP/1.1"], true) = (&parts[..], lines.iter().all(is_clean)) else {
        return Err(format!("the lines of {head:?}"));
    };
    let mut request = Request {
        method: (*method).to_owned(),
        target: (*target).to_owned(),
        ..Request::default()
    };
    for line in &lines[1..] {
        request.headers.push(field(line)?);
    }
    let hop_by_hop = [
        "connection",
        "keep-alive",
        "proxy-connection",
        "http2-settings",
        "upgrade",
        "expect",
    ];
    let is_tunnel = request.header("upgrade") == Some("websocket");
    let passed = hop_by_hop
        .iter()
        .find(|name| request.header(name).is_some());
    if let Some(passed) = passed.filter(|_| !is_tunnel) {
        return Err(format!("{passed} in {head:?}"));
    }
    if request
        .headers
        .iter()
        .filter(|(name, _)| name == "host")
        .count()
        != 1
    {
        return Err(format!("Host in {head:?}"));
    }
    Ok(request)
}

fn field(line: &str) -> Result<Field, String> {
    let (name, value) = line.split_once(':').ok_or_else(|| format!("{line:?}"))?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("the name in {line:?}"));
    }
    Ok((name.to_ascii_lowercase(), value.trim().to_owned()))
}

/// Reads a body in chunks, and its trailers.
async fn chunks(connection: &mut Raw) -> Result<Option<(String, Vec<Field>)>, String> {
    let mut body = Vec::new();
    loop {
        let Some(size) = connection.find("\r\n").await else {
            return Ok(None);
        };
        let digits = size.trim_end_matches("\r\n");
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(digits, 16).ok().filter(|_| is_number);
        let size = size.ok_or_else(|| format!("the chunk size {digits:?}"))?;
        if size == 0 {
            break;
        }
        let Some(chunk) = connection.exactly(size + 2).await else {
            return Ok(None);
        };
        if !chunk.ends_with(b"\r\n") {
            return Err("a chunk without its end".to_owned());
        }
        body.extend_from_slice(&chunk[..size]);
    }
    let mut trailers = Vec::new();
    loop {
        match connection.find("\r\n").await.as_deref() {
            None => return Ok(None),
            Some("\r\n") => return Ok(Some((text(body), trailers))),
            Some(trailer) => trailers.push(field(trailer)?),
        }
    }
}

fn text(bytes: Vec<u8>) -> String {
    bytes.into_iter().map(char::from).collect()
}

impl Request {
    /// Returns the value of a header, or the empty text if it is repeated.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(found, _)| found == name);
        let (_, value) = values.next()?;
        Some(values.next().map_or(value, |_repeated| ""))
    }
}

//! Clients and services that speak HTTP/2 without TLS, and gRPC.

use std::convert::Infallible;
use std::time::Duration;

use futures::StreamExt as _;
use futures::channel::{mpsc, oneshot};
use futures::stream::BoxStream;
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::frames::{self, Frames};
use super::raw::header;
use super::{Fence, post};

/// A body that a test sends part by part. It ends when its sender is dropped.
type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;
type Parts = mpsc::UnboundedSender<Frame<Bytes>>;
type Call = (Request<Incoming>, oneshot::Sender<Response<Body>>);

fn body() -> (Parts, Body) {
    let (parts, sent) = mpsc::unbounded();
    (parts, StreamBody::new(sent.map(Ok).boxed()))
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

fn trailer(name: &'static str, value: &'static str) -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, value.parse().unwrap());
    Frame::trailers(trailers)
}

/// Receives the next part as text.
async fn part(body: &mut Incoming) -> String {
    let frame = body.frame().await.expect("a part").unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn trailers(mut body: Incoming) -> HeaderMap {
    let frame = body.frame().await.expect("trailers").unwrap();
    frame.into_trailers().unwrap()
}

async fn connect(fence: &Fence) -> SendRequest<Body> {
    let stream = TcpStream::connect(fence.address).await.unwrap();
    let handshake = handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (client, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    client
}

fn call(token: u64, body: Body) -> Request<Body> {
    Request::post("http://example.test/Service/Call")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-fencing-token", token)
        .header("x-fencing-resource", "r")
        .body(body)
        .unwrap()
}

/// Begins the response to a call.
fn answer(respond: oneshot::Sender<Response<Body>>, body: Body) {
    assert!(
        respond.send(Response::new(body)).is_ok(),
        "the call was cancelled"
    );
}

/// A service that hands each call to the test.
struct Calls {
    calls: mpsc::UnboundedReceiver<Call>,
    _server: AbortOnDropHandle<()>,
}

impl Calls {
    /// Starts a fence in front of one.
    async fn behind_fence(flags: &[&str]) -> (Fence, Self) {
        Self::with_streams(None, flags).await
    }

    /// The same with a limit of calls at once.
    async fn with_streams(limit: Option<u32>, flags: &[&str]) -> (Fence, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = mpsc::unbounded();
        let server = tokio::spawn(async move {
            loop {
                let (stream, _peer) = listener.accept().await.unwrap();
                let sender = sender.clone();
                let service = service_fn(move |request| {
                    let (respond, response) = oneshot::channel();
                    sender.unbounded_send((request, respond)).unwrap();
                    response
                });
                let mut server = http2::Builder::new(TokioExecutor::new());
                server.max_concurrent_streams(limit);
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        let flags = [&["--upstream-http2"], flags].concat();
        let service = Self {
            calls,
            _server: AbortOnDropHandle::new(server),
        };
        (Fence::start(address, &flags).await, service)
    }

    async fn next(&mut self) -> Call {
        self.calls.next().await.unwrap()
    }
}

#[tokio::test]
async fn unary_grpc_call_passes_with_its_trailers() {
    let (fence, mut calls) = Calls::behind_fence(&[]).await;
    let mut client = connect(&fence).await;
    let (sent, request) = body();
    sent.unbounded_send(data("question")).unwrap();
    drop(sent);
    let response = tokio::spawn(client.send_request(call(7, request)));
    let (mut request, respond) = calls.next().await;
    assert_eq!(request.version(), Version::HTTP_2);
    assert_eq!(request.uri().path(), "/Service/Call");
    assert_eq!(request.headers()["te"], "trailers");
    assert_eq!(request.headers()["x-fencing-token"], "7");
    assert_eq!(part(request.body_mut()).await, "question");
    let (sent, response_body) = body();
    sent.unbounded_send(data("answer")).unwrap();
    sent.unbounded_send(trailer("grpc-status", "0")).unwrap();
    drop(sent);
    answer(respond, response_body);
    let mut response = response.await.unwrap().unwrap();
    assert_eq!(part(response.body_mut()).await, "answer");
    assert_eq!(trailers(response.into_body()).await["grpc-status"], "0");
}

#[tokio::test]
async fn grpc_messages_pass_in_both_directions_in_turn() {
    let (fence, mut calls) = Calls::behind_fence(&[]).await;
    let mut client = connect(&fence).await;
    let (to_service, request) = body();
    let response = tokio::spawn(client.send_request(call(7, request)));
    let (mut request, respond) = calls.next().await;
    let (to_client, response_body) = body();
    answer(respond, response_body);
    let mut response = response.await.unwrap().unwrap();
    for text in ["first", "second"] {
        to_service.unbounded_send(data(text)).unwrap();
        assert_eq!(part(request.body_mut()).await, text);
        to_client.unbounded_send(data(text)).unwrap();
        assert_eq!(part(response.body_mut()).await, text);
    }
    to_service.unbounded_send(trailer("x-sum", "1")).unwrap();
    drop(to_service);
    assert_eq!(trailers(request.into_body()).await["x-sum"], "1");
    to_client
        .unbounded_send(trailer("grpc-status", "0"))
        .unwrap();
    drop(to_client);
    assert_eq!(trailers(response.into_body()).await["grpc-status"], "0");
}

#[tokio::test]
async fn http2_client_streams_to_an_http1_service() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = connect(&fence).await;
    let (sent, request) = body();
    let mut request = call(7, request);
    request
        .headers_mut()
        .insert("trailer", "x-sum".parse().unwrap());
    let response = tokio::spawn(client.send_request(request));
    sent.unbounded_send(data("first")).unwrap();
    let (mut upstream, head) = service.request().await;
    assert!(
        head.starts_with("POST /Service/Call HTTP/1.1\r\n"),
        "{head}"
    );
    assert_eq!(header(&head, "transfer-encoding"), Some("chunked"));
    assert_eq!(header(&head, "host"), Some("example.test"));
    upstream.until("first").await;
    sent.unbounded_send(trailer("x-sum", "1")).unwrap();
    drop(sent);
    upstream.until("0\r\nx-sum: 1\r\n\r\n").await;
    let head = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n";
    upstream.send(format!("{head}3\r\none\r\n")).await;
    let mut response = response.await.unwrap().unwrap();
    // HTTP/2 forbids them.
    for name in ["connection", "transfer-encoding"] {
        assert!(!response.headers().contains_key(name), "{response:?}");
    }
    assert_eq!(part(response.body_mut()).await, "one");
    upstream.send("0\r\nX-Sum: 2\r\n\r\n").await;
    assert_eq!(trailers(response.into_body()).await["x-sum"], "2");
}

/// Both versions are served at one address, also to one resource.
#[tokio::test]
async fn stale_token_is_refused_in_both_versions() {
    let (fence, mut calls) = Calls::behind_fence(&[]).await;
    let mut client = fence.connect().await;
    client.send(post(8, "")).await;
    let (_request, respond) = calls.next().await;
    answer(respond, body().1);
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    let mut client = connect(&fence).await;
    let response = client.send_request(call(7, body().1)).await.unwrap();
    assert_eq!(response.status(), StatusCode::PRECONDITION_FAILED);
    let refused = response.into_body().collect().await.unwrap().to_bytes();
    let refused: serde_json::Value = serde_json::from_slice(&refused).unwrap();
    assert_eq!(refused["latestFencingToken"], 8, "{refused}");
}

#[tokio::test]
async fn cancelled_call_is_cancelled_at_the_service() {
    let (fence, mut calls) = Calls::behind_fence(&[]).await;
    let mut client = connect(&fence).await;
    let (sent, request) = body();
    let response = tokio::spawn(client.send_request(call(7, request)));
    sent.unbounded_send(data("first")).unwrap();
    let (mut request, mut respond) = calls.next().await;
    assert_eq!(part(request.body_mut()).await, "first");
    response.abort();
    drop(sent);
    respond.cancellation().await;
    // Other calls of this connection continue.
    let response = tokio::spawn(client.send_request(call(8, body().1)));
    let (_request, respond) = calls.next().await;
    answer(respond, body().1);
    assert_eq!(response.await.unwrap().unwrap().status(), 200);
}

/// What waits for a stream of the service's connection is in memory, also after its client has disconnected.
#[tokio::test]
async fn abandoned_call_that_was_not_sent_yet_is_limited() {
    let (fence, mut calls) = Calls::with_streams(Some(1), &["--max-requests=2"]).await;
    let mut client = connect(&fence).await;
    let _running = tokio::spawn(client.send_request(call(7, body().1)));
    let (_request, _respond) = calls.next().await;
    let mut abandoning = fence.connect().await;
    abandoning.send(post(7, "")).await;
    drop(abandoning);
    assert_eq!(fence.event("request").await["code"], "abandoned");
    let mut third = fence.connect().await;
    third.send(post(7, "")).await;
    let answer = third.answer().await;
    assert_eq!(answer.status, 503, "{answer:?}");
}

/// hyper takes more requests than the service accepts streams. It keeps the head of one that is cancelled, and sends it
/// when a stream ends, while newer requests may have another connection.
#[tokio::test]
async fn newer_token_waits_for_a_head_that_is_not_sent() {
    let flags = ["--upstream-idle=3", "--older-requests=0"];
    let (fence, mut calls) = Calls::with_streams(Some(3), &flags).await;
    let mut client = fence.connect().await;
    client.send(post(7, "")).await;
    let (_request, respond) = calls.next().await;
    answer(respond, body().1);
    client.head().await;
    let mut frames = Frames::connect(&fence).await;
    let fields = |method: &str| {
        let fields = [
            &format!(":method={method}"),
            ":scheme=http",
            ":path=/w",
            ":authority=a",
        ];
        fields.map(str::to_owned).to_vec()
    };
    let mut older = fields("DELETE");
    older.extend(["x-fencing-token=7", "x-fencing-resource=r"].map(str::to_owned));
    let [first, second, third] =
        [1, 3, 5].map(|stream| frames::headers(stream, &fields("GET"), true));
    let older = frames::headers(7, &older, true);
    frames.send(&[first, second, third, older].concat()).await;
    let (_first, respond) = calls.next().await;
    let _open = [calls.next().await, calls.next().await];
    frames.send(&frames::reset(7, frames::CANCEL)).await;
    assert_eq!(fence.event("request").await["code"], "abandoned");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let mut newer = fence.connect().await;
    let newest = "X-Fencing-Token: 8\r\nX-Fencing-Resource: r";
    newer
        .send(format!("DELETE /w HTTP/1.1\r\nHost: a\r\n{newest}\r\n\r\n"))
        .await;
    let early = timeout(Duration::from_secs(2), calls.next()).await;
    assert!(early.is_err(), "{early:?}");
    answer(respond, body().1);
    loop {
        let (request, respond) = calls.next().await;
        if request.headers()["x-fencing-token"] == "8" {
            // Its head does not end the stream.
            assert_eq!(request.headers()["content-length"], "0");
            answer(respond, body().1);
            break;
        }
    }
    assert!(newer.head().await.starts_with("HTTP/1.1 200"));
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Sends more than the buffers of the fence and the system hold.
fn flood(sent: &Parts) {
    let part = Bytes::from(vec![b'a'; 1024 * 1024]);
    for _ in 0..32 {
        sent.unbounded_send(Frame::data(part.clone())).unwrap();
    }
}

#[tokio::test]
async fn stalled_body_does_not_block_others_of_its_connection() {
    let (fence, service) = Fence::before_service(&[]).await;
    let mut client = connect(&fence).await;
    let (sent, request) = body();
    let _stalled = tokio::spawn(client.send_request(call(7, request)));
    flood(&sent);
    // The service reads the head, and nothing of the body any more.
    let (_stalled_upstream, _head) = service.request().await;
    let mut before = usize::MAX;
    while before != sent.len() {
        before = sent.len();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(before > 0, "the whole body was sent");
    let (sent, request) = body();
    let _other = tokio::spawn(client.send_request(call(7, request)));
    let (mut upstream, _head) = service.request().await;
    sent.unbounded_send(data("other")).unwrap();
    drop(sent);
    upstream.until("other\r\n0\r\n\r\n").await;
}

/// With HTTP/2, all requests have one connection to the service.
#[tokio::test]
async fn slow_readers_do_not_block_other_responses() {
    let (fence, mut calls) = Calls::behind_fence(&[]).await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut client = connect(&fence).await;
        let response = tokio::spawn(client.send_request(call(7, body().1)));
        let (_request, respond) = calls.next().await;
        let (sent, unread) = body();
        flood(&sent);
        answer(respond, unread);
        slow.push((client, response.await.unwrap().unwrap()));
    }
    let mut client = connect(&fence).await;
    let response = tokio::spawn(client.send_request(call(7, body().1)));
    let (_request, respond) = calls.next().await;
    let (sent, other) = body();
    sent.unbounded_send(data("other")).unwrap();
    answer(respond, other);
    let mut response = response.await.unwrap().unwrap();
    let other = timeout(PATIENCE, part(response.body_mut())).await;
    assert_eq!(other.expect("the other response"), "other");
    drop(slow);
}

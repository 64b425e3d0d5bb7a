//! The bodies of one exchange: they pass frame by frame, count as running until they end, and can be cut.

mod received;

use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use http::HeaderMap;
use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tokio_util::task::AbortOnDropHandle;

use super::exchange::Exchange;
use super::gate::Pass;
use super::headers;
use crate::clock::Clock;
use crate::protocol::time::Moment;

pub(super) use received::Received;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    /// The other side.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// The other side, in a way that hyper takes for its end.
    #[error("the stream was reset")]
    Reset,
    /// A newer token waited too long, or there is one.
    #[error("cut for a newer token")]
    Cut,
    /// The body is longer than the limit.
    #[error("the body is too large")]
    TooLarge,
}

/// The body of a request, on its way to the service.
pub(super) struct RequestBody {
    inner: Received,
    left: u64,
    progress: Arc<Progress>,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Newer tokens wait as long as the service may receive more of it.
    pass: Option<Arc<Pass>>,
    /// With HTTP/2, what hyper gets of a body without data. It stays there until the head before it is sent: that may be
    /// long after the request was cut, if the service has as many streams as it accepts.
    empty: Option<Part>,
    /// What comes after it.
    trailers: Option<HeaderMap>,
    /// A request counts for `--max-requests` as long as hyper has its body, also after its client has disconnected.
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

/// A part of the body. hyper keeps it until it is sent or the connection is closed. So long newer tokens wait.
pub(super) struct Part {
    bytes: Bytes,
    _pass: Option<Arc<Pass>>,
}

impl Buf for Part {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// How far a request has arrived.
pub(super) struct Progress {
    clock: Arc<dyn Clock>,
    /// Of the last frame, in microseconds since boot.
    last: AtomicU64,
    /// Whether the next frame must come from the client.
    waits_for_client: AtomicBool,
    is_complete: AtomicBool,
    is_broken: AtomicBool,
    is_too_large: AtomicBool,
}

impl Progress {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let progress = Self {
            clock,
            last: AtomicU64::new(0),
            waits_for_client: AtomicBool::new(false),
            is_complete: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            is_too_large: AtomicBool::new(false),
        };
        progress.note(false);
        progress
    }

    fn note(&self, waits_for_client: bool) {
        if !waits_for_client {
            let micros = self.clock.now().elapsed_since_boot().as_micros();
            let micros = u64::try_from(micros).unwrap_or(u64::MAX);
            self.last.store(micros, Ordering::Relaxed);
        }
        self.waits_for_client
            .store(waits_for_client, Ordering::Relaxed);
    }

    /// Returns when nothing has moved for this long.
    pub(super) async fn stalled(&self, limit: Duration) {
        loop {
            let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
            let rest = Moment::since_boot(last)
                .after(limit)
                .since(self.clock.now());
            if rest.is_zero() {
                return;
            }
            tokio::time::sleep(rest).await;
        }
    }

    /// Returns whether the client is the one that does not continue.
    pub(super) fn waits_for_client(&self) -> bool {
        self.waits_for_client.load(Ordering::Relaxed)
    }

    /// Returns whether the whole body was passed on.
    fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed)
    }

    /// Returns whether the client closed the connection in the body, or sent an invalid one.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Returns whether the body is longer than the limit.
    pub(super) fn is_too_large(&self) -> bool {
        self.is_too_large.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    pub(super) fn new(
        inner: Received,
        limit: u64,
        progress: Arc<Progress>,
        pass: Option<Arc<Pass>>,
        permit: Option<Arc<OwnedSemaphorePermit>>,
        holds_head: bool,
    ) -> Self {
        let mut body = Self {
            left: limit,
            progress,
            cut: pass
                .as_ref()
                .map(|pass| Box::pin(pass.cut().clone().cancelled_owned())),
            empty: None,
            trailers: None,
            pass,
            _permit: permit,
            inner,
        };
        body.empty = holds_head.then(|| body.part(Bytes::new()));
        body.check_end();
        body
    }

    fn part(&self, bytes: Bytes) -> Part {
        Part {
            bytes,
            _pass: self.pass.clone(),
        }
    }

    fn take_empty(&mut self) -> Option<Result<Frame<Part>, BodyError>> {
        self.empty.take().map(|empty| Ok(Frame::data(empty)))
    }

    /// hyper does not ask again after the last byte of a body of known length.
    fn check_end(&self) {
        if self.inner.is_end_stream() {
            self.progress.is_complete.store(true, Ordering::Relaxed);
        }
    }
}

impl Body for RequestBody {
    type Data = Part;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Part>, BodyError>>> {
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if self.progress.is_complete() {
            return Poll::Ready(self.take_empty());
        }
        if let Some(pass) = &self.pass {
            pass.cut_without_lead();
        }
        if let Some(cut) = &mut self.cut
            && cut.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        self.progress.note(polled.is_pending());
        let Some(frame) = ready!(polled) else {
            self.progress.is_complete.store(true, Ordering::Relaxed);
            return Poll::Ready(self.take_empty());
        };
        let mut frame = frame.inspect_err(|_error| {
            self.progress.is_broken.store(true, Ordering::Relaxed);
        })?;
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(left) = self.left.checked_sub(length) else {
            self.progress.is_too_large.store(true, Ordering::Relaxed);
            return Poll::Ready(Some(Err(BodyError::TooLarge)));
        };
        self.left = left;
        // Trailers are the last frame, after which hyper does not ask again.
        if let Some(trailers) = frame.trailers_mut() {
            self.progress.is_complete.store(true, Ordering::Relaxed);
            headers::prepare_trailers(trailers);
            if let Some(empty) = self.take_empty() {
                self.trailers = Some(mem::take(trailers));
                return Poll::Ready(Some(empty));
            }
        }
        self.check_end();
        self.empty = None;
        let frame = frame.map_data(|bytes| self.part(bytes));
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.empty.is_none() && self.trailers.is_none() && self.progress.is_complete()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of a response, on its way to the client.
pub(super) struct ResponseBody {
    slot: Arc<Mutex<Slot>>,
    exchange: Exchange,
    _cutter: Option<AbortOnDropHandle<()>>,
}

struct Slot {
    /// `None` once it is cut.
    running: Option<Running>,
    /// Wakes the connection of the client, which does not notice a cut by itself.
    waker: Option<Waker>,
}

/// What a cut drops, although hyper keeps the body until the client reads.
struct Running {
    inner: Received,
    pass: Option<Arc<Pass>>,
    request: Arc<Progress>,
}

impl Running {
    /// Records the end of the response. If the service may still read the request, its outcome is unknown.
    fn ended(&self) {
        if let Some(pass) = self.pass.as_ref().filter(|_| self.request.is_complete()) {
            pass.answered();
        }
    }
}

impl ResponseBody {
    pub(super) fn new(
        inner: Received,
        exchange: Exchange,
        pass: Option<Arc<Pass>>,
        request: Arc<Progress>,
    ) -> Self {
        let has_ended = inner.is_end_stream();
        let running = Running {
            inner,
            pass,
            request,
        };
        if has_ended {
            running.ended();
        }
        let cut = running.pass.as_ref().map(|pass| pass.cut().clone());
        let slot = Arc::new(Mutex::new(Slot {
            running: Some(running),
            waker: None,
        }));
        // A client that reads slowly does not poll the body, so a task cuts it.
        let cutter = cut.filter(|_| !has_ended).map(|cut| {
            let slot = slot.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                cut.cancelled().await;
                let mut slot = lock(&slot);
                let pass = slot.running.take().and_then(|running| running.pass);
                if let Some(pass) = pass {
                    pass.was_cut();
                }
                if let Some(waker) = slot.waker.take() {
                    waker.wake();
                }
            }))
        });
        Self {
            slot,
            exchange,
            _cutter: cutter,
        }
    }
}

fn lock(slot: &Mutex<Slot>) -> MutexGuard<'_, Slot> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let slot = self.slot.clone();
        let mut slot = lock(&slot);
        let Some(running) = slot.running.as_mut() else {
            return Poll::Ready(Some(Err(BodyError::Cut)));
        };
        let polled = Pin::new(&mut running.inner).poll_frame(context);
        if polled.is_pending() {
            slot.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let frame = ready!(polled).transpose()?;
        // hyper does not ask again after the last byte of a body of known length.
        let is_last = frame.as_ref().is_none_or(Frame::is_trailers);
        if is_last || running.inner.is_end_stream() {
            running.ended();
        }
        if let Some(data) = frame.as_ref().and_then(Frame::data_ref) {
            self.exchange.sent(data.len());
        }
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        let slot = lock(&self.slot);
        let running = slot.running.as_ref();
        running.is_some_and(|running| running.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let slot = lock(&self.slot);
        let running = slot.running.as_ref();
        running.map_or_else(SizeHint::default, |running| running.inner.size_hint())
    }
}

#[cfg(test)]
mod tests;

//! A body as hyper receives it, with an error where hyper has none.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Version;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use super::BodyError;

/// A body from a client or from the service.
pub(in crate::fence) struct Received {
    inner: Incoming,
    is_http2: bool,
}

impl Received {
    /// Takes the body of a message of this version.
    pub(in crate::fence) fn new(inner: Incoming, version: Version) -> Self {
        let is_http2 = version == Version::HTTP_2;
        Self { inner, is_http2 }
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        // For hyper a body has also ended if its sender resets the stream with `NO_ERROR`.
        if frame.is_none() && self.is_http2 && !self.inner.is_end_stream() {
            return Poll::Ready(Some(Err(BodyError::Reset)));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

//! Frames of HTTP/2 as bytes, because a client library sends no malformed request.

use super::Fence;
use super::raw::Raw;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The code of a reset.
pub(super) const CANCEL: u32 = 8;

/// A connection.
pub(super) struct Frames(Raw);

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Response,
    Reset,
    /// With its connection.
    Connection,
}

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend(payload);
    frame
}

/// Returns fields `name=value` as literals that enter no table (RFC 7541, section 6.2.2).
pub(super) fn headers(stream: u8, fields: &[String], is_end: bool) -> Vec<u8> {
    let mut block = Vec::new();
    for field in fields {
        // A name in front of the first "=" that may begin with a colon.
        let (name, value) = field.split_once('=').unwrap();
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            assert!(text.len() < 127, "a longer length has more bytes");
            block.extend(text.as_bytes());
        }
    }
    let end = if is_end { END_STREAM } else { 0 };
    frame(HEADERS, END_HEADERS | end, stream, &block)
}

pub(super) fn data(stream: u8, text: &str, is_end: bool) -> Vec<u8> {
    frame(DATA, u8::from(is_end), stream, text.as_bytes())
}

/// Cancels a stream.
pub(super) fn reset(stream: u8, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

impl Frames {
    pub(super) async fn connect(fence: &Fence) -> Self {
        let mut connection = fence.connect().await;
        connection.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        connection.send(frame(SETTINGS, 0, 0, &[])).await;
        Self(connection)
    }

    pub(super) async fn send(&mut self, frames: &[u8]) {
        let _closed_early = self.0.try_send(frames).await;
    }

    /// Reads until a stream has ended.
    pub(super) async fn until_end(&mut self, stream: u8) -> Stop {
        loop {
            let Some(head) = self.0.exactly(9).await else {
                return Stop::Connection;
            };
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(_payload) = self.0.exactly(length).await else {
                return Stop::Connection;
            };
            let is_own = head[8] == stream;
            match head[3] {
                GOAWAY => return Stop::Connection,
                RST_STREAM if is_own => return Stop::Reset,
                HEADERS | DATA if is_own && head[4] & END_STREAM != 0 => return Stop::Response,
                _ => {}
            }
        }
    }
}

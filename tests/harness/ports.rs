//! Ports for servers that stop and restart at the same address.
//!
//! Another socket may use a port that the kernel assigned earlier when a server wants it back. So
//! these ports are below the range that the kernel assigns from, and each is returned once.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The beginning of the range. Well-known services are below.
const FIRST: u16 = 20_000;
/// The end of the range. Linux assigns from 32768 on (`net.ipv4.ip_local_port_range`).
const END: u16 = 32_000;

/// Returns a port that is free now, and that the kernel assigns to no other socket later.
pub(crate) fn own_port() -> Result<u16> {
    static OFFERED: AtomicU16 = AtomicU16::new(0);

    let span = END - FIRST;
    // Concurrent test binaries begin at different ports.
    let begin = u16::try_from(std::process::id() * 97 % u32::from(span))?;
    (0..span)
        .map(|_| FIRST + (begin + OFFERED.fetch_add(1, Ordering::Relaxed) % span) % span)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("every port from 20000 to 31999 is in use")
}

//! Ports for servers that stop and start again at the same address.
//!
//! A port that the kernel assigned once may be used by another socket when a server wants it back. So these are from
//! below the range that the kernel assigns from, each offered once.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};

/// The range begins here; below are well-known services.
const FIRST: u16 = 20_000;
/// The range ends before this: Linux lends from 32768 on (`net.ipv4.ip_local_port_range`).
const END: u16 = 32_000;

/// A port that is free now, and that the kernel assigns to no other socket later.
pub(crate) fn own_port() -> Result<u16> {
    static OFFERED: AtomicU16 = AtomicU16::new(0);

    let span = END - FIRST;
    // Test binaries that run beside each other begin at different places.
    let begin = u16::try_from(std::process::id() * 97 % u32::from(span))?;
    (0..span)
        .map(|_| FIRST + (begin + OFFERED.fetch_add(1, Ordering::Relaxed) % span) % span)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("every port from 20000 to 31999 is in use")
}

//! SIGTERM, SIGINT and SIGHUP: the first signal starts a clean stop, the second one exits.

use std::io;
use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Returns a token that is cancelled by the first signal. A second signal exits at once, with 128
/// plus the signal's number like a shell.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut signals = Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hang_up: signal(SignalKind::hangup())?,
    };
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let first = signals.next().await;
        tracing::info!(
            signal = first,
            "stopping; a second signal exits immediately"
        );
        stopping.cancel();
        let second = signals.next().await;
        tracing::warn!(signal = second, "second signal; exiting");
        process::exit(128 + second);
    });
    Ok(stop)
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// The terminal was closed.
    hang_up: Signal,
}

impl Signals {
    async fn next(&mut self) -> i32 {
        let signal = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.hang_up.recv() => SignalKind::hangup(),
        };
        signal.as_raw_value()
    }
}

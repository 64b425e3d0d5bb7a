//! SIGTERM and SIGINT: the first one asks for a clean stop, the second one ends the process.

use std::io;
use std::process;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by the first signal. A second signal ends the process at once, with
/// 128 and the signal's number as shells have it.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let first = next(&mut terminate, &mut interrupt).await;
        tracing::info!(
            signal = first,
            "stopping; a second signal ends the process at once"
        );
        stopping.cancel();
        let second = next(&mut terminate, &mut interrupt).await;
        tracing::warn!(
            signal = second,
            "ended by a second signal; what is held expires by its TTL"
        );
        process::exit(128 + second);
    });
    Ok(stop)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
    tokio::select! {
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
    }
}

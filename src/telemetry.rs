//! Logs on standard error: text, or one JSON object per line.
//!
//! Each event is logged once, where it is handled, with identifiers as fields. Credentials for the
//! API server are logged at no level.

use std::io::Write;
use std::panic;

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::fmt::MakeWriter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line, with times in UTC.
    Json,
}

/// Messages of libraries at `info` and below are logged only on request. Errors of kube's watcher
/// are logged by the reader of its events, and not for each attempt.
const QUIET: &str = "h2=warn,hyper=warn,hyper_util=warn,kube=warn,kube_client=warn,\
                     kube_runtime=error,rustls=warn,tower=warn";

/// The levels, from silence to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Why a log level is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFilter {
    /// A word that is not a level. The library would treat it as a module and log nothing.
    #[error(
        "{0:?} is not a log level; use off, error, warn, info, debug or trace, or MODULE=LEVEL"
    )]
    NoLevel(String),
    /// The library cannot parse it.
    #[error("it cannot be read; use a level, or MODULE=LEVEL")]
    Unreadable(#[from] ParseError),
}

/// Reads a filter such as `info`, or `info,leasehold::agent=debug`.
///
/// # Errors
/// [`InvalidFilter`] if it is not a filter.
pub fn filter(level: &str) -> Result<EnvFilter, InvalidFilter> {
    for part in level.split(',').map(str::trim) {
        if !part.contains('=') && !LEVELS.contains(&part.to_ascii_lowercase().as_str()) {
            return Err(InvalidFilter::NoLevel(part.to_owned()));
        }
    }
    // Of two directives for one target the last one counts.
    Ok(EnvFilter::try_new(format!("{QUIET},{level}"))?)
}

/// Starts logging. Only the first call in a process counts.
pub fn init(format: LogFormat, filter: EnvFilter) {
    init_with(format, filter, std::io::stderr);
}

/// Starts logging by a thread. If the writer takes no more, lines are dropped. Dropping the guard writes
/// what is left, for a second at most. The other result is for text between the lines.
pub fn init_in_background(
    format: LogFormat,
    filter: EnvFilter,
    writer: impl Write + Send + 'static,
) -> (WorkerGuard, NonBlocking) {
    let (writer, guard) = tracing_appender::non_blocking(writer);
    init_with(format, filter, writer.clone());
    (guard, writer)
}

fn init_with(
    format: LogFormat,
    filter: EnvFilter,
    writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static,
) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer);
    // An error means that a logger (of a test) exists already.
    let _already = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
    };
    // A panic is logged like every other event, so that it is one line in a JSON log.
    panic::set_hook(Box::new(|panic| tracing::error!(%panic, "task panicked")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_log_at_warn_by_default() {
        let said = filter("debug,kube=trace").unwrap().to_string();
        assert!(
            said.contains("kube=trace") && !said.contains("kube=warn,"),
            "{said}"
        );
        assert!(said.contains("hyper=warn"), "{said}");
        assert!(said.contains("debug"), "{said}");
    }

    #[test]
    fn invalid_log_filter_is_refused() {
        for bad in ["a=b=c", "warning", "verbose", "", "info,loud"] {
            assert!(filter(bad).is_err(), "{bad:?}");
        }
    }
}

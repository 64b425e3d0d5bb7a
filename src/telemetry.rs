//! Logs, on standard error: text for people or one JSON object a line.
//!
//! Who logs says what happened once, where it is handled, with identifiers as fields. Nothing
//! that works as a credential towards the API server is logged, at no level.

use std::panic;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line, its time in UTC.
    Json,
}

/// What libraries say at `info` and below is of use only to who asks for it by name. What a watcher was
/// refused is said by who reads it, and not in each try.
const QUIET: &str = "h2=warn,hyper=warn,hyper_util=warn,kube=warn,kube_client=warn,\
                     kube_runtime=error,rustls=warn,tower=warn";

/// The levels, from silence to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Why a log level cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidFilter {
    /// A word that is no level. The library would take it for a module's name and log nothing.
    #[error(
        "{0:?} is not a log level; use off, error, warn, info, debug or trace, or MODULE=LEVEL"
    )]
    NoLevel(String),
    /// The library cannot read it.
    #[error("it cannot be read; use a level, or MODULE=LEVEL")]
    Unreadable(#[from] ParseError),
}

/// Reads a filter such as `info`, or `info,leasehold::agent=debug`.
///
/// # Errors
/// [`InvalidFilter`] when it is no filter.
pub fn filter(level: &str) -> Result<EnvFilter, InvalidFilter> {
    for part in level.split(',').map(str::trim) {
        if !part.contains('=') && !LEVELS.contains(&part.to_ascii_lowercase().as_str()) {
            return Err(InvalidFilter::NoLevel(part.to_owned()));
        }
    }
    // Of two directives for one target the later one counts.
    Ok(EnvFilter::try_new(format!("{QUIET},{level}"))?)
}

/// Begins to log. The first call in a process counts.
pub fn init(format: LogFormat, filter: EnvFilter) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An error says that somebody (a test) logs already.
    let _already = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
    };
    // A panic goes the way of every other event, so that it is one line in a JSON log too.
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

//! The logging flags of every long-running role.

use std::io::IsTerminal as _;

use anyhow::Context;
use clap::ValueEnum;

use tracing_appender::non_blocking::{NonBlocking, WorkerGuard};

use super::output;
use crate::telemetry::{self, LogFormat};

/// The flags.
#[derive(Debug, clap::Args)]
#[group(id = "log")]
pub(super) struct Args {
    /// The format of log lines.
    #[arg(long, env = "LEASEHOLD_LOG_FORMAT", value_enum, default_value_t = LogFormatFlag::Text)]
    log_format: LogFormatFlag,
    /// The log level: error, warn, info, debug, trace, or directives such as
    /// `info,leasehold::agent=debug`.
    #[arg(
        long, env = "LEASEHOLD_LOG_LEVEL", value_name = "LEVEL", default_value = "info",
        value_parser = log_level,
    )]
    log_level: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormatFlag {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

impl Args {
    /// Starts logging.
    pub(super) fn start(&self) -> anyhow::Result<()> {
        let filter = telemetry::filter(&self.log_level).context("--log-level")?;
        telemetry::init(self.format(), filter);
        Ok(())
    }

    /// Starts logging by a thread, until the result is dropped: a reader of the log that is slow or
    /// gone does not block this process.
    pub(super) fn start_in_background(&self, is_quiet: bool) -> anyhow::Result<BackgroundLog> {
        self.background(self.level(is_quiet))
    }

    /// The same for an agent that serves one module, which logs its requests and their failures itself. With
    /// the level `debug` or `trace` it logs all.
    pub(super) fn start_for_agent_of(
        &self,
        module: &str,
        is_quiet: bool,
    ) -> anyhow::Result<BackgroundLog> {
        let level = self.level(is_quiet);
        if !matches!(level, "info" | "warn" | "error") {
            return self.background(level);
        }
        let others = level.replace("info", "warn");
        self.background(&format!("{others},leasehold::http=off,{module}={level}"))
    }

    fn background(&self, level: &str) -> anyhow::Result<BackgroundLog> {
        let filter = telemetry::filter(level).context("--log-level")?;
        let error = output::standard_error();
        let is_for_a_person = error.is_terminal() && level == "info" && self.is_text();
        let (guard, writer) = telemetry::init_in_background(self.format(), filter, error);
        Ok(BackgroundLog {
            _guard: guard,
            terminal: is_for_a_person.then_some(writer),
        })
    }

    fn level(&self, is_quiet: bool) -> &str {
        // Another level than the default was asked for.
        let is_default = self.log_level == "info";
        if is_quiet && is_default {
            "warn"
        } else {
            &self.log_level
        }
    }

    fn is_text(&self) -> bool {
        matches!(self.log_format, LogFormatFlag::Text)
    }

    fn format(&self) -> LogFormat {
        match self.log_format {
            LogFormatFlag::Text => LogFormat::Text,
            LogFormatFlag::Json => LogFormat::Json,
        }
    }
}

/// A log that a thread writes. Dropping it writes what is left.
pub(super) struct BackgroundLog {
    _guard: WorkerGuard,
    /// For text between the lines, if they are on a terminal and in the default format.
    pub(super) terminal: Option<NonBlocking>,
}

fn log_level(text: &str) -> Result<String, String> {
    match telemetry::filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; use error, warn, info, debug or trace")),
    }
}

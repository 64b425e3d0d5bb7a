//! The logging flags of every long-running role.

use anyhow::Context;
use clap::ValueEnum;

use tracing_appender::non_blocking::WorkerGuard;

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
    pub(super) fn start_in_background(&self) -> anyhow::Result<WorkerGuard> {
        let filter = telemetry::filter(&self.log_level).context("--log-level")?;
        Ok(telemetry::init_in_background(
            self.format(),
            filter,
            output::standard_error(),
        ))
    }

    /// Like [`Self::start_in_background`], for an agent that serves one module, which logs its requests and
    /// their failures itself. With the level `debug` or `trace` it logs all.
    pub(super) fn start_for_agent_of(&self, module: &str) -> anyhow::Result<WorkerGuard> {
        let log_level = if matches!(&*self.log_level, "info" | "warn" | "error") {
            let others = self.log_level.replace("info", "warn");
            format!("{others},leasehold::http=off,{module}={}", self.log_level)
        } else {
            self.log_level.clone()
        };
        let filter = telemetry::filter(&log_level).context("--log-level")?;
        Ok(telemetry::init_in_background(
            self.format(),
            filter,
            output::standard_error(),
        ))
    }

    fn format(&self) -> LogFormat {
        match self.log_format {
            LogFormatFlag::Text => LogFormat::Text,
            LogFormatFlag::Json => LogFormat::Json,
        }
    }
}

fn log_level(text: &str) -> Result<String, String> {
    match telemetry::filter(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; use error, warn, info, debug or trace")),
    }
}

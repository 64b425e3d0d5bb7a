//! `leasehold exec`: runs a command while it holds a lock.
//!
//! ```text
//! shell, kubelet, cron ─▶ front ─▶ keeper ─▶ command and what it starts
//!                           ▲        │
//!                           └─ link ─┘ ── POST /v1/locks/hold ──▶ sidecar, or agent ─▶ API server
//! ```
//!
//! The first two processes watch each other, so that one that is killed or stopped does not leave the command
//! running after its lease: the `front`, which the user started, and the `keeper`, which holds the
//! lock. The keeper ends the command before the deadline (`ending`); the front does if the keeper does
//! not. Both are subreapers, so each finds every process that the command started (`tree`). What
//! remains: if both are stopped, or the machine, the command continues until they run again.
//!
//! Without a sidecar, a third process is the agent (`agent`), or the execs of a data directory share a
//! server (`local`). The other two are its clients in each case.

mod acquire;
mod agent;
mod agent_process;
mod alarm;
mod children;
mod command;
mod ending;
mod exit_code;
mod front;
mod held;
mod hold;
mod keeper;
mod launch;
mod link;
mod local;
mod local_server;
mod lost_file;
mod slots;
mod start;
mod status_line;
mod tree;

use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;

use super::client::Server;
use super::{dev, output};
use crate::protocol::completed::CompletionKey;
use crate::protocol::ids::{OWNER_ID_MAX_BYTES, Resource, is_printable};
use ending::OnLost;
pub(super) use launch::{Args as LaunchArgs, run as launch};
use local::ServerInUse;
pub(super) use local_server::{Args as ServerArgs, run as serve_directory};
use slots::Slot;

/// This binary, also if its file was replaced.
const OWN_BINARY: &str = "/proc/self/exe";
/// The role of the second process.
pub(super) const KEEPER: &str = "exec-keeper";
/// The role of the third process, if no sidecar is configured.
const AGENT: &str = "exec-agent";
/// The role of the server that the execs of a data directory share.
const SERVER: &str = "exec-server";
/// The variable with the URL of the sidecar.
const URL_VARIABLE: &str = "LEASEHOLD_URL";
/// The role of the process that becomes the command.
const LAUNCH: &str = "exec-launch";

/// The exit code for a wrong command line.
pub(super) const USAGE: u8 = exit_code::USAGE;

/// The flags.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lock: 1 to 512 bytes of printable text.
    #[arg(long, value_name = "NAME", value_parser = resource)]
    lock: Resource,
    /// The URL of the sidecar, or of `leasehold dev`: `http://HOST:PORT`, or `unix:///PATH`. Default: exec
    /// acquires the lock itself, in the cluster of its pod or of a kubeconfig that is named, or in a data
    /// directory.
    #[arg(long, env = URL_VARIABLE, value_name = "URL", value_parser = Server::parse)]
    url: Option<Server>,
    /// The holder's name, informational; default: the pod's name.
    #[arg(long, value_name = "TEXT", value_parser = owner)]
    owner: Option<String>,
    /// What to do if the lock is held.
    #[arg(long, value_enum, default_value_t = IfHeld::Wait)]
    if_held: IfHeld,
    /// How long to wait at most. Then the exit code is 200 if the lock is held, and 202 if the server does
    /// not answer. Default: without a limit for the lock, and 30 s for the server.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    wait_timeout: Option<Duration>,
    /// How many may run at once, 1 to 32, each under one of as many locks: NAME/slot-1 and so on. All callers
    /// must give the same number. Default: one, under the lock NAME itself.
    #[arg(
        long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=slots::SLOTS_MAX),
    )]
    concurrency: Option<u8>,
    /// Skips the command, with exit code 0, if one has succeeded under this lock with the same key: 1 to 128
    /// printable ASCII characters, such as the date of a nightly run.
    #[arg(
        long, value_name = "KEY", value_parser = completion_key, conflicts_with = "concurrency",
    )]
    once: Option<CompletionKey>,
    /// What to do with the command if its lease is lost.
    #[arg(long, value_enum, default_value_t = OnLost::Term)]
    on_lost: OnLost,
    /// How long before the deadline of the lease the command gets SIGTERM; SIGKILL follows after four
    /// fifths of it. At least 500 ms, and at most half of the validity at the start; default: a quarter
    /// of it, at most 5 s.
    #[arg(long, value_name = "TIME", value_parser = grace)]
    grace: Option<Duration>,
    /// Keeps the lock for this long from the start of the command, also if that has ended.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    at_least_for: Option<Duration>,
    /// Ends the command after this long. Then the exit code is 204.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    max_run: Option<Duration>,
    /// Writes only warnings and errors to standard error, as --log-level warn.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    agent: agent::Args,
    #[command(flatten)]
    log: super::log::Args,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IfHeld {
    /// Waits in the queue.
    Wait,
    /// Exits with 0 and does not run the command.
    Skip,
    /// Exits with 200 and does not run the command.
    Fail,
}

/// Why the command was not run, or not to its end.
struct Failure {
    code: u8,
    error: anyhow::Error,
}

impl Failure {
    fn usage(error: anyhow::Error) -> Self {
        Self {
            code: exit_code::USAGE,
            error,
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self {
            code: exit_code::UNAVAILABLE,
            error,
        }
    }
}

/// Runs as the process that the user started.
///
/// `is_flag` tells of a flag whether it was given on the command line, and not by its variable.
pub(super) fn run(args: &Args, is_flag: impl Fn(&str) -> bool) -> ExitCode {
    if let Err(failure) = args.check(is_flag) {
        return report(&failure);
    }
    front::run(args).map_or_else(|error| report(&error.into()), ExitCode::from)
}

/// Runs as the second process.
pub(super) fn keep(args: &Args) -> ExitCode {
    keeper::run(args).map_or_else(|failure| report(&failure), ExitCode::from)
}

/// Runs as the third process.
pub(super) fn serve(args: &Args) -> ExitCode {
    agent::run(args).map_or_else(|error| report(&error.into()), |()| ExitCode::SUCCESS)
}

fn report(failure: &Failure) -> ExitCode {
    output::error(&failure.error);
    failure.code.into()
}

impl Args {
    /// Returns the locks, one of which is enough.
    fn slots(&self) -> anyhow::Result<Vec<Slot>> {
        slots::slots(&self.lock, self.concurrency).context("--lock is too long for --concurrency")
    }

    /// Returns the data directory whose locks are used, if neither a sidecar nor a cluster is.
    fn data_dir(&self) -> Option<&Path> {
        self.agent.data_dir.as_deref()
    }

    /// Returns the server of the data directory. An exec around this one may have it already.
    fn local_server(&self) -> anyhow::Result<Option<ServerInUse>> {
        let directory = self.data_dir().filter(|_| self.url.is_none());
        directory.map(ServerInUse::find_or_start).transpose()
    }

    /// Checks the combination of the flags.
    fn check(&self, is_flag: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let is_empty = self
            .command
            .first()
            .is_none_or(|program| program.is_empty());
        if is_empty {
            let error = anyhow::anyhow!("the command is empty; write it after --");
            return Err(Failure::usage(error));
        }
        self.slots().map_err(Failure::usage)?;
        let has_url = self.url.is_some();
        let advice = if has_url {
            "is for exec without a sidecar; leave it out, or unset LEASEHOLD_URL"
        } else if self.data_dir().is_some() {
            "is for exec in a cluster; leave it out, or leave --data-dir out (docs/cron.md)"
        } else if self.agent.names_a_cluster() {
            return Ok(());
        } else {
            return Err(Failure::usage(anyhow::anyhow!(
                "no server: set LEASEHOLD_URL, as in injected pods, or name a cluster by KUBECONFIG, \
                 --kubeconfig, --context or --namespace, or use the locks of this machine by --data-dir"
            )));
        };
        // An exec around this one has set LEASEHOLD_URL to the socket of its directory.
        let socket = self.data_dir().map(|path| Server::Unix(dev::socket(path)));
        let other = (has_url && socket != self.url).then_some(&agent::DATA_DIR);
        // Their variables may be there for other programs, or for an exec around this one.
        let mut flags = agent::FLAGS.iter().chain(other);
        if let Some(flag) = flags.find(|flag| is_flag(flag)) {
            let flag = flag.replace('_', "-");
            return Err(Failure::usage(anyhow::anyhow!("--{flag} {advice}")));
        }
        Ok(())
    }
}

/// Returns whether this process has a terminal whose signals it gets.
fn is_in_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Returns whether a signal asks a process to end.
fn ends_a_process(signal: i32) -> bool {
    use rustix::process::Signal;
    let ending = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
    ending.iter().any(|one| one.as_raw() == signal)
}

fn resource(text: &str) -> Result<Resource, String> {
    Resource::parse(text).map_err(|error| error.to_string())
}

fn completion_key(text: &str) -> Result<CompletionKey, String> {
    CompletionKey::parse(text).map_err(|error| error.to_string())
}

fn owner(text: &str) -> Result<String, String> {
    if (1..=OWNER_ID_MAX_BYTES).contains(&text.len()) && is_printable(text) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "use 1 to {OWNER_ID_MAX_BYTES} bytes of printable text"
    ))
}

/// Parses seconds, or a time with units such as `90s`, `5m` or `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    const WRITE: &str = "write seconds, or a time with units such as 90s, 5m or 1h30m";
    let duration = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let time: jiff::SignedDuration = text.parse().map_err(|_| WRITE.to_owned())?;
        time.try_into().map_err(|_negative| WRITE.to_owned())?
    };
    if duration.is_zero() {
        return Err("use more than 0".into());
    }
    Ok(duration)
}

/// Below it, SIGKILL could come too late on a busy machine.
fn grace(text: &str) -> Result<Duration, String> {
    let grace = duration(text)?;
    if grace < Duration::from_millis(500) {
        return Err("use at least 500ms".into());
    }
    Ok(grace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_in_seconds_or_has_units() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        for bad in ["", "0", "-1", "-5s", "soon", "1.5"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}

//! The server of a data directory that execs share (`local`): the agent of `leasehold dev`, on a socket.
//!
//! It outlives the exec that started it, and must not disturb what that one leaves. So it keeps no
//! terminal, no working directory, no pipe that others read to its end, and no file that others lock.

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nix::sys::signal::SigSet;
use nix::unistd::close;
use rustix::process::setsid;
use rustix::stdio::{dup2_stderr, dup2_stdout};
use tokio::task::spawn_blocking;

use super::agent::{Serving, Settings};
use super::local;
use crate::agent::OnTerm;
use crate::cli::serve::block_on;
use crate::cli::unix_socket::{self, Socket};
use crate::cli::{dev, file_limit, log, output};
use crate::shutdown;
use crate::store::embedded::{self, OpenError};

/// The log, beside the store.
const LOG: &str = "log";
/// A longer log is emptied at the start of a server.
const LOG_MAX_BYTES: u64 = 1024 * 1024;

/// The flags.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[arg(long)]
    data_dir: PathBuf,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    log: log::Args,
}

/// How a start ended, as the server reports it on standard output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StartReport {
    Serves,
    /// Another process has the directory.
    InUse(String),
    Failed(String),
}

impl StartReport {
    pub(super) fn parse(report: &str) -> Option<Self> {
        let (kind, why) = report.split_once('\n')?;
        match kind {
            "serves" => Some(Self::Serves),
            "in use" => Some(Self::InUse(why.to_owned())),
            "failed" => Some(Self::Failed(why.to_owned())),
            _ => None,
        }
    }

    fn of(error: &anyhow::Error) -> Self {
        let why = format!("{error:#}");
        match error.downcast_ref() {
            Some(OpenError::InUse { .. }) => Self::InUse(why),
            _ => Self::Failed(why),
        }
    }

    fn send(&self) {
        let (kind, why) = match self {
            Self::Serves => ("serves", ""),
            Self::InUse(why) => ("in use", &**why),
            Self::Failed(why) => ("failed", &**why),
        };
        // The exec that started it may have been killed. Others may have found this server since.
        let _unread = output::print(&format!("{kind}\n{why}"));
    }
}

/// Serves until no exec uses the directory.
pub(in crate::cli) fn run(args: &Args) -> anyhow::Result<()> {
    // Until the store is closed, so that the next server can open it.
    let _alone = detach()
        .and_then(|()| block_on(serve(args)))
        .inspect_err(|error| StartReport::of(error).send())?;
    Ok(())
}

/// Leaves what the exec that started it has: open files, the terminal, and signals that it blocked.
fn detach() -> anyhow::Result<()> {
    close_inherited().context("inherited files cannot be closed")?;
    setsid().context("this role is for `leasehold exec` itself")?;
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Closes what the exec that started it had open, but for the standard streams.
fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let open: Vec<_> = open.collect::<io::Result<_>>()?;
    let open = open.iter().filter_map(|name| name.to_str()?.parse().ok());
    for descriptor in open.filter(|descriptor: &i32| *descriptor > 2) {
        // One of them read the directory, and is closed.
        let _closed_before = close(descriptor);
    }
    Ok(())
}

/// Returns the lock of the users, which only this server has, unless a signal ended it.
async fn serve(args: &Args) -> anyhow::Result<Option<File>> {
    let signalled = shutdown::on_signal().context("signals cannot be handled")?;
    let directory = &args.data_dir;
    let store = dev::open(directory)?;
    dup2_stderr(log_file(&directory.join(LOG)).context("its log")?)?;
    // A thread writes it: a full disk does not end this process.
    let log = args.log.start_in_background(false)?;
    let agent = dev::agent(args.settings.config(dev::new_agent()), store);
    dev::observe_holders(&agent).await;
    let socket = unix_socket::bind(&dev::socket(directory), unix_socket::OWN_USER).await?;
    let users = local::users(directory)?;
    env::set_current_dir("/")?;
    file_limit::raise();
    tracing::info!(directory = %directory.display(), "exec server starting");
    StartReport::Serves.send();
    // The exec that started it reads to the end.
    dup2_stdout(File::open("/dev/null")?)?;

    let Socket { listener, file } = socket;
    let mut serving = Serving::start(&agent, listener);
    // It waits for all users. A thread may wait: this process ends without it.
    let alone = spawn_blocking(move || users.lock().map(|()| users));
    let unused = async {
        tokio::select! {
            alone = alone => Ok(Some(alone??)),
            () = signalled.cancelled() => anyhow::Ok(None),
        }
    };
    let alone = serving.during(unused).await??;
    if alone.is_some() {
        // The connections of execs that were killed end first, and so do their leases.
        serving.stop().await;
        agent.shut_down(OnTerm::ReleaseNow).await;
    } else {
        serving.during(agent.shut_down(OnTerm::Wait)).await?;
    }
    drop(file);
    tracing::info!("stopped");
    drop(log);
    Ok(alone)
}

/// Opens the log, for this user alone, and empties it if it is long.
fn log_file(path: &Path) -> io::Result<File> {
    let file = embedded::private().append(true).open(path)?;
    if file.metadata()?.len() > LOG_MAX_BYTES {
        file.set_len(0)?;
    }
    Ok(file)
}

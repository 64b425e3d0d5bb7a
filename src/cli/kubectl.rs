//! `kubectl leasehold`: shows locks, says why a pod waits, and ends grants. A plugin of kubectl, with its flags and
//! manners: data on standard output, everything else on standard error, exit code 1 after any error.
//!
//! Each command reads what it needs, has `crate::kubectl` make the text, and prints it. It has the rights of the user,
//! and reads only, apart from `release`, `hold`, `fence-object` and the page's buttons.

mod api;
mod check;
mod complete;
mod describe;
mod failure;
mod fence_object;
mod fetch;
mod flags;
mod follow;
#[cfg(target_os = "linux")]
mod hold;
mod inject;
mod kinds;
mod list;
mod lock_name;
mod manual;
mod release;
mod rights;
mod sessions;
mod show;
mod terminal;
mod ui;
mod wait;
mod why;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use api::Api;
use failure::Failure;
use flags::ClusterFlags;

/// The exit code of a program that SIGPIPE ended, as kubectl's own.
const CLOSED: u8 = 141;

/// Shows the locks of Leasehold, says why a pod waits for one, and ends grants.
///
/// LOCK is the name of a lock object, or the resource that it guards. Times with ~ come from the clock of a node; all
/// others from the clock of the API server.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-leasehold",
    bin_name = "kubectl leasehold",
    version,
    max_term_width = 100
)]
struct Plugin {
    #[command(flatten)]
    cluster: ClusterFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists locks, with their holders and whether these live.
    #[command(after_help = rights::READ)]
    List(list::Args),
    /// Says why a pod waits for a lock: the chain of holders, what each does, and a possible deadlock.
    #[command(after_help = rights::READ_PODS)]
    Why(why::Args),
    /// Describes a lock in words: its holder, its queue, what happened to it, and what would free it.
    #[command(after_help = rights::READ_PODS)]
    Describe(describe::DescribeArgs),
    /// Shows what happened to a lock: its incidents and Events.
    #[command(after_help = rights::READ_EVENTS)]
    History(describe::HistoryArgs),
    /// Waits until a lock is free or held.
    #[command(after_help = rights::WAIT)]
    Wait(wait::Args),
    /// Asks the holder to release a lock, or ends its grant (--force), on the record.
    #[command(after_help = rights::RELEASE)]
    Release(release::Args),
    /// Lists sessions: the agents, whether they live, and how many locks each holds and waits for.
    #[command(after_help = rights::READ)]
    Sessions(sessions::Args),
    /// Lists elections and their leaders.
    #[command(after_help = rights::READ)]
    Elections(sessions::Args),
    /// Lists the held locks with the longest queues, then those that are held longest.
    #[command(after_help = rights::READ)]
    Top(sessions::TopArgs),
    /// Shows which pod holds and waits for which locks.
    #[command(after_help = rights::READ)]
    Tree(sessions::TreeArgs),
    /// Serves a page on 127.0.0.1 that shows all this live, for a browser of this machine.
    #[command(after_help = rights::PAGE)]
    Ui(ui::Args),
    #[cfg(target_os = "linux")]
    /// Runs a command while you hold a lock, as `leasehold exec`: to keep a job from running meanwhile.
    #[command(after_help = rights::HOLD)]
    Hold(hold::Args),
    /// Has the API server refuse writes to an object whose fencing token is older than the lock's newest grant.
    #[command(after_help = rights::FENCE)]
    FenceObject(fence_object::Args),
    /// Checks the installation, and says how to fix what is wrong.
    #[command(long_about = check::LONG_ABOUT)]
    Check(check::Args),
    /// Prints what the injecting webhook would do to the pods of a manifest, without a cluster.
    #[command(after_help = rights::NONE)]
    Inject(inject::Args),
    /// Shows the versions of the plugin, the operator and the agents.
    #[command(after_help = rights::VERSION)]
    Version(sessions::VersionArgs),
    /// Writes the manual pages into a directory, for a package.
    #[command(hide = true)]
    Manual(manual::Args),
}

/// Runs the plugin.
#[must_use]
pub fn run() -> ExitCode {
    let program = program();
    if program.starts_with("kubectl_complete-") {
        let words = std::env::args_os().skip(1);
        complete::run(
            &words
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>(),
        );
        return ExitCode::SUCCESS;
    }
    // A process of `hold`.
    if program == "leasehold" {
        return super::run();
    }
    let matches = match Plugin::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            if error.use_stderr() {
                // Not by clap itself, which would print control characters of the arguments.
                terminal::complain(error.render().to_string().trim_end());
                return ExitCode::FAILURE;
            }
            // The help or the version: a closed output is no failure of it.
            let _unheard = error.print();
            return ExitCode::SUCCESS;
        }
    };
    let plugin = Plugin::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = terminal::runtime().and_then(|runtime| runtime.block_on(execute(&plugin)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::OutputClosed) => ExitCode::from(CLOSED),
        Err(failure) => {
            terminal::complain(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Returns the name by which this binary was started.
fn program() -> String {
    let program = std::env::args_os().next().map(PathBuf::from);
    let name = program.as_deref().and_then(Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

async fn execute(plugin: &Plugin) -> Result<(), Failure> {
    // Without a cluster.
    match &plugin.command {
        Command::Version(args) if args.client => return sessions::client_version(args),
        Command::Inject(args) => return inject::run(args),
        Command::Manual(args) => return manual::run(Plugin::command(), args),
        _ => {}
    }
    let api = Api::connect(&plugin.cluster).await?;
    match &plugin.command {
        Command::Check(args) => check::run(&api, args).await,
        Command::List(args) => list::run(&api, args).await,
        Command::Why(args) => why::run(&api, args).await,
        Command::Describe(args) => describe::describe(&api, args).await,
        Command::History(args) => describe::history(&api, args).await,
        Command::Wait(args) => wait::run(&api, args).await,
        Command::Release(args) => release::run(&api, args).await,
        Command::Sessions(args) => sessions::sessions(&api, args).await,
        Command::Elections(args) => sessions::elections(&api, args).await,
        Command::Top(args) => sessions::top(&api, args).await,
        Command::Tree(args) => sessions::tree(&api, args).await,
        #[cfg(target_os = "linux")]
        Command::Hold(args) => hold::run(&api, &plugin.cluster, args).await,
        Command::FenceObject(args) => fence_object::run(&api, args).await,
        Command::Ui(args) => ui::run(api, args).await,
        Command::Version(args) => sessions::version(&api, args).await,
        Command::Inject(_) | Command::Manual(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Plugin::command().debug_assert();
    }
}

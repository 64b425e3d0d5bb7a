//! The command line: one composition root for each role, and the only place that joins the agent,
//! the stores and the servers.
//!
//! Exit codes: 0 after a clean stop, 1 after an error, 2 for a wrong command line, 128 plus the
//! signal's number after a second signal; `exec` has its own. After an error, one line on standard error says what to
//! do. An environment variable with an empty value counts as unset.

mod client;
mod cluster;
mod copy;
mod crd;
mod dev;
mod elections;
#[cfg(target_os = "linux")]
mod exec;
mod fence;
mod file_limit;
mod flags;
mod gate;
mod health;
pub mod kubectl;
mod listen;
mod log;
mod operator;
mod output;
mod pod;
mod serve;
mod sidecar;
mod unix_socket;

use std::process::ExitCode;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

/// A lock service for Kubernetes: leases, fencing tokens and a small HTTP API on localhost.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Serves locks to the apps of one pod.
    Sidecar(Box<sidecar::Args>),
    /// Revokes expired sessions, hands over their locks, performs force releases and records incidents,
    /// for a whole cluster.
    Operator(Box<operator::Args>),
    /// Serves locks without a cluster, from a local directory: for evaluation, for tests, and for apps
    /// that share one machine.
    Dev(Box<dev::Args>),
    #[cfg(target_os = "linux")]
    /// Runs a command while it holds a lock, and ends the command before its lease ends.
    Exec(Box<exec::Args>),
    #[cfg(target_os = "linux")]
    /// The second process of exec.
    #[command(hide = true)]
    ExecKeeper(Box<exec::Args>),
    #[cfg(target_os = "linux")]
    /// The third process of exec, if no sidecar is configured.
    #[command(hide = true)]
    ExecAgent(Box<exec::Args>),
    #[cfg(target_os = "linux")]
    /// The server that the execs of a data directory share.
    #[command(hide = true)]
    ExecServer(exec::ServerArgs),
    #[cfg(target_os = "linux")]
    /// The process of exec that becomes the command.
    #[command(hide = true)]
    ExecLaunch(exec::LaunchArgs),
    /// Exits 0 if the sidecar of this container answers: a probe that needs no open port. Takes the
    /// flags and variables of the sidecar.
    Health(health::Args),
    /// Waits until this pod leads an election of its sidecar (`--elect`), then exits 0; for an init
    /// container.
    Gate(gate::Args),
    /// Forwards requests to a service, and refuses those with a stale fencing token.
    Fence(Box<fence::Args>),
    /// Copies this binary, for an init container that gives it to an app's container.
    Copy(copy::Args),
    /// Prints the custom resource definitions, for `kubectl apply --server-side -f -`.
    Crd,
}

/// Runs the command.
#[must_use]
pub fn run() -> ExitCode {
    let matches = without_empty_variables(Cli::command())
        .try_get_matches()
        .unwrap_or_else(|error| exit_with(&error));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.role {
        Role::Sidecar(args) => sidecar::run(&args, or_usage_error(args.agent_config())),
        Role::Operator(args) => operator::run(&args, or_usage_error(args.settings())),
        Role::Dev(args) => dev::run(&args, or_usage_error(args.agent_config())),
        #[cfg(target_os = "linux")]
        Role::Exec(args) => {
            let flags = matches.subcommand().map(|(_, flags)| flags);
            let source = |flag: &str| flags.and_then(|flags| flags.value_source(flag));
            return exec::run(&args, |flag| source(flag) == Some(ValueSource::CommandLine));
        }
        #[cfg(target_os = "linux")]
        Role::ExecKeeper(args) => return exec::keep(&args),
        #[cfg(target_os = "linux")]
        Role::ExecAgent(args) => return exec::serve(&args),
        #[cfg(target_os = "linux")]
        Role::ExecServer(args) => exec::serve_directory(&args),
        #[cfg(target_os = "linux")]
        Role::ExecLaunch(args) => return exec::launch(&args),
        Role::Health(args) => health::run(&or_usage_error(args.servers())),
        Role::Gate(args) => gate::run(&args),
        Role::Fence(args) => fence::run(&args),
        Role::Copy(args) => copy::run(&args),
        Role::Crd => crd::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Prints help or a usage error, and exits. The exit code of `exec` is not one that shells use.
fn exit_with(error: &clap::Error) -> ! {
    #[cfg(target_os = "linux")]
    if error.use_stderr()
        && std::env::args_os()
            .nth(1)
            .is_some_and(|role| role == "exec")
    {
        // Without standard error, only the exit code reports the failure.
        let _unheard = error.print();
        if std::env::args_os().all(|arg| arg != "--") {
            output::error(&anyhow::anyhow!(
                "the command is missing; write it after --"
            ));
        }
        std::process::exit(exec::USAGE.into());
    }
    error.exit()
}

/// Ignores variables with an empty value, as templates leave them. The token floor is an exception:
/// a process without the floor of the others would grant smaller tokens.
fn without_empty_variables(command: Command) -> Command {
    let unset = |arg: Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        if arg.get_id() != "token_floor" && value.is_some_and(|value| value.is_empty()) {
            return arg.env(Resettable::Reset);
        }
        arg
    };
    command.mut_subcommands(|role| role.mut_args(unset))
}

/// Returns the configuration, or exits with a usage error.
fn or_usage_error<T>(config: Result<T, String>) -> T {
    config.unwrap_or_else(|words| {
        Cli::command()
            .error(ErrorKind::ValueValidation, words)
            .exit()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Returns whether the kubelet may set a variable of this name, for some Service of the pod's
    /// namespace.
    fn is_of_a_service(variable: &str) -> bool {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        // NAME_PORT_80_TCP, and with _PROTO, _PORT or _ADDR.
        let of_a_port = variable
            .split_once("_PORT_")
            .is_some_and(|(_, rest)| is_number(rest.split('_').next().unwrap_or_default()));
        variable.ends_with("_PORT")
            || variable.ends_with("_SERVICE_HOST")
            || variable.contains("_SERVICE_PORT_")
            || of_a_port
    }

    #[test]
    fn no_service_can_set_a_variable_of_ours() {
        assert!(is_of_a_service("LEASEHOLD_COMPAT_PORT"));
        assert!(is_of_a_service("LEASEHOLD_PORT_80_TCP_ADDR"));
        let mut variables = 0;
        for role in Cli::command().get_subcommands() {
            for variable in role.get_arguments().filter_map(Arg::get_env) {
                let variable = variable.to_str().unwrap();
                assert!(!is_of_a_service(variable), "{variable}");
                variables += 1;
            }
        }
        assert!(variables > 40, "{variables}");
    }
}

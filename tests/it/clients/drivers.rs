//! The commands of the clients' drivers (clients/README.md). `make clients-built` builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Java's programs are small, and run for seconds.
const FLAGS: [&str; 3] = [
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
];

/// Returns the directory of a language's client.
pub(crate) fn source(language: &str) -> PathBuf {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    clients.join(language)
}

/// Returns what was built for a language.
pub(crate) fn built(language: &str) -> PathBuf {
    let built = std::env::var_os("LEASEHOLD_CLIENTS");
    let built = built.expect("LEASEHOLD_CLIENTS; run `make clients` or `make clients-e2e`");
    Path::new(&built).join(language)
}

pub(crate) fn go() -> Command {
    let mut command = Command::new(built("go").join("driver"));
    // A data race ends it, and so the test.
    command.env("GORACE", "halt_on_error=1");
    command
}

/// `style`: `blocks` or `futures`.
pub(crate) fn java(classes: &[PathBuf], style: &str) -> Command {
    let mut command = java_program(classes, "Driver");
    command.arg(style);
    command
}

/// Returns the command of a program whose classes are found in the directories, the first one first.
pub(crate) fn java_program(classes: &[PathBuf], program: &str) -> Command {
    let path = std::env::join_paths(classes).unwrap();
    let mut command = Command::new("java");
    command.args(FLAGS).arg("-cp").arg(path).arg(program);
    command
}

pub(crate) fn java_classes() -> Vec<PathBuf> {
    vec![built("java").join("programs"), built("java").join("lib/*")]
}

/// `style`: `threads` or `asyncio`.
pub(crate) fn python(style: &str) -> Command {
    let mut command = Command::new(built("python").join("venv/bin/python"));
    let driver = source("python").join("conformance/driver.py");
    command.arg(driver).arg(style);
    command
}

/// `style`: `blocks` or `leases`.
pub(crate) fn rust(style: &str) -> Command {
    let mut command = Command::new(built("rust").join("conformance"));
    command.arg(style);
    command
}

/// `style`: `import` or `require`. `app` has the driver.
pub(crate) fn typescript(app: &Path, style: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(app.join("driver.mjs")).arg(style);
    command
}

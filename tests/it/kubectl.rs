//! `kubectl leasehold` as a process, with a stub of the API server: each command and format, and each failure.
//!
//! A golden file has a command line and all that it prints: standard output, then standard error with `! ` before each
//! line, then the exit code if it is not 0. A watch ends by a signal. `make generate` rewrites the files.

mod failures;
mod fence_object;
mod listing;
mod locks;
mod page;
mod release;
mod stub;
mod terminal;
mod waiting;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::drift::assert_committed;
use crate::messages::retired_in;
use stub::{Setup, Stub};

/// The program under test.
const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-leasehold");

/// A stub, and a kubeconfig for it.
struct Cluster {
    stub: Stub,
    directory: tempfile::TempDir,
}

impl Cluster {
    fn sound() -> Self {
        Self::with(Setup::default())
    }

    fn with(setup: Setup) -> Self {
        let stub = Stub::start(setup);
        let directory = tempfile::tempdir().unwrap();
        let server = format!("http://{}", stub.address);
        std::fs::write(directory.path().join("config"), kubeconfig(&server)).unwrap();
        Self { stub, directory }
    }

    fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("config")
    }

    /// Returns a command of the plugin with these arguments, and nothing else from the environment.
    fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new(PLUGIN);
        command
            .args(arguments)
            .env_clear()
            .env("KUBECONFIG", self.kubeconfig())
            .stdin(Stdio::null());
        command
    }

    /// Runs `kubectl leasehold LINE` and compares everything that it prints with the golden file `name`.
    fn golden(&self, name: &str, line: &str) {
        let output = self.command(&words(line)).output().unwrap();
        self.compare(name, &format!("kubectl leasehold {line}"), &output);
    }

    fn compare(&self, name: &str, line: &str, output: &Output) {
        let printed = |bytes: &[u8]| self.masked(std::str::from_utf8(bytes).expect("UTF-8"));
        let line = line.trim_end().replace('\u{1b}', "\\e");
        let mut text = format!("$ {line}\n{}", printed(&output.stdout));
        if !text.ends_with('\n') {
            text += "\n(no line break at the end)\n";
        }
        for line in printed(&output.stderr).lines() {
            let _ = writeln!(text, "! {line}");
        }
        match output.status.code() {
            Some(0) => {}
            Some(code) => {
                let _ = writeln!(text, "exit {code}");
            }
            None => text += "ended by a signal\n",
        }
        assert!(!text.contains(is_control), "{name}: {text:?}");
        assert_eq!(retired_in(&text), Vec::<String>::new(), "{name}: {text}");
        assert_committed(&format!("tests/golden/kubectl/{name}.txt"), &text);
    }

    /// Replaces what differs between two runs, and between two releases.
    fn masked(&self, text: &str) -> String {
        text.replace(&self.stub.address.port().to_string(), "PORT")
            .replace(&self.directory.path().display().to_string(), "DIRECTORY")
            .replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }
}

fn kubeconfig(server: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: shop\n\
         clusters: [{{name: stub, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: jane, user: {{}}}}]\n\
         contexts:\n\
         - {{name: shop, context: {{cluster: stub, user: jane, namespace: shop}}}}\n\
         - {{name: other, context: {{cluster: stub, user: jane, namespace: other}}}}\n"
    )
}

/// Returns whether a character could control a terminal, or reorder its text.
fn is_control(c: char) -> bool {
    (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c)
}

/// Splits a command line at each space, except between single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            c => words.last_mut().unwrap().push(c),
        }
    }
    if line.is_empty() { Vec::new() } else { words }
}

#[test]
fn every_golden_of_the_plugin_belongs_to_a_test() {
    let tests = [
        include_str!("kubectl/failures.rs"),
        include_str!("kubectl/fence_object.rs"),
        include_str!("kubectl/listing.rs"),
        include_str!("kubectl/locks.rs"),
        include_str!("kubectl/release.rs"),
        include_str!("kubectl/terminal.rs"),
        include_str!("kubectl/waiting.rs"),
    ]
    .concat();
    let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/kubectl");
    for golden in std::fs::read_dir(goldens).unwrap() {
        let path = golden.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_text = path.extension().is_some_and(|extension| extension == "txt");
        assert!(
            !is_text || tests.contains(&format!("\"{name}\"")),
            "no test has {name}"
        );
    }
}

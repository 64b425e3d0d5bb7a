//! Porcupine on a history's files: `tests/porcupine`, a Go program that `make porcupine` builds.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Checks the files of a directory for linearizability, and returns the output.
///
/// # Errors
/// A history that is not linearizable, with a message and a picture beside the files; a check that
/// timed out; a missing checker.
pub(crate) fn check_linearizable(porcupine: &Path, directory: &Path) -> Result<String> {
    let mut command = Command::new(porcupine);
    let picture = directory.join("not-linearizable.html");
    command.arg("-visualize").arg(&picture).arg(directory);
    let output = command
        .output()
        .with_context(|| format!("{}: make porcupine", porcupine.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        let complained = String::from_utf8_lossy(&output.stderr);
        bail!("{said}{complained}");
    }
    Ok(said)
}

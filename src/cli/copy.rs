//! `leasehold copy DIR`: copies this binary, for an init container. The image has no shell and no `cp`.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// The mode of the copy: every user may execute it, and only its owner may replace it.
const MODE: u32 = 0o755;

/// The flags.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The directory for the copy, which is named `leasehold`. An older copy is replaced.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Copies the binary. A process that executes the old file is not disturbed, and none sees a part of the
/// new one.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("the path of this binary is unknown")?;
    let copied = copy(&binary, &args.directory);
    copied.with_context(|| {
        format!(
            "cannot copy this binary to {}; give a directory that this user can write to, such as a \
             mounted emptyDir",
            args.directory.display()
        )
    })
}

fn copy(binary: &Path, directory: &Path) -> io::Result<()> {
    let part = directory.join(format!(".leasehold-{:016x}", fastrand::u64(..)));
    let copied = File::open(binary)
        .and_then(|mut binary| io::copy(&mut binary, &mut File::create_new(&part)?))
        .and_then(|_bytes| fs::set_permissions(&part, Permissions::from_mode(MODE)))
        .and_then(|()| fs::rename(&part, directory.join("leasehold")));
    if copied.is_err() {
        // The disk may be full.
        let _removed = fs::remove_file(&part);
    }
    copied
}

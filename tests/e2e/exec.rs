//! `leasehold exec` on a real API server: when its command runs, and that it ends before its lease.

mod alone;
mod deaf;
mod fencing;
mod jobs;
mod left_behind;
mod pipeline;
mod register;
mod slots;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::harness::{Exec, Sidecar, TakeOver, now, own_file};
use crate::support::{BINARY, Pair, until_free, until_queued};

/// The lock of these tests.
const LOCK: &str = "job";

/// Starts an exec of a shell script under [`LOCK`].
fn exec(sidecar: &Sidecar, flags: &[&str], script: &str) -> Result<Exec> {
    Exec::start(
        BINARY,
        sidecar,
        &[&["--lock", LOCK], flags].concat(),
        script,
    )
}

/// A script that prints its token, and runs until a file exists.
fn runs_until(file: &Path) -> String {
    let file = file.display();
    format!(r#"echo "token $LEASEHOLD_TOKEN"; until [ -e {file} ]; do sleep 0.05; done"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn held_lock_is_waited_for_skipped_or_an_error() -> Result<()> {
    const HELD: i32 = 200;
    const PRINTS: &str = r#"echo "token $LEASEHOLD_TOKEN""#;

    let Pair { namespace, a, b } = Pair::start("exec-held", TakeOver::Peer, 60).await?;
    let done = own_file("done")?;
    let holder = exec(&a, &["--owner", "first"], &runs_until(&done))?;
    let token: u64 = holder.until_printed("token").await?.parse()?;

    let flags: [(&[&str], i32); 3] = [
        (&["--if-held", "skip"], 0),
        (&["--if-held", "fail"], HELD),
        (&["--wait-timeout", "1"], HELD),
    ];
    for (flags, code) in flags {
        let started = now();
        let second = exec(&b, flags, PRINTS)?;
        second.ends_with(code).await?;
        ensure!(second.printed("token").is_none(), "{}", second.log());
        let waits = flags[0] == "--wait-timeout";
        let took = now().since(started);
        ensure!(!waits || took >= Duration::from_secs(1), "{took:?}");
        until_queued(&namespace, LOCK, 0).await?;
    }

    let waiting = exec(&b, &[], PRINTS)?;
    until_queued(&namespace, LOCK, 1).await?;
    waiting.until_logged("first").await?;
    ensure!(waiting.printed("token").is_none(), "{}", waiting.log());
    ensure!(!holder.is_over()?, "{}", holder.log());
    std::fs::write(done, "")?;
    holder.ends_with(0).await?;
    waiting.ends_with(0).await?;
    let next: u64 = waiting.until_printed("token").await?.parse()?;
    ensure!(next > token, "{next} after {token}");
    until_free(&namespace, LOCK).await?;
    until_queued(&namespace, LOCK, 0).await?;
    Ok(())
}

//! What a command leaves behind: it ends before the lock is free.

use anyhow::{Context, Result, ensure};

use super::exec;
use crate::harness::{TakeOver, is_dead};
use crate::support::{Pair, until_free, until_queued};

/// Starts children in the background, prints their process ids and exits: one in its own group, one
/// in a session of its own, and one there that ignores SIGTERM.
const LEAVES_CHILDREN: &str = r#"
sleep 1000 & one=$!
setsid sleep 1000 & two=$!
(trap "" TERM; exec setsid sh -c 'while :; do sleep 1; done') & three=$!
echo "children $one $two $three"
until [ -e GO ]; do sleep 0.05; done
exit 7"#;

#[tokio::test(flavor = "multi_thread")]
async fn forked_children_do_not_outlive_the_command() -> Result<()> {
    let Pair { namespace, a, b } = Pair::start("exec-forks", TakeOver::Peer, 15).await?;
    let go = crate::harness::own_file("go")?;
    let script = LEAVES_CHILDREN.replace("GO", &go.display().to_string());
    let first = exec(&a, &[], &script)?;
    let children = first.until_printed("children").await?;
    let pids: Vec<i32> = children
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    ensure!(
        pids.len() == 3 && !pids.iter().any(|pid| is_dead(*pid)),
        "{pids:?}"
    );

    // The next holder runs as soon as the lock is free. A zombie is found by `kill -0`, too.
    let script = format!(
        "for pid in {children}; do kill -0 $pid 2>/dev/null && echo \"alive $pid\"; done; echo \"ran \""
    );
    let second = exec(&b, &[], &script)?;
    until_queued(&namespace, super::LOCK, 1).await?;
    std::fs::write(go, "")?;
    second.ends_with(0).await?;
    second.printed("ran").context("the second command runs")?;
    ensure!(second.printed("alive").is_none(), "{}", second.log());
    // The exit code is the command's own.
    first.ends_with(7).await?;
    ensure!(pids.iter().all(|pid| is_dead(*pid)), "{pids:?}");
    until_free(&namespace, super::LOCK).await?;
    Ok(())
}

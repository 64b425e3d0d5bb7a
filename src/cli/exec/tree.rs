//! The processes that a command has started, found by their parents in /proc.
//!
//! A process group is not enough: a child can leave it (`setsid`, a shell with job control). The
//! processes of `exec` are subreapers, so a process whose parent has ended becomes their child. So
//! every process that the command started is a descendant of them, as long as they live.

use std::collections::HashMap;
use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Sends SIGKILL to a process group.
pub(super) fn kill_group(group: Pid) {
    // A group without a process is no error.
    let _ended = kill_process_group(group, Signal::KILL);
}

/// Sends SIGKILL to all running descendants of a process but `spared`, which may be one of them.
/// Returns how many got it.
///
/// A process that is created meanwhile may be missed: call it until it returns 0.
pub(super) fn kill(root: Pid, spared: Option<Pid>) -> io::Result<usize> {
    send(root, spared, Signal::KILL)
}

/// Sends SIGTERM to all running descendants of a process. A stopped process acts on it, too.
pub(super) fn terminate(root: Pid) -> io::Result<()> {
    send(root, None, Signal::TERM)?;
    send(root, None, Signal::CONT)?;
    Ok(())
}

fn send(root: Pid, spared: Option<Pid>, signal: Signal) -> io::Result<usize> {
    let mut count = 0;
    for pid in descendants(root)? {
        if Some(pid) == spared {
            continue;
        }
        match kill_process(pid, signal) {
            Ok(()) => count += 1,
            Err(Errno::SRCH) => {}
            // A program that changes its user (setuid) cannot be signalled.
            Err(error) => {
                tracing::warn!(pid = pid.as_raw_nonzero().get(), %error, "process not signalled");
            }
        }
    }
    Ok(count)
}

/// Returns the running descendants of a process, without zombies.
fn descendants(root: Pid) -> io::Result<Vec<Pid>> {
    let mut children: HashMap<Pid, Vec<(Pid, bool)>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        // A process may have ended since.
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else {
            continue;
        };
        if let Some((parent, runs)) = parse(&stat) {
            children.entry(parent).or_default().push((pid, runs));
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, runs) in children.remove(&parent).unwrap_or_default() {
            if runs {
                found.push(pid);
            }
            parents.push(pid);
        }
    }
    Ok(found)
}

/// Returns the parent, and whether the process runs. The name, in parentheses, may contain anything
/// (proc(5)).
fn parse(stat: &str) -> Option<(Pid, bool)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let runs = !matches!(fields.next()?, "Z" | "X");
    let parent = Pid::from_raw(fields.next()?.parse().ok()?)?;
    Some((parent, runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_and_state_are_behind_the_name() {
        let of = |parent: i32| Pid::from_raw(parent).unwrap();
        assert_eq!(parse("7 (a) b) S 3 7 7"), Some((of(3), true)));
        assert_eq!(parse("7 (sh) Z 3 7 7"), Some((of(3), false)));
        assert_eq!(parse("7 (sh"), None);
    }

    #[test]
    fn grandchild_is_a_descendant() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & echo started; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).unwrap();
        let pid = Pid::from_child(&child);
        assert_eq!(kill(pid, None).unwrap(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

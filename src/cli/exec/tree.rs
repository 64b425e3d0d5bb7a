//! The processes that a command has started, found by their parents in /proc.
//!
//! A process group is not enough: a child can leave it (`setsid`, a shell with job control). The
//! processes of `exec` are subreapers, so a process whose parent has ended becomes their child. So
//! every process that the command started is a descendant of them, as long as they live.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;

// Unlike rustix's, these accept ids of 0: of a parent or a group outside of this PID namespace.
use nix::unistd::{Pid as RawPid, getpgid, getpgrp, getppid};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

/// A process, as /proc shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    /// 0 if it is outside of this PID namespace.
    group: i32,
    /// Whether it, or one of its threads, runs.
    runs: bool,
}

/// Sends SIGKILL to a process group.
pub(super) fn kill_group(group: Pid) {
    // A group without a process is not an error.
    let _ended = kill_process_group(group, Signal::KILL);
}

/// Sends SIGKILL to all descendants of this process, except `spared` children and theirs. Returns how
/// many run.
///
/// A process that is created meanwhile, or whose parent ends meanwhile, may be missed: call it until
/// it has returned 0 twice. Their groups are killed, too: no process that forks evades that.
pub(super) fn kill(spared: &[Pid]) -> io::Result<usize> {
    let found = descendants(spared)?;
    // In a terminal the command is in the group of the front.
    let ours = [getpgrp()].into_iter().chain(getpgid(Some(getppid())).ok());
    // What a credential plugin leaves running is in the group of the agent.
    let spared = spared.iter().map(|pid| RawPid::from_raw(pid.as_raw_pid()));
    let ours = ours.chain(spared.filter_map(|pid| getpgid(Some(pid)).ok()));
    let ours: BTreeSet<_> = ours.map(RawPid::as_raw).collect();
    let groups: BTreeSet<_> = found.iter().map(|process| process.group).collect();
    for group in groups.difference(&ours).copied().filter_map(Pid::from_raw) {
        kill_group(group);
    }
    Ok(send(&found, Signal::KILL))
}

/// Sends SIGTERM to all descendants of this process. A stopped process acts on it, too.
pub(super) fn terminate() -> io::Result<()> {
    let found = descendants(&[])?;
    send(&found, Signal::TERM);
    send(&found, Signal::CONT);
    Ok(())
}

/// Sends a signal to processes. Returns how many run.
fn send(processes: &[Process], signal: Signal) -> usize {
    let is_there = |process: &&Process| {
        // A program that changes its user (setuid) cannot be signalled. It runs nevertheless.
        let sent = kill_process(process.pid, signal);
        process.runs && sent != Err(Errno::SRCH)
    };
    processes.iter().filter(is_there).count()
}

/// Returns the children of this process.
pub(super) fn children() -> io::Result<Vec<Pid>> {
    let children = children_by_parent()?.remove(&getpid()).unwrap_or_default();
    Ok(children.into_iter().map(|child| child.pid).collect())
}

/// Returns the descendants of this process.
fn descendants(spared: &[Pid]) -> io::Result<Vec<Process>> {
    let mut children = children_by_parent()?;
    let mut found = Vec::new();
    let mut parents = vec![getpid()];
    while let Some(parent) = parents.pop() {
        let children = children.remove(&parent).unwrap_or_default();
        let children = children.into_iter();
        for child in children.filter(|child| !spared.contains(&child.pid)) {
            found.push(child);
            parents.push(child.pid);
        }
    }
    Ok(found)
}

/// Returns the processes of the system by their parents.
fn children_by_parent() -> io::Result<HashMap<Pid, Vec<Process>>> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // A process may have ended since. Its name need not be UTF-8.
        let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else {
            continue;
        };
        if let Some((parent, process)) = parse(pid, &String::from_utf8_lossy(&stat)) {
            children.entry(parent).or_default().push(process);
        }
    }
    Ok(children)
}

/// Returns a process and its parent. The name, in parentheses, may contain anything (proc(5)).
fn parse(pid: Pid, stat: &str) -> Option<(Pid, Process)> {
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    // A process whose first thread has ended is shown as a zombie while the others run.
    let is_zombie = matches!(*fields.first()?, "Z" | "X") && number(17) <= Some(1);
    let process = Process {
        pid,
        group: number(2)?,
        runs: !is_zombie,
    };
    Some((Pid::from_raw(number(1)?)?, process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_group_and_state_are_behind_the_name() {
        let pid = |pid: i32| Pid::from_raw(pid).unwrap();
        let parsed = |stat: &str| {
            let (parent, process) = parse(pid(7), stat)?;
            Some((parent, process.group, process.runs))
        };
        let rest = "0 0 0 0 0 0 0 0 0 0 0 0 0 0";
        let runs = format!("7 (a) b) S 3 5 {rest} 1");
        assert_eq!(parsed(&runs), Some((pid(3), 5, true)));
        let zombie = format!("7 (sh) Z 3 5 {rest} 1");
        assert_eq!(parsed(&zombie), Some((pid(3), 5, false)));
        let threads_run = format!("7 (sh) Z 3 5 {rest} 2");
        assert_eq!(parsed(&threads_run), Some((pid(3), 5, true)));
        assert_eq!(parsed("7 (sh"), None);
    }

    #[test]
    fn own_process_is_a_child_of_its_parent() {
        let processes = children_by_parent().unwrap();
        let siblings = &processes[&rustix::process::getppid().unwrap()];
        assert!(siblings.iter().any(|one| one.pid == getpid() && one.runs));
    }
}

//! A round of client-go's leader election (`bench/leaderelection`): the leader is behind a proxy,
//! and the other candidates are not.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::harness::{
    Class, Fault, Namespace, Process, Proxy, directory, eventually, target_directory,
};
use crate::history::{History, Op};
use crate::{LIMIT, Luck, kept_in};

/// The number of other candidates.
const CANDIDATES: usize = 8;

/// Runs from the beginning of one lead until another candidate leads and the first lead has ended.
pub(crate) async fn round(namespace: &Namespace, name: String, luck: Luck) -> Result<History> {
    let kept = kept_in(&name)?;
    let proxy = Proxy::start(&namespace.cluster).await?;
    let election = Election {
        namespace,
        lease: &name,
        luck,
        kept: &kept,
    };
    let _leader = election.join("leader", Some(&proxy), 1)?;
    until(&kept, "the leader to lead", |history| led(history) == 1).await?;
    let others = election.join("other", None, CANDIDATES)?;
    eventually("all to know the leader", LIMIT, async || {
        let known = others.log().matches("knows leader").count();
        (known == CANDIDATES).then_some(())
    })
    .await?;
    proxy.fail(Class::Other, 1, Fault::AnswerLate(luck.answer_late));
    proxy.fail(Class::Other, usize::MAX, Fault::RequestLost);
    until(
        &kept,
        "another to lead, and the leader to stop",
        |history| {
            led(history) == 2
                && history
                    .events
                    .iter()
                    .any(|event| matches!(event.op, Op::BelievesEnd { .. }))
        },
    )
    .await
}

struct Election<'a> {
    namespace: &'a Namespace,
    lease: &'a str,
    luck: Luck,
    kept: &'a Path,
}

impl Election<'_> {
    fn join(&self, identity: &str, behind: Option<&Proxy>, candidates: usize) -> Result<Process> {
        let binary = target_directory().join("bench/leaderelection");
        ensure!(binary.exists(), "{}: make bench-peers", binary.display());
        let mut command = Command::new(binary);
        let timeout = format!("{}ms", self.luck.request_timeout.as_millis());
        let candidates = candidates.to_string();
        command
            .arg("--kubeconfig")
            .arg(&self.namespace.cluster.control_plane().admin().path)
            .args(["--server", behind.map_or("", |proxy| &proxy.url)])
            .args(["--namespace", &self.namespace.name, "--lease", self.lease])
            .args(["--identity", identity, "--timeout", &timeout])
            .args(["--release-on-cancel=false", "--candidates", &candidates])
            .arg("--history")
            .arg(self.kept.join(format!("{identity}.jsonl")));
        let log = directory()?.join(format!("{}-{identity}.log", self.lease));
        Process::spawn(identity, &mut command, &log)
    }
}

/// Returns how many candidates have led.
fn led(history: &History) -> usize {
    let granted = |op: &Op| matches!(op, Op::Acquire { lease: Some(_), .. });
    let events = history.events.iter();
    events.filter(|event| granted(&event.op)).count()
}

async fn until(kept: &Path, what: &str, is_so: impl Fn(&History) -> bool) -> Result<History> {
    let history = eventually(what, LIMIT, async || {
        let history = History::read_directory(kept).ok()?;
        is_so(&history).then_some(history)
    });
    history.await.with_context(|| kept.display().to_string())
}

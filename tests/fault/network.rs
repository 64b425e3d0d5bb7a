//! A network of a pod's own, where root is: a namespace with one wire to this machine, which can be pulled. What is
//! sent meanwhile is repeated by TCP and arrives late, as it does behind a real partition.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::{Process, eventually};

/// This machine's end of the wire.
pub(crate) struct Network {
    wire: String,
    /// This machine's address on the wire.
    pub(crate) host: String,
    /// The namespace and the wire live as long as this does.
    holder: Process,
}

impl Network {
    /// One of its own for a pod; none without root.
    pub(crate) async fn new(logs: &Path) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let holder = Process::spawn("a network", &mut command, &logs.join("network.log"))?;
        let id = holder.id();
        let own = std::fs::read_link("/proc/self/ns/net")?;
        eventually(
            "a network of its own",
            Duration::from_secs(10),
            async || {
                let its = std::fs::read_link(format!("/proc/{id}/ns/net")).ok()?;
                (its != own).then_some(())
            },
        )
        .await?;
        // 64 of 10.213.0.0/16 for each of 256: runs beside each other seldom meet, and then one fails here.
        let net = format!("10.213.{}.{}", id / 64 % 256, id % 64 * 4);
        let (prefix, last) = net.rsplit_once('.').unwrap_or_default();
        let last: u32 = last.parse()?;
        let (host, pod) = (
            format!("{prefix}.{}", last + 1),
            format!("{prefix}.{}", last + 2),
        );
        let wire = format!("lhf{id}");
        let inside = format!("nsenter --target {id} --net ip");
        for line in [
            format!("ip link add {wire} type veth peer name eth0 netns {id}"),
            format!("ip address add {host}/30 dev {wire}"),
            format!("ip link set {wire} up"),
            format!("{inside} address add {pod}/30 dev eth0"),
            format!("{inside} link set eth0 up"),
            format!("{inside} link set lo up"),
        ] {
            run(&line)?;
        }
        Ok(Some(Self { wire, host, holder }))
    }

    /// What starts a process in it.
    pub(crate) fn through(&self) -> Vec<String> {
        let id = self.holder.id().to_string();
        ["nsenter", "--target", &id, "--net"]
            .map(str::to_owned)
            .to_vec()
    }

    /// How often something was sent in vain so far, and again.
    pub(crate) fn sent_again(&self) -> Result<usize> {
        let counts = std::fs::read_to_string(format!("/proc/{}/net/snmp", self.holder.id()))?;
        let mut lines = counts.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next(), lines.next());
        let (names, values) = (names.context("names")?, values.context("values")?);
        let mut counts = names.split(' ').zip(values.split(' '));
        let sent_again = counts.find(|(name, _)| *name == "RetransSegs");
        Ok(sent_again.context("RetransSegs")?.1.parse()?)
    }

    /// Pulls the wire, or plugs it in.
    pub(crate) fn plug(&self, is_in: bool) -> Result<()> {
        let how = if is_in { "up" } else { "down" };
        run(&format!("ip link set {} {how}", self.wire))
    }
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {said}");
    Ok(())
}

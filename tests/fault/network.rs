//! A network namespace for a pod, if the test runs as root. One link connects it to this machine
//! and can be cut. TCP retransmits what was sent in the meantime, so it arrives late, as after a
//! real partition.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::harness::{Process, eventually};

/// The number of /30 subnets in 10.213.0.0/16.
const NETS: u32 = 1 << 14;
/// The number of subnets that concurrent runs may use.
const TRIES: u32 = 8;

/// This machine's end of the link.
pub(crate) struct Network {
    wire: String,
    /// This machine's address on the link.
    pub(crate) host: String,
    /// The process that keeps the namespace and the link alive.
    holder: Process,
}

impl Network {
    /// Creates the network of a pod, or returns `None` without root.
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
        let number = make_wire(u32::try_from(id)?)?;
        let wire = format!("lhf{number}");
        // Each third octet covers 64 of the subnets.
        let net = format!("10.213.{}", number / 64);
        let last = number % 64 * 4;
        let (host, pod) = (format!("{net}.{}", last + 1), format!("{net}.{}", last + 2));
        let inside = format!("nsenter --target {id} --net ip");
        for line in [
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

    /// Returns the command prefix that starts a process in this network.
    pub(crate) fn through(&self) -> Vec<String> {
        let id = self.holder.id().to_string();
        ["nsenter", "--target", &id, "--net"]
            .map(str::to_owned)
            .to_vec()
    }

    /// The number of retransmissions so far.
    pub(crate) fn sent_again(&self) -> Result<usize> {
        let counts = std::fs::read_to_string(format!("/proc/{}/net/snmp", self.holder.id()))?;
        let mut lines = counts.lines().filter(|line| line.starts_with("Tcp:"));
        let (names, values) = (lines.next(), lines.next());
        let (names, values) = (names.context("names")?, values.context("values")?);
        let mut counts = names.split(' ').zip(values.split(' '));
        let sent_again = counts.find(|(name, _)| *name == "RetransSegs");
        Ok(sent_again.context("RetransSegs")?.1.parse()?)
    }

    /// Cuts the link, or restores it.
    pub(crate) fn plug(&self, is_in: bool) -> Result<()> {
        let how = if is_in { "up" } else { "down" };
        run(&format!("ip link set {} {how}", self.wire))
    }
}

/// Creates the link. Its name and its addresses are unique on this machine: a concurrent run has
/// another number.
fn make_wire(id: u32) -> Result<u32> {
    let mut last = None;
    for tried in 0..TRIES {
        let number = (id + tried) % NETS;
        let made = run(&format!(
            "ip link add lhf{number} type veth peer name eth0 netns {id}"
        ));
        match made {
            Ok(()) => return Ok(number),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no wire was tried")?)
}

fn run(line: &str) -> Result<()> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{line}: {said}");
    Ok(())
}

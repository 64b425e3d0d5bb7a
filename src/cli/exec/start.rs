//! What the keeper needs from the first process.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use anyhow::Context as _;

use super::alarm::Alarm;
use super::link::{Link, Message};

/// What the first process sends at the start.
pub(super) struct Start {
    pub(super) link: Link,
    /// The agent of this exec, if it has one.
    pub(super) agent: Option<Link>,
    /// A share in the server of a data directory, if it has that. The server stays until this is dropped.
    pub(super) users: Option<OwnedFd>,
    pub(super) stdin: Stdio,
    pub(super) backstop: Alarm,
}

impl Start {
    /// Waits for all of it.
    pub(super) fn receive(link: Link) -> anyhow::Result<Self> {
        let (mut stdin, mut agent, mut users) = (None, None, None);
        let backstop = loop {
            match link.wait().context("the link is broken")? {
                Some(Message::Stdin(descriptor)) => stdin = Some(descriptor),
                Some(Message::Agent(descriptor)) => agent = Some(Link::of(descriptor)),
                Some(Message::Users(descriptor)) => users = Some(descriptor),
                Some(Message::Backstop(descriptor)) => break descriptor,
                _ => anyhow::bail!("the first process has ended"),
            }
        };
        Ok(Self {
            link,
            agent,
            users,
            stdin: stdin.context("no standard input for the command")?.into(),
            backstop: Alarm::of(backstop),
        })
    }
}

//! The messages between the processes of `leasehold exec`, over a pair of sockets.
//!
//! Each message is one packet: a byte for its kind, then a number, and perhaps a file descriptor.
//! The end of one process is the end of the stream for the other.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::Pid;
use tokio::io::unix::AsyncFd;

/// A kind and a number.
const PACKET: usize = 9;

/// A message. The front sends the first seven, the agent the next two, and the keeper the others.
#[derive(Debug)]
pub(super) enum Message {
    /// The socket for the agent to listen on.
    Listener(OwnedFd),
    /// The link to the agent of this exec.
    Agent(OwnedFd),
    /// The lock of the users of a data directory.
    Users(OwnedFd),
    /// The standard input for the command.
    Stdin(OwnedFd),
    /// The timer that wakes the front if the keeper does not move it.
    Backstop(OwnedFd),
    /// A signal for the command.
    Signal(i32),
    /// A signal that the terminal has also sent to the command.
    TerminalSignal(i32),
    /// The agent serves.
    Ready,
    /// The agent cannot serve. The exit code is this.
    Failed(u8),
    /// The server of the data directory does not answer: start it again.
    ServeAgain,
    /// The command runs.
    Started,
    /// Nothing of the command is left, and its exit code is this.
    Done(u8),
    /// The connection that holds the lock. As long as the front has it, the sidecar does not release.
    Connection(OwnedFd),
}

/// One end of the link.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Returns both ends.
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self(a), Self(b)))
    }

    /// Returns the end that this process was started with, as its standard input. A program that this process
    /// starts does not get it: a second owner would hide the end of this process.
    pub(super) fn inherited() -> io::Result<Self> {
        let link = rustix::stdio::stdin().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        Ok(Self(link))
    }

    /// Returns the end that another process has sent.
    pub(super) fn of(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Returns a descriptor for another process, which then has the same end.
    pub(super) fn share(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Returns the process that created both ends.
    pub(super) fn creator(&self) -> io::Result<Pid> {
        Ok(socket_peercred(&self.0)?.pid)
    }

    /// Returns the socket, for a process that inherits it.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sends a message. If the receiver is stopped until the socket is full, the message is dropped:
    /// the sender never waits.
    pub(super) fn send(&self, message: &Message) -> io::Result<()> {
        let (kind, number, descriptor) = match message {
            Message::Stdin(fd) => (b'i', 0, Some(fd)),
            Message::Signal(signal) => (b's', u64::from(signal.unsigned_abs()), None),
            Message::TerminalSignal(signal) => (b't', u64::from(signal.unsigned_abs()), None),
            Message::Done(code) => (b'd', u64::from(*code), None),
            Message::Failed(code) => (b'f', u64::from(*code), None),
            Message::Started => (b'p', 0, None),
            Message::Ready => (b'r', 0, None),
            Message::ServeAgain => (b'g', 0, None),
            Message::Backstop(fd) => (b'b', 0, Some(fd)),
            Message::Connection(fd) => (b'c', 0, Some(fd)),
            Message::Listener(fd) => (b'l', 0, Some(fd)),
            Message::Agent(fd) => (b'a', 0, Some(fd)),
            Message::Users(fd) => (b'u', 0, Some(fd)),
        };
        let mut packet = [kind; PACKET];
        packet[1..].copy_from_slice(&number.to_be_bytes());
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.0, &[IoSlice::new(&packet)], &mut control, flags) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a message, if one is there; none at the end of the other process.
    ///
    /// # Errors
    /// `WouldBlock` if no message is there.
    pub(super) fn receive(&self) -> io::Result<Option<Message>> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    /// Waits for a message; none at the end of the other process.
    pub(super) fn wait(&self) -> io::Result<Option<Message>> {
        self.receive_with(RecvFlags::empty())
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Option<Message>> {
        let mut packet = [0; PACKET];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut packet)],
            &mut control,
            flags | RecvFlags::CMSG_CLOEXEC,
        );
        let received = match received {
            // The other process was killed with messages unread.
            Err(Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        decode(packet, descriptor)
            .map(Some)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::os::fd::AsRawFd for Link {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

fn decode(packet: [u8; PACKET], descriptor: Option<OwnedFd>) -> Option<Message> {
    let [kind, number @ ..] = packet;
    let number = u64::from_be_bytes(number);
    let small = || i32::try_from(number).ok();
    match kind {
        b'i' => descriptor.map(Message::Stdin),
        b's' => small().map(Message::Signal),
        b't' => small().map(Message::TerminalSignal),
        b'd' => u8::try_from(number).ok().map(Message::Done),
        b'f' => u8::try_from(number).ok().map(Message::Failed),
        b'p' => Some(Message::Started),
        b'r' => Some(Message::Ready),
        b'g' => Some(Message::ServeAgain),
        b'b' => descriptor.map(Message::Backstop),
        b'c' => descriptor.map(Message::Connection),
        b'l' => descriptor.map(Message::Listener),
        b'a' => descriptor.map(Message::Agent),
        b'u' => descriptor.map(Message::Users),
        _ => None,
    }
}

/// Sends a message to the first process. If that has ended, the link's own end reports it.
pub(super) fn tell(link: &AsyncFd<Link>, message: &Message) {
    let _ended = link.get_ref().send(message);
}

/// Registers a descriptor with the runtime.
pub(super) fn registered<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "its replacement is unsafe: the type must not replace its descriptor, and ours do not"
    )]
    AsyncFd::new(descriptor)
}

/// Waits for a message of another process; none if it has ended.
pub(super) async fn receive(link: &AsyncFd<Link>) -> io::Result<Option<Message>> {
    loop {
        let mut ready = link.readable().await?;
        if let Ok(received) = ready.try_io(|link| link.get_ref().receive()) {
            return received;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent() {
        let (front, keeper) = Link::pair().unwrap();
        let (file, _) = Link::pair().unwrap();
        let sent = [
            Message::Signal(15),
            Message::TerminalSignal(2),
            Message::Started,
            Message::Done(7),
        ];
        for message in &sent {
            keeper.send(message).unwrap();
        }
        for message in sent {
            let received = front.receive().unwrap().unwrap();
            assert_eq!(format!("{received:?}"), format!("{message:?}"));
        }
        front.send(&Message::Stdin(file.into_fd())).unwrap();
        assert!(matches!(keeper.wait().unwrap(), Some(Message::Stdin(_))));
        let nothing = keeper.receive().unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        drop(front);
        assert!(keeper.receive().unwrap().is_none());
    }
}

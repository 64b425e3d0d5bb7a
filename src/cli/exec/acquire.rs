//! Waits for the lock, as `--if-held` and `--wait-timeout` say.

use std::cell::RefCell;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use futures::future::select_all;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::hold::{Event, Hold, Holder, Lease, Problem, Queue, Request};
use super::link::{Link, Message, receive, tell};
use super::slots::Slot;
use super::status_line::{StatusLine, Waiting};
use super::{Args, Failure, IfHeld, ends_a_process, exit_code};
use crate::cli::client::{Server, retry_pause};
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::ids::Resource;
use crate::protocol::time::{Moment, SessionTtl};

/// For how long a sidecar that does not answer, or cannot serve yet, is asked again.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(30);
/// How long the agent of this exec may take until it serves: a credential plugin may ask a server.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// How long a sidecar may be silent: longer than a try waits for the proof that a holder has expired (1.05
/// of the longest period), and than the pause between two events (a third).
const SILENCE_MAX: Duration = Duration::from_secs(SessionTtl::LONGEST_PERIOD.as_secs() * 5 / 4);

/// The server of the locks.
pub(super) struct LockServer<'a> {
    pub(super) url: &'a Server,
    /// The link to the agent, if exec has one of its own.
    pub(super) agent: Option<AsyncFd<Link>>,
    /// The data directory, if this exec shares its server.
    pub(super) directory: Option<&'a Path>,
}

impl LockServer<'_> {
    /// Logs which one it is. An agent of this exec does so itself.
    pub(super) fn log(&self, resource: &Resource) {
        if let Some(directory) = self.directory {
            let directory = directory.display();
            tracing::info!(%resource, %directory, "using a data directory");
        } else if self.agent.is_none() {
            tracing::info!(%resource, sidecar = %self.url, "using a sidecar");
        }
    }

    fn no_answer(&self) -> anyhow::Error {
        if let Some(directory) = self.directory {
            return anyhow::anyhow!(
                "no answer from the server of the data directory {} (see the file `log` in it)",
                directory.display()
            );
        }
        if self.agent.is_some() {
            return anyhow::anyhow!(
                "no answer from the API server, or from the credential plugin of the kubeconfig"
            );
        }
        anyhow::anyhow!(
            "no answer from the sidecar or `leasehold dev` at {} (start it, or correct LEASEHOLD_URL)",
            self.url
        )
    }
}

/// A lock that is held.
pub(super) struct Holding {
    pub(super) hold: Hold,
    pub(super) lease: Lease,
    pub(super) slot: Slot,
}

/// What is known while the lock is not acquired.
#[derive(Default)]
pub(super) struct Progress {
    /// Since when the sidecar has this request in its queue.
    waits_since: Option<Moment>,
    holder: Option<Holder>,
    queue: Queue,
    /// Whether a person sees this in a line of the terminal.
    is_shown: bool,
    /// Why the last try failed.
    error: Option<anyhow::Error>,
}

impl Progress {
    /// Records that the request is queued, and logs changes: of several slots only the first.
    fn wait(&mut self, args: &Args, holder: Option<Holder>, queue: Queue) {
        let changes = args.concurrency.is_none() && holder != self.holder;
        if !self.is_shown && (self.waits_since.is_none() || changes) {
            let (owner, pod, since) = described(holder.as_ref());
            tracing::info!(
                resource = %args.lock, ownerId = owner, pod, heldSince = since,
                queueLength = queue.length, position = queue.position,
                "lock held; waiting"
            );
        }
        self.waits_since.get_or_insert_with(|| SystemClock.now());
        (self.holder, self.queue) = (holder, queue);
    }

    /// Returns what a person sees of it, if the request is queued.
    pub(super) fn waiting<'a>(&'a self, lock: &'a str) -> Option<Waiting<'a>> {
        self.waits_since.map(|since| Waiting {
            lock,
            since,
            holder: self.holder.as_ref(),
            queue: self.queue,
        })
    }
}

async fn show(
    status: Option<&mut StatusLine>,
    args: &Args,
    progress: &RefCell<Progress>,
) -> Infallible {
    match status {
        Some(status) => status.show(args.lock.as_str(), progress).await,
        None => std::future::pending().await,
    }
}

/// Acquires the lock. Returns an exit code if it is not acquired, and that is not an error.
pub(super) async fn acquire(
    args: &Args,
    server: &LockServer<'_>,
    link: &AsyncFd<Link>,
    mut status: Option<StatusLine>,
) -> Result<Result<Holding, u8>, Failure> {
    let progress = RefCell::new(Progress {
        is_shown: status.is_some(),
        ..Progress::default()
    });
    let limit = args.wait_timeout.unwrap_or(Duration::MAX);
    let acquired = tokio::select! {
        biased;
        code = until_asked_to_end(link) => return Ok(Err(code?)),
        acquired = timeout(limit, acquire_from(args, server, link, &progress)) => acquired,
        never = show(status.as_mut(), args, &progress) => match never {},
    };
    // Cleared before anything else is logged.
    drop(status);
    let Progress {
        waits_since,
        error,
        holder,
        ..
    } = progress.into_inner();
    match acquired {
        Ok(acquired) => acquired,
        Err(_elapsed) if waits_since.is_none() => {
            Err(error.unwrap_or_else(|| server.no_answer()).into())
        }
        Err(_elapsed) => {
            let (owner, pod, since) = described(holder.as_ref());
            tracing::error!(
                resource = %args.lock, ownerId = owner, pod, heldSince = since,
                "wait timeout; command not run"
            );
            Ok(Err(exit_code::HELD))
        }
    }
}

async fn acquire_from(
    args: &Args,
    server: &LockServer<'_>,
    link: &AsyncFd<Link>,
    progress: &RefCell<Progress>,
) -> Result<Result<Holding, u8>, Failure> {
    let Some(agent) = &server.agent else {
        return retry(args, server, link, progress).await;
    };
    // Validity counts from a request, so none is sent before the agent can answer.
    match timeout(READY_LIMIT, until_ready(agent)).await {
        Ok(Ok(())) => {}
        Ok(Err(code)) => return Ok(Err(code)),
        Err(_elapsed) => return Err(server.no_answer().into()),
    }
    tokio::select! {
        biased;
        ready = until_ready(agent) => Ok(Err(ready.err().unwrap_or(exit_code::UNAVAILABLE))),
        acquired = retry(args, server, link, progress) => acquired,
    }
}

/// Returns the holder's name, its pod, and since when it has the lock, for the log.
fn described(holder: Option<&Holder>) -> (&str, &str, &str) {
    holder.map_or(("", "", ""), |holder| {
        (&*holder.owner_id, &*holder.pod, &*holder.held_since)
    })
}

fn answer_held(args: &Args, holder: Option<&Holder>) -> u8 {
    let (owner, pod, since) = described(holder);
    if args.if_held == IfHeld::Skip {
        tracing::info!(
            resource = %args.lock, ownerId = owner, pod, heldSince = since,
            "lock held; command skipped"
        );
        return 0;
    }
    tracing::error!(
        resource = %args.lock, ownerId = owner, pod, heldSince = since,
        "lock held; command not run"
    );
    exit_code::HELD
}

/// Tries until the lock is acquired or held, or the sidecar has been unavailable for long.
async fn retry(
    args: &Args,
    server: &LockServer<'_>,
    link: &AsyncFd<Link>,
    progress: &RefCell<Progress>,
) -> Result<Result<Holding, u8>, Failure> {
    let mut slots = args.slots()?;
    let mut failing_since = SystemClock.now();
    let mut failures = 0;
    loop {
        let error = match try_slots(args, server.url, &mut slots, progress).await {
            Ok(Ok(holding)) => return Ok(Ok(holding)),
            Ok(Err(problem)) if problem.is_held() => {
                return Ok(Err(answer_held(args, problem.holder.as_ref())));
            }
            Ok(Err(problem)) if !problem.is_transient() => {
                return Err(anyhow::anyhow!(problem.detail).into());
            }
            Ok(Err(problem)) => anyhow::anyhow!(problem.detail),
            Err(error) => {
                if server.directory.is_some() {
                    tell(link, &Message::ServeAgain);
                }
                error.context(server.no_answer().to_string())
            }
        };
        let now = SystemClock.now();
        failures += 1;
        if progress.borrow_mut().waits_since.take().is_some() {
            (failing_since, failures) = (now, 1);
        }
        if now.since(failing_since) >= RETRY_FOR {
            return Err(error.into());
        }
        let text = format!("{error:#}");
        let logged = progress.borrow_mut().error.replace(error);
        if logged.is_none_or(|logged| format!("{logged:#}") != text) {
            tracing::warn!(error = text, "lock not acquired; retrying");
        }
        tokio::time::sleep(retry_pause(failures, fastrand::f64())).await;
    }
}

/// Tries all slots in a random order, then waits for the first that is free, unless `--if-held` says
/// otherwise.
async fn try_slots(
    args: &Args,
    url: &Server,
    slots: &mut [Slot],
    progress: &RefCell<Progress>,
) -> anyhow::Result<Result<Holding, Problem>> {
    let waits = args.if_held == IfHeld::Wait;
    if let [slot] = slots {
        return try_once(args, url, slot, waits, progress).await;
    }
    fastrand::shuffle(slots);
    let mut held = None;
    // One after the other: if this exec got several at once, others would find all of them held.
    for slot in &*slots {
        match try_once(args, url, slot, false, progress).await? {
            Err(problem) if problem.is_held() => held = Some(problem),
            done => return Ok(done),
        }
    }
    if let Some(held) = held.filter(|_| !waits) {
        return Ok(Err(held));
    }
    let all = slots
        .iter()
        .map(|slot| try_once(args, url, slot, true, progress));
    // The other connections close, so their queue entries, and a second grant, end.
    let (first, ..) = select_all(all.map(Box::pin)).await;
    first
}

async fn try_once(
    args: &Args,
    url: &Server,
    slot: &Slot,
    waits: bool,
    progress: &RefCell<Progress>,
) -> anyhow::Result<Result<Holding, Problem>> {
    let program = args.command.first().map(Path::new);
    let name = program
        .and_then(|path| path.file_name())
        .unwrap_or_default();
    let request = Request {
        resource: slot.resource.as_str(),
        owner: args.owner.as_deref(),
        command: &name.to_string_lossy(),
        wait_seconds: (!waits).then_some(0),
    };
    let opened = timeout(SILENCE_MAX, Hold::open(url, &request)).await;
    let mut hold = match opened?? {
        Ok(hold) => hold,
        Err(problem) => return Ok(Err(problem)),
    };
    loop {
        match timeout(SILENCE_MAX, hold.next()).await?? {
            // After a suspension, the lease may be over before it can be used.
            Some(Event::Acquired(lease)) if SystemClock.now() >= lease.deadline => {
                anyhow::bail!("the lease ended before the command was started")
            }
            Some(Event::Acquired(lease)) => {
                let slot = slot.clone();
                return Ok(Ok(Holding { hold, lease, slot }));
            }
            Some(Event::Waiting { holder, queue }) => {
                progress.borrow_mut().wait(args, holder, queue);
            }
            Some(Event::Failed(problem)) => return Ok(Err(problem)),
            Some(_) => {}
            None => anyhow::bail!("the sidecar ended the connection"),
        }
    }
}

/// Waits until the agent of this exec serves. Returns an exit code if it fails, which it has printed, or ends.
async fn until_ready(agent: &AsyncFd<Link>) -> Result<(), u8> {
    loop {
        match receive(agent).await {
            Ok(Some(Message::Ready)) => return Ok(()),
            Ok(Some(Message::Failed(code))) => return Err(code),
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                tracing::error!("agent ended; command not run");
                return Err(exit_code::UNAVAILABLE);
            }
        }
    }
}

/// Waits for a signal that asks this command to end, or for the end of the first process.
async fn until_asked_to_end(link: &AsyncFd<Link>) -> anyhow::Result<u8> {
    loop {
        match receive(link).await? {
            Some(Message::Signal(signal) | Message::TerminalSignal(signal))
                if ends_a_process(signal) =>
            {
                tracing::info!(signal, "ended by a signal; command not run");
                return Ok(exit_code::of_signal(signal));
            }
            Some(_) => {}
            None => return Ok(exit_code::UNAVAILABLE),
        }
    }
}

//! Waits for the lock, as `--if-held` and `--wait-timeout` say.

use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::hold::{Event, Hold, Holder, Lease, Problem, Request};
use super::keeper::receive;
use super::link::{Link, Message};
use super::{Args, Failure, IfHeld, ends_a_process, exit_code};
use crate::cli::client::{Server, retry_pause};
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::time::SessionTtl;

/// For how long a sidecar that does not answer, or cannot serve yet, is asked again.
pub(super) const RETRY_FOR: Duration = Duration::from_secs(30);
/// How long a sidecar may be silent: longer than the proof that a holder has expired, which a try waits
/// for (1.05 session TTLs), and than the pause between two events (a third).
const SILENCE_MAX: Duration = Duration::from_secs(SessionTtl::MAX.as_secs() * 5 / 4);

/// The server of the locks.
pub(super) struct LockServer<'a> {
    pub(super) url: &'a Server,
    /// The link to the agent, if exec has one of its own.
    pub(super) agent: Option<AsyncFd<Link>>,
}

impl LockServer<'_> {
    fn no_answer(&self) -> String {
        if self.agent.is_some() {
            return "no answer from the API server; see the lines above".to_owned();
        }
        format!(
            "no answer from the sidecar at {} (start it, or correct LEASEHOLD_URL)",
            self.url
        )
    }
}

/// A lock that is held.
pub(super) struct Holding {
    pub(super) hold: Hold,
    pub(super) lease: Lease,
}

/// What is known while the lock is not acquired.
#[derive(Default)]
struct Progress {
    /// Whether the sidecar has this request in its queue.
    waits: bool,
    holder: Option<Holder>,
    /// Why the last try failed.
    error: Option<anyhow::Error>,
}

/// Acquires the lock. Returns an exit code if it is not acquired, and that is not an error.
pub(super) async fn acquire(
    args: &Args,
    server: &LockServer<'_>,
    link: &AsyncFd<Link>,
) -> Result<Result<Holding, u8>, Failure> {
    let mut progress = Progress::default();
    let limit = args.wait_timeout.unwrap_or(Duration::MAX);
    let acquired = tokio::select! {
        biased;
        code = until_asked_to_end(link) => return Ok(Err(code?)),
        code = until_failed(server.agent.as_ref()) => return Ok(Err(code)),
        acquired = timeout(limit, retry(args, server, &mut progress)) => acquired,
    };
    match (acquired, progress.error) {
        (Ok(acquired), _) => Ok(acquired?.map_err(|held| answer_held(args, held.holder.as_ref()))),
        (Err(_elapsed), error) if !progress.waits => Err(error
            .unwrap_or_else(|| anyhow::anyhow!(server.no_answer()))
            .into()),
        (Err(_elapsed), _) => {
            tracing::error!(resource = %args.lock, "wait timeout; command not run");
            Ok(Err(exit_code::HELD))
        }
    }
}

fn answer_held(args: &Args, holder: Option<&Holder>) -> u8 {
    let (owner, pod, since) = holder.map_or(("", "", ""), |holder| {
        (&*holder.owner_id, &*holder.pod, &*holder.held_since)
    });
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
    progress: &mut Progress,
) -> Result<Result<Holding, Problem>, Failure> {
    let mut failing_since = SystemClock.now();
    let mut failures = 0;
    loop {
        let error = match try_once(args, server.url, progress).await {
            Ok(Ok(holding)) => return Ok(Ok(holding)),
            Ok(Err(problem)) if problem.is_held() => return Ok(Err(problem)),
            Ok(Err(problem)) if !problem.is_transient() => {
                return Err(anyhow::anyhow!(problem.detail).into());
            }
            Ok(Err(problem)) => anyhow::anyhow!(problem.detail),
            Err(error) => error.context(server.no_answer()),
        };
        let now = SystemClock.now();
        failures += 1;
        if std::mem::take(&mut progress.waits) {
            (failing_since, failures) = (now, 1);
        }
        if now.since(failing_since) >= RETRY_FOR {
            return Err(error.into());
        }
        let text = format!("{error:#}");
        let logged = progress.error.replace(error);
        if logged.is_none_or(|logged| format!("{logged:#}") != text) {
            tracing::warn!(error = text, "lock not acquired; retrying");
        }
        tokio::time::sleep(retry_pause(failures, fastrand::f64())).await;
    }
}

async fn try_once(
    args: &Args,
    url: &Server,
    progress: &mut Progress,
) -> anyhow::Result<Result<Holding, Problem>> {
    let program = args.command.first().map(std::path::Path::new);
    let name = program
        .and_then(|path| path.file_name())
        .unwrap_or_default();
    let request = Request {
        resource: args.lock.as_str(),
        owner: args.owner.as_deref(),
        command: &name.to_string_lossy(),
        wait_seconds: (args.if_held != IfHeld::Wait).then_some(0),
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
            Some(Event::Acquired(lease)) => return Ok(Ok(Holding { hold, lease })),
            Some(Event::Waiting {
                holder,
                queue_length,
            }) => {
                if holder != progress.holder || !progress.waits {
                    report_waiting(args, holder.as_ref(), queue_length);
                }
                progress.waits = true;
                progress.holder = holder;
            }
            Some(Event::Failed(problem)) => return Ok(Err(problem)),
            Some(_) => {}
            None => anyhow::bail!("the sidecar ended the connection"),
        }
    }
}

fn report_waiting(args: &Args, holder: Option<&Holder>, queue_length: u64) {
    let (owner, since) = holder.map_or(("", ""), |holder| (&*holder.owner_id, &*holder.held_since));
    tracing::info!(
        resource = %args.lock, ownerId = owner, heldSince = since, queueLength = queue_length,
        "waiting"
    );
}

/// Waits until the agent of this exec reports a failure, which it has printed, or ends.
async fn until_failed(agent: Option<&AsyncFd<Link>>) -> u8 {
    let Some(agent) = agent else {
        return std::future::pending().await;
    };
    loop {
        match receive(agent).await {
            Ok(Some(Message::Failed(code))) => return code,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                tracing::error!("agent ended; command not run");
                return exit_code::UNAVAILABLE;
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

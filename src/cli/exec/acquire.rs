//! Waits for the lock, as `--if-held` and `--wait-timeout` say.

use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::hold::{Event, Hold, Holder, Lease, Problem, Request};
use super::keeper::receive;
use super::link::{Link, Message};
use super::{Args, Failure, IfHeld, ends_a_process, exit_code};
use crate::clock::{Clock as _, SystemClock};
use crate::protocol::time::Moment;

/// For how long a sidecar that does not answer, or cannot serve yet, is asked again.
const RETRY_FOR: Duration = Duration::from_secs(30);
/// The pauses between two tries.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A lock that is held.
pub(super) struct Holding {
    pub(super) hold: Hold,
    pub(super) lease: Lease,
}

/// Acquires the lock. Returns an exit code if it is not acquired, and that is no error.
pub(super) async fn acquire(
    args: &Args,
    link: &AsyncFd<Link>,
) -> Result<Result<Holding, u8>, Failure> {
    let asked = SystemClock.now();
    let timeout = async {
        match args.wait_timeout {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    let mut last_holder = None;
    tokio::select! {
        biased;
        code = until_told_to_end(link) => Ok(Err(code?)),
        acquired = retry(args, asked, &mut last_holder) => match acquired? {
            Ok(holding) => Ok(Ok(holding)),
            Err(held) => Ok(Err(answer_held(args, held.holder.as_ref()))),
        },
        () = timeout => {
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
        tracing::info!(resource = %args.lock, ownerId = owner, pod, heldSince = since, "lock held; command skipped");
        return 0;
    }
    tracing::error!(resource = %args.lock, ownerId = owner, pod, heldSince = since, "lock held; command not run");
    exit_code::HELD
}

/// Tries until the lock is acquired or held, or the sidecar has been unavailable for long.
async fn retry(
    args: &Args,
    asked: Moment,
    last_holder: &mut Option<Holder>,
) -> Result<Result<Holding, Problem>, Failure> {
    let mut failing_since = asked;
    loop {
        let error = match try_once(args, last_holder).await {
            Ok(Ok(holding)) => return Ok(Ok(holding)),
            Ok(Err(problem)) if problem.is_held() => return Ok(Err(problem)),
            Ok(Err(problem)) if !problem.is_transient() => {
                return Err(anyhow::anyhow!(problem.detail).into());
            }
            Ok(Err(problem)) => anyhow::anyhow!(problem.detail),
            Err(error) => error.context(format!("no answer from the sidecar at {}", args.url)),
        };
        let now = SystemClock.now();
        // It was asked for longer than that if it answered in between.
        if last_holder.take().is_some() {
            failing_since = now;
        }
        if now.since(failing_since) >= RETRY_FOR {
            return Err(error.into());
        }
        tracing::warn!(error = format!("{error:#}"), "lock not acquired; retrying");
        tokio::time::sleep(RETRY_PAUSE.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
    }
}

async fn try_once(
    args: &Args,
    last_holder: &mut Option<Holder>,
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
    let mut hold = match Hold::open(&args.url, &request).await? {
        Ok(hold) => hold,
        Err(problem) => return Ok(Err(problem)),
    };
    loop {
        match hold.next().await? {
            Some(Event::Acquired(lease)) => return Ok(Ok(Holding { hold, lease })),
            Some(Event::Waiting {
                holder,
                queue_length,
            }) => {
                if holder != *last_holder {
                    let (owner, since) = holder
                        .as_ref()
                        .map_or(("", ""), |holder| (&*holder.owner_id, &*holder.held_since));
                    tracing::info!(resource = %args.lock, ownerId = owner, heldSince = since, queueLength = queue_length, "waiting");
                }
                *last_holder = holder;
            }
            Some(Event::Failed(problem)) => return Ok(Err(problem)),
            Some(_) => {}
            None => anyhow::bail!("the sidecar ended the connection"),
        }
    }
}

/// Waits for a signal that asks this command to end, or for the end of the first process.
async fn until_told_to_end(link: &AsyncFd<Link>) -> anyhow::Result<u8> {
    loop {
        match receive(link).await? {
            Some(Message::Signal(signal)) if ends_a_process(signal) => {
                tracing::info!(signal, "ended by a signal; command not run");
                return Ok(exit_code::of_signal(signal));
            }
            Some(_) => {}
            None => return Ok(exit_code::UNAVAILABLE),
        }
    }
}

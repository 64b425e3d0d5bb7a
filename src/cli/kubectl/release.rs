//! `kubectl leasehold release`.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{Api, locks, own_name};
use super::failure::Failure;
use super::flags::{Document, duration};
use super::{fetch, follow, lock_name, terminal};
use crate::crd::lock::ReleaseMode;
use crate::kubectl::release::{Outcome, preview, withdrawal};
use crate::kubectl::world::LockSeen;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lock.
    #[arg(value_name = "LOCK")]
    lock: String,
    /// The reason, which is recorded with your name.
    #[arg(long, value_name = "WHY", value_parser = reason)]
    reason: String,
    /// Ends the grant even if its app is still working. From then on only the fencing token protects the resource.
    #[arg(long)]
    force: bool,
    /// Does not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// client: prints the request and sends nothing. server: has the API server check it, and changes nothing.
    #[arg(long, value_name = "WHERE", value_enum)]
    dry_run: Option<DryRun>,
    /// How long to follow the request; 0: not at all.
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    timeout: Duration,
    /// The format of the result; default: text.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Document>,
}

/// Who tries a request that is not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DryRun {
    /// The plugin alone.
    Client,
    /// The API server, with its policies.
    Server,
}

/// Reads the reason of a request.
pub(super) fn reason(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("give a reason: it is recorded, and cannot be blank".to_owned());
    }
    Ok(text.to_owned())
}

/// Requests the release, and follows it to its end.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let lock = LockSeen::read(&lock_name::find(api, &args.lock).await?);
    let status = lock.status.as_ref();
    let status = status.map_err(|error| unreadable(&lock, error))?;
    let (Some(holder), Some(lease)) = (&status.holder, &status.lease) else {
        terminal::complain(&format!("{} is free; nothing was done.", args.lock));
        return match args.output {
            None => Ok(()),
            Some(format) => {
                terminal::print_document(format, &json!({"name": lock.name, "requested": false}))
            }
        };
    };
    let mode = if args.force {
        ReleaseMode::Force
    } else {
        ReleaseMode::Ask
    };
    let mut world = fetch::world_of(api, &lock).await?;
    fetch::pod(api, &mut world, &lock.namespace, &holder.pod).await?;
    fetch::operator(api, &mut world).await?;
    terminal::complain(preview(&world, &lock, holder, lease, mode).trim_end());
    let change = change(&lease.id, mode, &args.reason, &own_name(api).await?);
    match args.dry_run {
        Some(DryRun::Client) => {
            return terminal::print_document(args.output.unwrap_or(Document::Yaml), &change);
        }
        Some(DryRun::Server) => {
            api.merge(&format!("{}?dryRun=All", path(&lock)), &change)
                .await?;
            return requested(&lock, args, " (server dry run)");
        }
        None => {}
    }
    if !args.yes {
        terminal::confirm(&lock.name, &lock.spec.resource)?;
    }
    request(api, &lock, &change).await?;
    if args.timeout.is_zero() {
        return requested(&lock, args, "");
    }
    let ended = follow::until(
        api,
        &lock.name,
        Some(args.timeout),
        |object: Option<&Value>| Outcome::of(&lock, &lease.id, object.map(LockSeen::read).as_ref()),
    );
    let ended = ended.await.map_err(|error| {
        Failure::Unfulfilled(format!(
            "the release was requested, but what follows cannot be seen: {error}"
        ))
    });
    let Some(outcome) = ended? else {
        return Err(not_ended(api, &lock, args).await);
    };
    match args.output {
        None => terminal::print(&outcome.text()),
        Some(format) => terminal::print_document(format, &outcome),
    }
}

fn unreadable(lock: &LockSeen, error: &str) -> Failure {
    let (name, namespace) = (&lock.name, &lock.namespace);
    Failure::Usage(format!(
        "the lock {name} cannot be read ({error}); fix it with `kubectl edit dlock {name} --namespace {namespace} \
         --subresource status`"
    ))
}

/// Prints that the request was sent, or would be.
fn requested(lock: &LockSeen, args: &Args, how: &str) -> Result<(), Failure> {
    match args.output {
        None => terminal::print(&format!(
            "distributedlock.leasehold.dev/{} release requested{how}\n",
            lock.name
        )),
        Some(format) => terminal::print_document(
            format,
            &json!({"name": lock.name, "requested": args.dry_run.is_none(), "dryRun": args.dry_run.is_some()}),
        ),
    }
}

/// Returns the change of a lock object that requests the end of a grant.
pub(super) fn change(lease_id: &str, mode: ReleaseMode, reason: &str, actor: &str) -> Value {
    let request = json!({"leaseId": lease_id, "mode": mode, "reason": reason, "actor": actor});
    json!({"spec": {"releaseRequest": request}})
}

/// Requests the end of a grant.
pub(super) async fn request(api: &Api, lock: &LockSeen, change: &Value) -> Result<(), Failure> {
    let sent = api.merge(&path(lock), change).await;
    sent.map_err(|error| unanswered(error, lock))?;
    Ok(())
}

fn path(lock: &LockSeen) -> String {
    format!("{}/{}", locks(Some(&lock.namespace)), lock.name)
}

/// A request without an answer may have been stored.
fn unanswered(error: Failure, lock: &LockSeen) -> Failure {
    match error {
        Failure::Unreachable(why) => Failure::Unreachable(format!(
            "{why}; the request may have been stored: `kubectl leasehold describe {} --namespace {}` shows whether it was",
            lock.name, lock.namespace
        )),
        other => other,
    }
}

async fn not_ended(api: &Api, lock: &LockSeen, args: &Args) -> Failure {
    let (name, namespace) = (&lock.name, &lock.namespace);
    let limit = args.timeout;
    // The time may have passed without any news.
    if let Err(error) = lock_name::read(api, name).await {
        return Failure::Unfulfilled(format!(
            "the release was requested, and its outcome is unknown: {error}; see `kubectl leasehold describe {name} \
             --namespace {namespace}`"
        ));
    }
    let what = if args.force {
        format!("no operator has ended the grant within {limit:?}; see `kubectl leasehold check`")
    } else {
        format!("the app has not released {name} within {limit:?}; stop its pod, or use --force")
    };
    Failure::Unfulfilled(format!("{what}. {}", withdrawal(lock)))
}

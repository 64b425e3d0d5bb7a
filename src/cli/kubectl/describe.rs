//! `kubectl leasehold describe` and `history`.

use serde_json::Value;

use super::api::{Api, encoded};
use super::failure::Failure;
use super::flags::Document;
use super::{fetch, lock_name, show, terminal};
use crate::kubectl::world::LockSeen;
use crate::kubectl::{describe, timeline};

/// The arguments of `describe`.
#[derive(Debug, clap::Args)]
pub(super) struct DescribeArgs {
    /// The lock.
    #[arg(value_name = "LOCK")]
    lock: String,
}

/// The arguments of `history`.
#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    /// The lock.
    #[arg(value_name = "LOCK")]
    lock: String,
    /// The format; default: a table.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Document>,
    /// Prints the table without its headers.
    #[arg(long)]
    no_headers: bool,
}

/// Prints everything about a lock.
pub(super) async fn describe(api: &Api, args: &DescribeArgs) -> Result<(), Failure> {
    let lock = LockSeen::read(&lock_name::find(api, &args.lock).await?);
    let mut world = fetch::world_of(api, &lock).await?;
    let holder = lock
        .status
        .as_ref()
        .ok()
        .and_then(|status| status.holder.as_ref());
    if let Some(holder) = holder {
        fetch::pod(api, &mut world, &lock.namespace, &holder.pod).await?;
    }
    fetch::operator(api, &mut world).await?;
    let events = fetch::known(events(api, &lock).await)?;
    let entries = timeline::entries(&lock, events.seen().map_or(&[], Vec::as_slice));
    terminal::print(&describe::describe(&world, &lock, &entries, events.unknown()).text())
}

/// Prints what happened to a lock.
pub(super) async fn history(api: &Api, args: &HistoryArgs) -> Result<(), Failure> {
    let lock = LockSeen::read(&lock_name::find(api, &args.lock).await?);
    if let Err(error) = &lock.status {
        terminal::complain(&format!("warning: the incidents cannot be read: {error}"));
    }
    let events = fetch::known(events(api, &lock).await)?;
    if let Some(why) = events.unknown() {
        terminal::complain(&format!("warning: the Events are unknown: {why}"));
    }
    let entries = timeline::entries(&lock, events.seen().map_or(&[], Vec::as_slice));
    match args.output {
        Some(format) => terminal::print_document(format, &entries),
        None if entries.is_empty() => {
            terminal::complain(if events.unknown().is_some() {
                "No incident is on record for this lock."
            } else {
                "Nothing is on record for this lock: incidents are kept in its status, Events for about an hour."
            });
            Ok(())
        }
        None => show::table(
            &timeline::table(&entries, api.now()?),
            args.no_headers,
            false,
        ),
    }
}

/// Reads the Events of a lock.
pub(super) async fn events(api: &Api, lock: &LockSeen) -> Result<Vec<Value>, Failure> {
    let fields = format!(
        "involvedObject.kind=DistributedLock,involvedObject.name={}",
        lock.name
    );
    let path = format!("/api/v1/namespaces/{}/events", lock.namespace);
    let mut events = Vec::new();
    api.each(
        &path,
        &format!("fieldSelector={}", encoded(&fields)),
        |event| events.push(event),
    )
    .await?;
    Ok(events)
}

//! `kubectl leasehold why`.

use super::api::Api;
use super::failure::Failure;
use super::fetch;
use super::flags::Document;
use super::{lock_name, terminal};
use crate::kubectl::why;
use crate::kubectl::world::LockSeen;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The lock.
    #[arg(value_name = "LOCK")]
    lock: String,
    /// The pod that waits.
    #[arg(long, value_name = "POD")]
    pod: Option<String>,
    /// The format; default: text.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Document>,
}

/// Prints the explanation.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let lock = LockSeen::read(&lock_name::find(api, &args.lock).await?);
    let mut world = fetch::everything(api, Some(&lock.namespace)).await?;
    // The list is newer than the lock that was found by its name.
    let lock = world
        .locks
        .iter()
        .find(|one| one.name == lock.name)
        .cloned();
    let Some(lock) = lock else {
        return Err(Failure::NotFound(format!(
            "the lock {} was deleted in the meantime",
            args.lock
        )));
    };
    for pod in why::pods_of(&world, &lock) {
        fetch::pod(api, &mut world, &lock.namespace, &pod).await?;
    }
    fetch::operator(api, &mut world).await?;
    let why = why::explain(&world, &lock, args.pod.as_deref());
    match args.output {
        None => terminal::print(&why.text(&world)),
        Some(format) => terminal::print_document(format, &why),
    }
}

//! `kubectl leasehold list`.

mod watching;

use serde_json::Value;

use super::api::{Api, encoded, locks};
use super::failure::Failure;
use super::flags::OutputFlags;
use super::{fetch, show, terminal};
use crate::kubectl::format::Output;
use crate::kubectl::format::jsonpath::Path;
use crate::kubectl::format::sort::sort_by;
use crate::kubectl::list;
use crate::kubectl::world::LockSeen;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only locks whose resource begins with this.
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// The locks of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only lock objects with these labels, as key=value,…
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Sorts by the value of this JSONPath, as .status.token.
    #[arg(long, value_name = "PATH", value_parser = Path::relaxed, conflicts_with = "watch")]
    sort_by: Option<Path>,
    /// Continues with a row for each change, until you stop it.
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    output: OutputFlags,
}

/// A lock, and its object if that is printed or sorted by.
type Found = (LockSeen, Value);

/// Prints the locks.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    if args.watch {
        return watching::run(api, args).await;
    }
    let mut found = found(api, args).await?;
    if let Some(path) = &args.sort_by {
        sort_by(&mut found, path, |(_, object)| object)
            .map_err(|error| Failure::Usage(error.to_string()))?;
    }
    let is_document = matches!(
        args.output.output,
        Some(Output::Json | Output::Yaml | Output::JsonPath(_))
    );
    if found.is_empty() && !is_document {
        terminal::complain(&none_found(api, args));
        return Ok(());
    }
    if let Some(output) = args.output.of_objects() {
        let objects = found.into_iter().map(|(_, object)| object).collect();
        return show::objects(output, args.output.no_headers, objects, true);
    }
    let locks = found.into_iter().map(|(lock, _)| lock).collect();
    let world = fetch::world(api, args.namespace(api), locks).await?;
    let table = list::table(&world, &world.locks, args.all_namespaces);
    show::table(&table, args.output.no_headers, args.output.is_wide())?;
    terminal::warn_of_unknown_sessions(&world);
    Ok(())
}

async fn found(api: &Api, args: &Args) -> Result<Vec<Found>, Failure> {
    let keeps_objects = args.sort_by.is_some() || args.output.of_objects().is_some();
    let mut found = Vec::new();
    api.each(&locks(args.namespace(api)), &args.query(), |object| {
        let lock = LockSeen::read(&object);
        if args.selects(&lock) {
            let object = if keeps_objects { object } else { Value::Null };
            found.push((lock, object));
        }
    })
    .await?;
    Ok(found)
}

impl Args {
    fn namespace<'a>(&self, api: &'a Api) -> Option<&'a str> {
        (!self.all_namespaces).then_some(api.namespace.as_str())
    }

    fn query(&self) -> String {
        let selector = self.selector.as_ref();
        selector.map_or_else(String::new, |text| {
            format!("labelSelector={}", encoded(text))
        })
    }

    fn selects(&self, lock: &LockSeen) -> bool {
        lock.spec.resource.starts_with(&self.prefix)
    }
}

/// Returns kubectl's words for an empty list.
fn none_found(api: &Api, args: &Args) -> String {
    let place = if args.all_namespaces {
        String::new()
    } else {
        format!(" in {} namespace", api.namespace)
    };
    if args.prefix.is_empty() {
        return format!("No locks found{place}.");
    }
    format!(
        "No locks found{place} whose resource begins with {}.",
        args.prefix
    )
}

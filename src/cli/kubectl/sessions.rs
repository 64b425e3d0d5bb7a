//! `kubectl leasehold sessions`, `elections`, `top`, `tree` and `version`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::api::{Api, locks, sessions as path_of_sessions};
use super::failure::Failure;
use super::flags::{Document, OutputFlags};
use super::{fetch, show, terminal};
use crate::kubectl::format::table::Table;
use crate::kubectl::world::{Known, LockSeen, OperatorSeen, World};
use crate::kubectl::{sessions, top, tree, words};
use crate::protocol::election;
use crate::text::escape_lines;

/// The arguments of a table about one namespace or all.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    output: OutputFlags,
}

impl Args {
    fn namespace<'a>(&self, api: &'a Api) -> Option<&'a str> {
        (!self.all_namespaces).then_some(api.namespace.as_str())
    }
}

/// Prints the sessions.
pub(super) async fn sessions(api: &Api, args: &Args) -> Result<(), Failure> {
    if args.output.of_objects().is_some() {
        let objects = objects(api, &path_of_sessions(args.namespace(api))).await?;
        return print_objects(args, objects);
    }
    let world = world(api, args).await?;
    if let Some(why) = world.sessions.unknown() {
        return Err(Failure::Unfulfilled(why.to_owned()));
    }
    print(
        args,
        &sessions::table(&world, args.all_namespaces),
        "No sessions found: no agent has used a lock lately.",
    )
}

/// Prints the elections.
pub(super) async fn elections(api: &Api, args: &Args) -> Result<(), Failure> {
    if args.output.of_objects().is_some() {
        let mut objects = objects(api, &locks(args.namespace(api))).await?;
        objects.retain(|object| {
            let resource = object["spec"]["resource"].as_str();
            resource.is_some_and(|resource| resource.starts_with(election::PREFIX))
        });
        return print_objects(args, objects);
    }
    let world = world(api, args).await?;
    print(
        args,
        &sessions::elections(&world, args.all_namespaces),
        "No elections found.",
    )?;
    terminal::warn_of_unknown_sessions(&world);
    Ok(())
}

/// The arguments of `top`.
#[derive(Debug, clap::Args)]
pub(super) struct TopArgs {
    /// How many locks.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    count: u16,
    #[command(flatten)]
    table: Args,
}

/// Prints the locks with the longest queues.
pub(super) async fn top(api: &Api, args: &TopArgs) -> Result<(), Failure> {
    let count = usize::from(args.count);
    if args.table.output.of_objects().is_some() {
        let objects = objects(api, &locks(args.table.namespace(api))).await?;
        let mut found: Vec<_> = objects
            .into_iter()
            .map(|object| (LockSeen::read(&object), object))
            .collect();
        top::rank(&mut found, |(lock, _)| lock);
        found.truncate(count);
        let objects = found.into_iter().map(|(_, object)| object);
        return print_objects(&args.table, objects.collect());
    }
    let world = world(api, &args.table).await?;
    print(
        &args.table,
        &top::table(&world, count, args.table.all_namespaces),
        "No lock is held.",
    )
}

/// The arguments of `tree`.
#[derive(Debug, clap::Args)]
pub(super) struct TreeArgs {
    /// Only this pod.
    #[arg(value_name = "POD")]
    pod: Option<String>,
    /// Of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

/// Prints the pods with their sessions and locks.
pub(super) async fn tree(api: &Api, args: &TreeArgs) -> Result<(), Failure> {
    let world = fetch::everything(
        api,
        (!args.all_namespaces).then_some(api.namespace.as_str()),
    )
    .await?;
    let text = tree::text(&world, args.pod.as_deref(), args.all_namespaces);
    if text.is_empty() {
        let which = args.pod.as_ref().map_or_else(
            || "No pod".to_owned(),
            |pod| format!("Pod {pod} is unknown, or"),
        );
        let does = if args.pod.is_some() {
            "neither holds a lock nor waits for one"
        } else {
            "holds a lock or waits for one"
        };
        terminal::complain(&format!("{which} {does}."));
        return Ok(());
    }
    terminal::print(&text)?;
    terminal::warn_of_unknown_sessions(&world);
    Ok(())
}

async fn world(api: &Api, args: &Args) -> Result<World, Failure> {
    fetch::everything(api, args.namespace(api)).await
}

async fn objects(api: &Api, path: &str) -> Result<Vec<Value>, Failure> {
    let mut objects = Vec::new();
    api.each(path, "", |object| objects.push(object)).await?;
    Ok(objects)
}

/// Prints objects in the format that is not a table of ours.
fn print_objects(args: &Args, objects: Vec<Value>) -> Result<(), Failure> {
    let Some(output) = args.output.of_objects() else {
        return Ok(());
    };
    show::objects(output, args.output.no_headers, objects, true)
}

fn print(args: &Args, table: &Table, none: &str) -> Result<(), Failure> {
    if table.rows.is_empty() {
        terminal::complain(none);
        return Ok(());
    }
    show::table(table, args.output.no_headers, args.output.is_wide())
}

/// The arguments of `version`.
#[derive(Debug, clap::Args)]
pub(super) struct VersionArgs {
    /// Only the version of the plugin; reads nothing from the cluster.
    #[arg(long)]
    pub(super) client: bool,
    /// The sidecars of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// The format; default: text.
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Document>,
}

/// The versions of the parts.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    plugin: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operator: Option<String>,
    /// How many sidecars and other agents have each version.
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<BTreeMap<String, usize>>,
}

/// The version of this plugin.
const PLUGIN: &str = env!("CARGO_PKG_VERSION");

/// Prints the version of the plugin alone.
pub(super) fn client_version(args: &VersionArgs) -> Result<(), Failure> {
    let versions = Versions {
        plugin: PLUGIN,
        operator: None,
        agents: None,
    };
    match args.output {
        Some(format) => terminal::print_document(format, &versions),
        None => terminal::print(&format!("Plugin:    {PLUGIN}\n")),
    }
}

/// Prints the versions of plugin, operator and agents.
pub(super) async fn version(api: &Api, args: &VersionArgs) -> Result<(), Failure> {
    let namespace = (!args.all_namespaces).then_some(api.namespace.as_str());
    let mut world = fetch::world(api, namespace, Vec::new()).await?;
    fetch::operator(api, &mut world).await?;
    let operator = match &world.operator {
        Known::Seen(OperatorSeen::Active { version, .. }) => version.clone(),
        other => words::operator(other),
    };
    let agents = world.sessions.seen().map(|_| sessions::versions(&world));
    let versions = Versions {
        plugin: PLUGIN,
        operator: Some(operator),
        agents,
    };
    if let Some(format) = args.output {
        terminal::warn_of_unknown_sessions(&world);
        return terminal::print_document(format, &versions);
    }
    let place = namespace.map_or_else(
        || "in all namespaces".to_owned(),
        |namespace| format!("in namespace {namespace}"),
    );
    terminal::print(&versions.text(&place, world.sessions.unknown()))
}

impl Versions {
    /// Returns the versions as text. `place` is where the agents are, and `unknown` why theirs are not known.
    fn text(&self, place: &str, unknown: Option<&str>) -> String {
        let operator = self.operator.as_deref().unwrap_or("unknown");
        let agents = self.agents.iter().flatten();
        let agents: Vec<_> = agents
            .map(|(version, count)| format!("{version} ({count})"))
            .collect();
        let agents = match (unknown, agents.is_empty()) {
            (Some(why), _) => format!("unknown: {why}"),
            (None, true) => format!("none {place}"),
            (None, false) => format!("{} {place}", agents.join(", ")),
        };
        let text = format!(
            "Plugin:    {}\nOperator:  {operator}\nAgents:    {agents}\n",
            self.plugin
        );
        // An agent names its version itself.
        escape_lines(&text).into_owned()
    }
}

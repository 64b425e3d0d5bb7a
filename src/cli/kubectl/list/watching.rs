//! `list --watch`: the table, then a row for each change.

use std::collections::BTreeMap;
use std::pin::pin;

use futures::StreamExt as _;
use kube::Api as KubeApi;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde_json::Value;

use super::{Args, list};
use crate::cli::kubectl::api::Api;
use crate::cli::kubectl::failure::Failure;
use crate::cli::kubectl::follow::Refusals;
use crate::cli::kubectl::{fetch, show, terminal};
use crate::crd::DistributedLock;
use crate::crd::lock::DistributedLockStatus;
use crate::kubectl::world::{Known, LockSeen, World};

/// Prints until the user stops it.
pub(super) async fn run(api: &Api, args: &Args) -> Result<(), Failure> {
    let mut config = watcher::Config::default();
    if let Some(selector) = &args.selector {
        config = config.labels(selector);
    }
    let mut events = pin!(watcher::watcher(of(api, args), config).default_backoff());
    let mut rows = Rows {
        api,
        args,
        world: None,
        has_begun: false,
    };
    let mut found = Vec::new();
    let mut refusals = Refusals::default();
    while let Some(event) = events.next().await {
        match event {
            Err(error) => match refusals.judge(&error) {
                Some(refused) => return Err(refused),
                None => terminal::complain(&format!("warning: the watch was interrupted: {error}")),
            },
            Ok(Event::Init) => found.clear(),
            Ok(Event::InitApply(object)) => found.push(object),
            Ok(Event::InitDone) => {
                refusals.begun();
                rows.begin(std::mem::take(&mut found)).await?;
            }
            Ok(Event::Apply(object)) => rows.changed(object, false).await?,
            Ok(Event::Delete(object)) => rows.changed(object, true).await?,
        }
    }
    Ok(())
}

fn of(api: &Api, args: &Args) -> KubeApi<DynamicObject> {
    let kind = ApiResource::erase::<DistributedLock>(&());
    match args.namespace(api) {
        Some(namespace) => KubeApi::namespaced_with(api.client(), namespace, &kind),
        None => KubeApi::all_with(api.client(), &kind),
    }
}

struct Rows<'a> {
    api: &'a Api,
    args: &'a Args,
    /// What is shown, if that is a table.
    world: Option<World>,
    has_begun: bool,
}

impl Rows<'_> {
    /// Prints the list. A list after an interruption prints what was missed: all its rows, without headers.
    async fn begin(&mut self, found: Vec<DynamicObject>) -> Result<(), Failure> {
        let objects = found.into_iter().map(value);
        let objects: Vec<_> = objects
            .filter(|object| self.args.selects(&LockSeen::read(object)))
            .collect();
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        if let Some(output) = self.args.output.of_objects() {
            for object in objects {
                show::objects(
                    output,
                    self.args.output.no_headers || !is_first,
                    vec![object],
                    false,
                )?;
            }
            return Ok(());
        }
        let locks = objects.iter().map(LockSeen::read).collect();
        let world = fetch::world(self.api, self.args.namespace(self.api), locks).await?;
        let table = list::table(&world, &world.locks, self.args.all_namespaces);
        if is_first {
            terminal::warn_of_unknown_sessions(&world);
        }
        self.world = Some(world);
        show::table(
            &table,
            self.args.output.no_headers || !is_first,
            self.args.output.is_wide(),
        )
    }

    async fn changed(&mut self, object: DynamicObject, is_deleted: bool) -> Result<(), Failure> {
        let object = value(object);
        let mut lock = LockSeen::read(&object);
        if !self.args.selects(&lock) {
            return Ok(());
        }
        if let Some(output) = self.args.output.of_objects() {
            return show::objects(output, true, vec![object], false);
        }
        let Some(world) = &mut self.world else {
            return Ok(());
        };
        if is_deleted {
            // The last state of a deleted object is no longer true.
            lock.status = Ok(DistributedLockStatus::default());
        }
        read_session(self.api, world, &lock).await?;
        // Together with the headers and the other rows the new one gets columns of the same width.
        let place = world
            .locks
            .iter()
            .position(|one| (&one.namespace, &one.name) == (&lock.namespace, &lock.name));
        if let Some(place) = place {
            world.locks.remove(place);
        }
        world.locks.push(lock);
        let mut table = list::table(world, &world.locks, self.args.all_namespaces);
        if is_deleted {
            list::mark_deleted(&mut table);
            world.locks.pop();
        }
        let layout = show::layout(self.args.output.no_headers, self.args.output.is_wide());
        let text = table.render(&layout);
        terminal::print(
            &text
                .lines()
                .next_back()
                .map_or_else(String::new, |row| format!("{row}\n")),
        )
    }
}

/// Reads the session of the holder as it is now, and the time.
async fn read_session(api: &Api, world: &mut World, lock: &LockSeen) -> Result<(), Failure> {
    let Some(name) = lock.holder_session() else {
        return Ok(());
    };
    let session = match fetch::known(fetch::session_of(api, &lock.namespace, name).await)? {
        Known::Unknown(why) => {
            world.sessions = Known::Unknown(why);
            return Ok(());
        }
        Known::Seen(session) => session,
    };
    world.now = api.now()?;
    let key = (lock.namespace.clone(), name.to_owned());
    let Known::Seen(sessions) = &mut world.sessions else {
        return Ok(());
    };
    match session {
        Some(session) => BTreeMap::insert(sessions, key, session),
        None => sessions.remove(&key),
    };
    Ok(())
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

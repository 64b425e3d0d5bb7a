//! The rows of `sessions` and of `elections`, and the versions of agents.

use std::collections::BTreeMap;

use super::format::human::human;
use super::format::table::{Column, Table};
use super::list::node;
use super::session_health::{Health, since};
use super::words::{about, freed_in_cell, health_cell};
use super::world::{LockSeen, SessionSeen, World};
use crate::protocol::election;

/// Returns the table of the sessions of `world`.
#[must_use]
pub fn table(world: &World, namespaces: bool) -> Table {
    let columns = vec![
        Column::new("POD").flexible(),
        Column::new("NODE").flexible().priority(5),
        Column::new("STATE"),
        Column::new("RENEWED").priority(1),
        Column::new("TTL").priority(4),
        Column::new("FREED-IN").priority(3),
        Column::new("HOLDS").priority(2),
        Column::new("WAITS").priority(2),
        Column::new("VERSION").priority(6),
        Column::new("NAME").wide_only(),
        Column::new("AGE").wide_only(),
    ];
    let (holds, waits) = counts(&world.locks);
    let sessions = world.sessions.seen().into_iter().flat_map(BTreeMap::values);
    let rows = sessions.map(|session| {
        let key = (session.namespace.as_str(), session.name.as_str());
        let count = |of: &BTreeMap<_, usize>| of.get(&key).copied().unwrap_or_default().to_string();
        let mut row = row(world, session);
        row.splice(6..6, [count(&holds), count(&waits)]);
        (session.namespace.as_str(), row)
    });
    Table::of_namespaces(columns, rows, namespaces)
}

fn row(world: &World, session: &SessionSeen) -> Vec<String> {
    let health = Health::at(world.now, session);
    let ago = |at| human(since(at, world.now));
    vec![
        session.spec.pod.clone(),
        session.spec.node.clone().unwrap_or_default(),
        health_cell(&health),
        session.renewed.map(ago).unwrap_or_default(),
        format!("{}s", session.spec.ttl_seconds),
        freed_in_cell(&health),
        session.spec.agent_version.clone(),
        session.name.clone(),
        session.created.map(ago).unwrap_or_default(),
    ]
}

type Counts<'a> = BTreeMap<(&'a str, &'a str), usize>;

/// Returns how many locks each session holds, and for how many it waits.
fn counts(locks: &[LockSeen]) -> (Counts<'_>, Counts<'_>) {
    let (mut holds, mut waits) = (Counts::new(), Counts::new());
    for lock in locks {
        if let Some(session) = lock.holder_session() {
            *holds.entry((&lock.namespace, session)).or_default() += 1;
        }
        for waiter in lock.status.iter().flat_map(|status| &status.waiters) {
            *waits.entry((&lock.namespace, &waiter.session)).or_default() += 1;
        }
    }
    (holds, waits)
}

/// Returns the table of the elections among the locks of `world`.
#[must_use]
pub fn elections(world: &World, namespaces: bool) -> Table {
    let columns = vec![
        Column::new("ELECTION").flexible(),
        Column::new("LEADER").flexible(),
        Column::new("NODE").flexible().priority(4),
        Column::new("TERM-TOKEN").priority(3),
        Column::new("LEADS-FOR").priority(1),
        Column::new("CANDIDATES").priority(2),
        Column::new("SESSION").priority(2),
    ];
    let elections = world.locks.iter().filter_map(|lock| {
        let name = lock.spec.resource.strip_prefix(election::PREFIX)?;
        let status = lock.status.as_ref().ok()?;
        let holder = status.holder.as_ref();
        let row = vec![
            name.to_owned(),
            holder.map_or_else(String::new, |holder| holder.pod.clone()),
            holder.map_or_else(String::new, |holder| node(world, lock, holder)),
            status.token.to_string(),
            status
                .lease
                .as_ref()
                .map_or_else(String::new, |lease| about(&lease.acquired_at, world.now)),
            // The leader is a candidate, too.
            (status.waiters.len() + usize::from(holder.is_some())).to_string(),
            holder.map_or_else(String::new, |holder| {
                health_cell(&Health::of_holder(world, &lock.namespace, holder))
            }),
        ];
        Some((lock.namespace.as_str(), row))
    });
    Table::of_namespaces(columns, elections, namespaces)
}

/// Returns the versions of the agents that run, and how many have each.
#[must_use]
pub fn versions(world: &World) -> BTreeMap<String, usize> {
    let mut versions = BTreeMap::new();
    for session in world.sessions.seen().into_iter().flat_map(BTreeMap::values) {
        if matches!(Health::at(world.now, session), Health::Live { .. }) {
            *versions
                .entry(session.spec.agent_version.clone())
                .or_default() += 1;
        }
    }
    versions
}

//! The locks with the longest queues and the longest holds.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::format::table::{Column, Table};
use super::words::about;
use super::world::{LockSeen, World};

/// Returns the table of the `count` held locks with the most waiters, and among equals of those that are held longest.
#[must_use]
pub fn table(world: &World, count: usize, namespaces: bool) -> Table {
    let mut held: Vec<_> = world
        .locks
        .iter()
        .filter(|lock| lock.holder_session().is_some())
        .collect();
    held.sort_by_key(|lock| (Reverse(waiting(lock)), acquired_at(lock)));
    let columns = vec![
        Column::new("RESOURCE").flexible(),
        Column::new("WAITING"),
        Column::new("LONGEST-WAIT").priority(2),
        Column::new("HELD-FOR").priority(1),
        Column::new("GRANTS").priority(4),
        Column::new("HOLDER").flexible().priority(5),
        Column::new("POD").flexible().priority(3),
    ];
    let rows = held.into_iter().take(count);
    let rows = rows.map(|lock| (lock.namespace.as_str(), row(world, lock)));
    Table::of_namespaces(columns, rows, namespaces)
}

fn row(world: &World, lock: &LockSeen) -> Vec<String> {
    let mut row = vec![lock.spec.resource.clone(), waiting(lock).to_string()];
    let Ok(status) = &lock.status else { return row };
    // A preferred candidate can be first without having waited longest.
    let oldest = status
        .waiters
        .iter()
        .map(|waiter| waiter.queued_at.as_str())
        .min();
    let lease = status
        .lease
        .as_ref()
        .map(|lease| lease.acquired_at.as_str());
    let time = |at: Option<&str>| at.map_or_else(String::new, |at| about(at, world.now));
    row.extend([time(oldest), time(lease), status.transitions.to_string()]);
    if let Some(holder) = &status.holder {
        row.extend([holder.owner_id.clone(), holder.pod.clone()]);
    }
    row
}

fn waiting(lock: &LockSeen) -> usize {
    lock.status
        .as_ref()
        .map_or(0, |status| status.waiters.len())
}

fn acquired_at(lock: &LockSeen) -> Option<Timestamp> {
    lock.status
        .as_ref()
        .ok()?
        .lease
        .as_ref()?
        .acquired_at
        .parse()
        .ok()
}

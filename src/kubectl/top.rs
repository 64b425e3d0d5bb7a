//! The locks with the longest queues and the longest holds.

use std::cmp::Reverse;

use jiff::Timestamp;

use super::format::table::{Column, Table};
use super::words::about;
use super::world::{LockSeen, World};

/// Returns the table of the `count` held locks with the most waiters, and among equals of those that are held longest.
#[must_use]
pub fn table(world: &World, count: usize, namespaces: bool) -> Table {
    let mut held: Vec<_> = world.locks.iter().collect();
    rank(&mut held, |lock| lock);
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

/// Keeps the held locks, those with the most waiters first, and among equals those that are held longest.
pub fn rank<T>(locks: &mut Vec<T>, lock_of: impl Fn(&T) -> &LockSeen) {
    locks.retain(|one| lock_of(one).holder_session().is_some());
    locks.sort_by_key(|one| {
        let lock = lock_of(one);
        (Reverse(waiting(lock)), acquired_at(lock))
    });
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

//! The rows of `list`.

use super::format::human::human;
use super::format::table::{Column, Table};
use super::session_health::{Health, since};
use super::words::{about, freed_in_cell, health_cell};
use super::world::{LockSeen, World};
use crate::crd::lock::{DistributedLockStatus, Holder};

/// Returns the table of these locks, in their order. With `namespaces` each row begins with its namespace.
pub fn table<'a>(
    world: &World,
    locks: impl IntoIterator<Item = &'a LockSeen>,
    namespaces: bool,
) -> Table {
    let columns = vec![
        Column::new("RESOURCE").flexible(),
        Column::new("HOLDER").flexible(),
        Column::new("POD").flexible().priority(3),
        Column::new("NODE").flexible().priority(7),
        Column::new("TOKEN").priority(6),
        Column::new("HELD-FOR").priority(2),
        Column::new("WAITING").priority(4),
        Column::new("SESSION").priority(5),
        Column::new("FREED-IN").priority(5),
        Column::new("NAME").wide_only(),
        Column::new("SESSION-NAME").wide_only(),
        Column::new("AGE").wide_only(),
    ];
    let rows = locks.into_iter();
    let rows = rows.map(|lock| (lock.namespace.as_str(), row(world, lock)));
    Table::of_namespaces(columns, rows, namespaces)
}

/// Shows the last lock of a table as deleted.
pub fn mark_deleted(table: &mut Table) {
    let holder = table.columns.iter().position(|column| column.is("HOLDER"));
    let cell = holder.and_then(|at| table.rows.last_mut()?.get_mut(at));
    if let Some(cell) = cell {
        "(deleted)".clone_into(cell);
    }
}

fn row(world: &World, lock: &LockSeen) -> Vec<String> {
    let age = lock
        .created
        .map_or_else(String::new, |created| human(since(created, world.now)));
    let resource = lock.spec.resource.clone();
    let (shown, session) = match &lock.status {
        Ok(status) => holder_cells(world, lock, status),
        Err(_) => (unreadable(), String::new()),
    };
    let mut row = vec![resource];
    row.extend(shown);
    row.extend([lock.name.clone(), session, age]);
    row
}

/// Returns the cells from HOLDER to FREED-IN, and the name of the session.
fn holder_cells(
    world: &World,
    lock: &LockSeen,
    status: &DistributedLockStatus,
) -> ([String; 8], String) {
    let token = Some(status.token).filter(|token| *token > 0);
    let token = token.map_or_else(String::new, |token| token.to_string());
    let (Some(holder), Some(lease)) = (&status.holder, &status.lease) else {
        let none = String::new;
        return (
            [
                none(),
                none(),
                none(),
                token,
                none(),
                none(),
                none(),
                none(),
            ],
            String::new(),
        );
    };
    let health = Health::of_holder(world, &lock.namespace, holder);
    let cells = [
        holder.owner_id.clone(),
        holder.pod.clone(),
        node(world, lock, holder),
        token,
        about(&lease.acquired_at, world.now),
        status.waiters.len().to_string(),
        health_cell(&health),
        freed_in_cell(&health),
    ];
    (cells, holder.session.clone())
}

/// Returns the node of a holder. A grant from the queue does not name it, and its session may.
pub(super) fn node(world: &World, lock: &LockSeen, holder: &Holder) -> String {
    let key = (lock.namespace.clone(), holder.session.clone());
    let session = world
        .sessions
        .seen()
        .and_then(|sessions| sessions.get(&key));
    let of_session = || session.and_then(|session| session.spec.node.clone());
    holder.node.clone().or_else(of_session).unwrap_or_default()
}

fn unreadable() -> [String; 8] {
    let mut cells = [const { String::new() }; 8];
    "(unreadable)".clone_into(&mut cells[0]);
    cells
}

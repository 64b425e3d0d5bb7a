//! The rows of the page's table: a window of those that match the filter.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::kubectl::list;
use crate::kubectl::world::{LockSeen, World};
use crate::text::escape;

/// The most rows of one answer.
const LIMIT_MAX: usize = 500;

/// Which rows the page shows.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Only locks whose resource begins with this.
    pub prefix: String,
    /// Only locks of this namespace; empty: of all that are read.
    pub namespace: String,
    /// The order.
    pub sort: Sort,
    /// The first row, from 0.
    pub offset: usize,
    /// The number of rows.
    pub limit: usize,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By namespace and resource.
    #[default]
    Resource,
    /// The longest queues first.
    Waiting,
    /// Those that are held longest first, and free ones last.
    Held,
}

/// A window of the rows.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rows {
    /// The number of locks.
    pub total: usize,
    /// The number of locks that match the filter.
    pub matched: usize,
    /// The namespaces that have locks.
    pub namespaces: Vec<String>,
    /// The headers.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The namespace of the lock object.
    pub namespace: String,
    /// The name of the lock object.
    pub name: String,
    /// A cell for each column.
    pub cells: Vec<String>,
}

/// Returns the rows that a query selects. With `namespaces` each row begins with its namespace.
#[must_use]
pub fn rows(world: &World, query: &Query, namespaces: bool) -> Rows {
    let all = world.locks.iter();
    let of_namespaces: BTreeSet<_> = all.clone().map(|lock| lock.namespace.as_str()).collect();
    let mut matched: Vec<_> = all
        .filter(|lock| lock.spec.resource.starts_with(&query.prefix))
        .filter(|lock| query.namespace.is_empty() || lock.namespace == query.namespace)
        .collect();
    matched.sort_by_key(|lock| (lock.namespace.as_str(), lock.spec.resource.as_str()));
    match query.sort {
        Sort::Resource => {}
        Sort::Waiting => matched.sort_by_key(|lock| Reverse(waiting(lock))),
        Sort::Held => matched.sort_by_key(|lock| held_since(lock)),
    }
    let window = matched.iter().skip(query.offset);
    let window: Vec<_> = window.take(query.limit.min(LIMIT_MAX)).copied().collect();
    let table = list::table(world, window.iter().copied(), namespaces).narrow();
    let rows = window.into_iter().zip(table.rows);
    Rows {
        total: world.locks.len(),
        matched: matched.len(),
        namespaces: of_namespaces.into_iter().map(str::to_owned).collect(),
        columns: table
            .columns
            .iter()
            .map(|column| column.header().to_owned())
            .collect(),
        rows: rows
            .map(|(lock, cells)| Row {
                namespace: lock.namespace.clone(),
                name: lock.name.clone(),
                cells: cells.iter().map(|cell| escape(cell).into_owned()).collect(),
            })
            .collect(),
    }
}

fn waiting(lock: &LockSeen) -> usize {
    lock.status
        .as_ref()
        .map_or(0, |status| status.waiters.len())
}

/// Returns since when a lock is held; a free one is last.
fn held_since(lock: &LockSeen) -> Timestamp {
    let lease = lock
        .status
        .as_ref()
        .ok()
        .and_then(|status| status.lease.as_ref());
    let since = lease.and_then(|lease| lease.acquired_at.parse().ok());
    since.unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::kubectl::world::Known;

    fn lock(namespace: &str, resource: &str, held_since: Option<&str>, waiting: usize) -> LockSeen {
        let waiter = json!({"leaseId": "w", "ownerId": "w", "pod": "w", "podUid": "", "session": "w",
            "sessionTtlSeconds": 15, "queuedAt": "2026-01-01T00:00:00Z"});
        let mut status = json!({"token": 1, "waiters": vec![waiter; waiting]});
        if let Some(since) = held_since {
            status["holder"] = json!({"ownerId": "o", "pod": "p", "podUid": "", "session": "s",
                "sessionTtlSeconds": 15});
            status["lease"] = json!({"id": "g", "acquiredAt": since});
        }
        LockSeen::read(
            &json!({"metadata": {"name": format!("{resource}-object"), "namespace": namespace},
            "spec": {"resource": resource}, "status": status}),
        )
    }

    fn world() -> World {
        World {
            now: "2026-01-01T00:01:00Z".parse().unwrap(),
            locks: vec![
                lock("b", "nightly", Some("2026-01-01T00:00:30Z"), 0),
                lock("a", "nightly", None, 0),
                lock("a", "backup", Some("2026-01-01T00:00:10Z"), 2),
                lock("a", "night", Some("2026-01-01T00:00:20Z"), 3),
            ],
            sessions: Known::Seen(BTreeMap::new()),
            pods: BTreeMap::new(),
            nodes: BTreeMap::new(),
            operator: Known::Unknown(String::new()),
        }
    }

    fn found(query: &Query) -> Vec<String> {
        let rows = rows(&world(), query, true).rows.into_iter();
        rows.map(|row| format!("{}/{}", row.namespace, row.cells[1]))
            .collect()
    }

    #[test]
    fn rows_are_filtered_by_prefix_and_namespace() {
        let query = Query {
            prefix: "night".to_owned(),
            limit: 9,
            ..Query::default()
        };
        assert_eq!(found(&query), ["a/night", "a/nightly", "b/nightly"]);
        let query = Query {
            namespace: "b".to_owned(),
            ..query
        };
        assert_eq!(found(&query), ["b/nightly"]);
    }

    #[test]
    fn rows_are_sorted_by_queue_and_hold() {
        let query = |sort| Query {
            sort,
            limit: 9,
            ..Query::default()
        };
        assert_eq!(
            found(&query(Sort::Waiting)),
            ["a/night", "a/backup", "a/nightly", "b/nightly"]
        );
        assert_eq!(
            found(&query(Sort::Held)),
            ["a/backup", "a/night", "b/nightly", "a/nightly"]
        );
    }

    #[test]
    fn a_window_has_its_rows_and_all_counts() {
        let query = Query {
            offset: 1,
            limit: 2,
            ..Query::default()
        };
        assert_eq!(found(&query), ["a/night", "a/nightly"]);
        let window = rows(&world(), &query, true);
        assert_eq!((window.total, window.matched), (4, 4));
        assert_eq!(window.namespaces, ["a", "b"]);
        assert_eq!(window.columns.len(), window.rows[0].cells.len());
        assert_eq!(window.columns[0], "NAMESPACE");
    }
}

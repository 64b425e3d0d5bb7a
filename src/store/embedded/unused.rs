//! Deletes what earlier processes left and nothing uses: sessions, and locks that have been free
//! for a long time.
//!
//! In a cluster a session's object is deleted with its pod, and the operator deletes idle locks.
//! Here it is done when a directory is opened, before anything uses it: the directory is locked, so
//! no process uses an earlier session.
//!
//! A session that a lock names stays, because its end or its silence lets others take over. A lock
//! is deleted only if its token is below the base of the store's revision, so tokens rise over the
//! deletion, with any token floor.

use std::collections::HashSet;

use redb::Database;

use super::record::{LockRecord, SessionRecord};
use super::tables::{DocumentTable, LOCKS, SESSIONS, Snapshot, Versioned, WriteTxn};
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// The number of free locks that are kept: those that remember completed work before others, and of
/// each kind the last written ones. Incidents are useful for a while, too.
const FREE_LOCKS_MAX: usize = 1_000;

/// A deletable document: its table and its name.
type Unused = (DocumentTable, String);

/// Deletes the sessions that no lock names, and the free locks above the limit. Unreadable
/// documents stay.
///
/// # Errors
/// The error of the database.
pub(super) fn delete_unused(database: &Database) -> Result<(), StoreError> {
    let unused = find(&Snapshot::open(database)?)?;
    if unused.is_empty() {
        return Ok(());
    }
    let write = WriteTxn::begin(database)?;
    for (table, name) in &unused {
        write.put(*table, name, None)?;
    }
    write.commit()
}

fn find(snapshot: &Snapshot) -> Result<Vec<Unused>, StoreError> {
    let now = snapshot.revision()?;
    let mut named = HashSet::new();
    let mut free = Vec::new();
    snapshot.walk(
        LOCKS,
        None,
        |name, found: Result<Versioned<LockRecord>, _>| {
            let Ok(found) = found else {
                return true;
            };
            named.extend(found.record.sessions().map(str::to_owned));
            if is_deletable(&found.record, now) {
                let remembers = found.record.has_completed();
                free.push((remembers, found.version, name.to_owned()));
            }
            true
        },
    )?;
    // What is deleted first.
    free.sort_unstable();
    free.truncate(free.len().saturating_sub(FREE_LOCKS_MAX));
    let mut unused: Vec<_> = free.into_iter().map(|(.., name)| (LOCKS, name)).collect();
    let each_session = |name: &str, found: Result<Versioned<SessionRecord>, _>| {
        if found.is_ok() && !named.contains(name) {
            unused.push((SESSIONS, name.to_owned()));
        }
        true
    };
    snapshot.walk(SESSIONS, None, each_session)?;
    Ok(unused)
}

/// A recreated lock is granted from a revision above `now`, and must not repeat a token.
fn is_deletable(record: &LockRecord, now: Revision) -> bool {
    let Ok(lock) = record.lock() else {
        return false;
    };
    lock.grant.is_none() && !record.has_unknown() && u128::from(lock.token.get()) < now.scale()
}

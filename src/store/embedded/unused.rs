//! What earlier processes left behind and nobody needs: sessions, and locks that were free for long.
//!
//! In a cluster a session's object goes with its pod, and the operator deletes idle locks. Here
//! nothing goes by itself, so it is cleared away when a directory is opened, before anybody uses
//! it: by the directory's lock, nobody lives by a session that was there before.
//!
//! A session that a lock still names stays: its end, or its silence, is what lets others take over.
//! A lock goes only while its token is below what the store's revision makes: tokens rise over its
//! deletion, with any token floor.

use std::collections::HashSet;

use redb::Database;

use super::record::{LockRecord, SessionRecord};
use super::tables::{DocumentTable, LOCKS, SESSIONS, Snapshot, Versioned, WriteTxn};
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// How many free locks are kept, those that were written last: what their incidents tell is of use
/// to people for a while.
const FREE_LOCKS_MAX: usize = 1_000;

/// What can go: its table and its name.
type Unused = (DocumentTable, String);

/// Removes the sessions that no lock names and the free locks above the bound. What cannot be read
/// stays.
///
/// # Errors
/// What the database says.
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
            if is_unused(&found.record, now) {
                free.push((found.version, name.to_owned()));
            }
            true
        },
    )?;
    // The oldest first.
    free.sort_unstable();
    free.truncate(free.len().saturating_sub(FREE_LOCKS_MAX));
    let mut unused: Vec<_> = free.into_iter().map(|(_, name)| (LOCKS, name)).collect();
    let each_session = |name: &str, found: Result<Versioned<SessionRecord>, _>| {
        if found.is_ok() && !named.contains(name) {
            unused.push((SESSIONS, name.to_owned()));
        }
        true
    };
    snapshot.walk(SESSIONS, None, each_session)?;
    Ok(unused)
}

/// A lock that is made again is granted from a revision above `now`, and may not repeat a token.
fn is_unused(record: &LockRecord, now: Revision) -> bool {
    let Ok(lock) = record.lock() else {
        return false;
    };
    lock.grant.is_none() && !record.has_unknown() && u128::from(lock.token.get()) < now.scale()
}

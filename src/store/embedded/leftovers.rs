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
use super::tables::{Documents, Found, LOCKS, SESSIONS, View, Write};
use crate::protocol::token::Revision;
use crate::store::StoreError;

/// How many free locks are kept, those that were written last: what their incidents tell is of use
/// to people for a while.
const FREE_LOCKS_MAX: usize = 1_000;

/// What can go: its table and its name.
type Leftover = (Documents, String);

/// Removes the sessions that no lock names and the free locks above the bound. What cannot be read
/// stays.
///
/// # Errors
/// What the database says.
pub(super) fn clear_away(database: &Database) -> Result<(), StoreError> {
    let leftovers = find(&View::open(database)?)?;
    if leftovers.is_empty() {
        return Ok(());
    }
    let write = Write::begin(database)?;
    for (table, name) in &leftovers {
        write.put(*table, name, None)?;
    }
    write.commit()
}

fn find(view: &View) -> Result<Vec<Leftover>, StoreError> {
    let now = view.revision()?;
    let mut named = HashSet::new();
    let mut free = Vec::new();
    view.walk(LOCKS, None, |name, found: Result<Found<LockRecord>, _>| {
        let Ok(found) = found else {
            return true;
        };
        named.extend(found.record.sessions().map(str::to_owned));
        if can_go(&found.record, now) {
            free.push((found.version, name.to_owned()));
        }
        true
    })?;
    // The oldest first.
    free.sort_unstable();
    free.truncate(free.len().saturating_sub(FREE_LOCKS_MAX));
    let mut leftovers: Vec<_> = free.into_iter().map(|(_, name)| (LOCKS, name)).collect();
    let each_session = |name: &str, found: Result<Found<SessionRecord>, _>| {
        if found.is_ok() && !named.contains(name) {
            leftovers.push((SESSIONS, name.to_owned()));
        }
        true
    };
    view.walk(SESSIONS, None, each_session)?;
    Ok(leftovers)
}

/// A lock that is made again is granted from a revision above `now`, and may not repeat a token.
fn can_go(record: &LockRecord, now: Revision) -> bool {
    let Ok(lock) = record.lock() else {
        return false;
    };
    lock.grant.is_none() && !record.has_unknown() && u128::from(lock.token.get()) < now.scale()
}

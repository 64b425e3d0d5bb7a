//! What earlier processes left behind and nobody needs: sessions that ended.
//!
//! In a cluster a session's object goes with its pod. Here nothing goes by itself, so it is cleared
//! away when a directory is opened, before anybody uses it. A session that a lock still names
//! stays: its end is what lets others take over at once.

use std::collections::HashSet;

use redb::Database;

use super::record::{LockRecord, SessionRecord};
use super::tables::{Found, LOCKS, SESSIONS, View, Write};
use crate::store::StoreError;

/// Removes the sessions that ended and that no lock names. What cannot be read stays.
///
/// # Errors
/// What the database says.
pub(super) fn clear_away(database: &Database) -> Result<(), StoreError> {
    let view = View::open(database)?;
    let mut ended = Vec::new();
    view.walk(
        SESSIONS,
        None,
        |name, found: Result<Found<SessionRecord>, _>| {
            if found.is_ok_and(|found| found.record.session().revoked.is_some()) {
                ended.push(name.to_owned());
            }
            true
        },
    )?;
    let named = named_by_locks(&view)?;
    ended.retain(|session| !named.contains(session));
    drop(view);
    if ended.is_empty() {
        return Ok(());
    }
    let write = Write::begin(database)?;
    for session in &ended {
        write.put(SESSIONS, session, None)?;
    }
    write.commit()
}

fn named_by_locks(view: &View) -> Result<HashSet<String>, StoreError> {
    let mut named = HashSet::new();
    view.walk(LOCKS, None, |_, found: Result<Found<LockRecord>, _>| {
        let Ok(lock) = found.and_then(|found| found.record.lock()) else {
            return true;
        };
        let waiters = lock.waiters.entries().iter();
        let sessions = waiters.map(|waiter| &waiter.claimant.session);
        named.extend(
            sessions
                .chain(lock.holder_session())
                .map(ToString::to_string),
        );
        true
    })?;
    Ok(named)
}

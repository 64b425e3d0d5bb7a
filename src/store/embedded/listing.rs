//! Reads locks: one lock, those of a session, and pages at one revision.
//!
//! The continue token has the revision of the first page, and later pages are of that revision,
//! too. Later writes are undone by the history; if that starts later, the token has expired.

use std::collections::BTreeMap;

use super::record::LockRecord;
use super::tables::{LOCKS, Snapshot, Versioned};
use super::{Inner, stored_lock};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::token::Revision;
use crate::store::{Page, StoreError, Stored};

/// A lock of a page by its resource, or the error of an unreadable one.
type Entry = (String, Result<Stored<Lock>, StoreError>);

impl Snapshot {
    pub(super) fn lock(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let found: Option<Versioned<LockRecord>> = self.get(LOCKS, resource.as_str())?;
        found.as_ref().map(stored_lock).transpose()
    }

    pub(super) fn locks_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        let mut page = Page {
            items: Vec::new(),
            revision: self.revision()?,
            next: None,
            unreadable: Vec::new(),
        };
        self.walk_locks(None, |_, lock| {
            match lock {
                Ok(lock) if lock.value.holder_session() == Some(session) => page.items.push(lock),
                Ok(_) => {}
                Err(error) => page.unreadable.push(error.to_string()),
            }
            true
        })?;
        Ok(page)
    }

    pub(super) fn walk_locks(
        &self,
        after: Option<&str>,
        mut each: impl FnMut(&str, Result<Stored<Lock>, StoreError>) -> bool,
    ) -> Result<(), StoreError> {
        self.walk(
            LOCKS,
            after,
            |name, found: Result<Versioned<LockRecord>, _>| {
                each(name, found.and_then(|found| stored_lock(&found)))
            },
        )
    }
}

impl Inner {
    /// Returns one page; a limit of 0 means no limit, as on the API server.
    pub(super) fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        let snapshot = self.snapshot()?;
        let now = snapshot.revision()?;
        let token = match next {
            None => ContinueToken::first_page(now),
            Some(next) => ContinueToken::parse(next, now)?,
        };
        let then = self.history().undo_to(token.revision).map_err(|since| {
            StoreError::ContinueTokenExpired(format!(
                "it was as of revision {}, and changes are remembered from {since} on",
                token.revision
            ))
        })?;
        let limit = match usize::try_from(limit) {
            Ok(limit) if limit > 0 => limit,
            _ => usize::MAX,
        };
        let mut entries = snapshot.entries_as_of(then, token.after.as_deref(), limit)?;
        let is_more = entries.len() > limit;
        entries.truncate(limit);
        let ended_at = entries.last().map(|(name, _)| name.clone());
        let mut page = Page {
            items: Vec::new(),
            revision: token.revision,
            next: ended_at
                .filter(|_| is_more)
                .map(|after| token.next_page_after(after).to_text()),
            unreadable: Vec::new(),
        };
        for (_, entry) in entries {
            match entry {
                Ok(lock) => page.items.push(lock),
                Err(error) => page.unreadable.push(error.to_string()),
            }
        }
        Ok(page)
    }
}

impl Snapshot {
    /// Returns at least one lock more than `limit`, if there are so many, in order.
    fn entries_as_of(
        &self,
        then: BTreeMap<String, Option<Stored<Lock>>>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        let mut entries = Vec::new();
        self.walk_locks(after, |name, lock| {
            if !then.contains_key(name) {
                entries.push((name.to_owned(), lock));
            }
            entries.len() <= limit
        })?;
        let written = then.into_iter().filter_map(|(resource, lock)| {
            let is_due = after.is_none_or(|after| resource.as_str() > after);
            let lock = lock.filter(|_| is_due)?;
            Some((resource, Ok(lock)))
        });
        entries.extend(written);
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(entries)
    }
}

/// Where a page starts.
struct ContinueToken {
    revision: Revision,
    after: Option<String>,
}

impl ContinueToken {
    const fn first_page(revision: Revision) -> Self {
        Self {
            revision,
            after: None,
        }
    }

    fn next_page_after(&self, after: String) -> Self {
        Self {
            revision: self.revision,
            after: Some(after),
        }
    }

    /// Encoded in letters and digits, which need no escaping in a URL.
    fn to_text(&self) -> String {
        use std::fmt::Write as _;

        let mut text = format!("{:x}-", self.revision.0);
        for byte in self.after.as_deref().unwrap_or_default().bytes() {
            // Writing to a String does not fail.
            let _written = write!(text, "{byte:02x}");
        }
        text
    }

    fn parse(text: &str, now: Revision) -> Result<Self, StoreError> {
        let token = || {
            let (revision, after) = text.split_once('-')?;
            let revision = Revision(u64::from_str_radix(revision, 16).ok()?);
            let bytes: Option<Vec<u8>> = after
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
                .collect();
            let after = Some(String::from_utf8(bytes?).ok()?);
            (revision <= now).then_some(Self { revision, after })
        };
        token().ok_or_else(|| {
            StoreError::ContinueTokenExpired(format!("{text:?} is not a continue token"))
        })
    }
}

//! Reading locks: one, a session's, and page by page as of one revision.
//!
//! The place where a page ends names the revision of the first page. Later pages are of that
//! revision too: what was written since is undone from the history, and where that begins later
//! the listing is over.

use std::collections::BTreeMap;

use super::record::LockRecord;
use super::tables::{Found, LOCKS, View};
use super::{Inner, stored_lock};
use crate::protocol::ids::{Resource, SessionId};
use crate::protocol::lock::Lock;
use crate::protocol::token::Revision;
use crate::store::{Page, StoreError, Stored};

/// A lock of a page by its resource, or why it cannot be read.
type Entry = (String, Result<Stored<Lock>, StoreError>);

impl View {
    pub(super) fn lock(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let found: Option<Found<LockRecord>> = self.get(LOCKS, resource.as_str())?;
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
        self.walk(LOCKS, after, |name, found: Result<Found<LockRecord>, _>| {
            each(name, found.and_then(|found| stored_lock(&found)))
        })
    }
}

impl Inner {
    /// One page; a limit of 0 is none, as on the API server.
    pub(super) fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        let view = self.view()?;
        let now = view.revision()?;
        let place = match next {
            None => Place::beginning(now),
            Some(next) => Place::parse(next, now)?,
        };
        let then = self.history().undo_to(place.revision).map_err(|since| {
            StoreError::ListingOver(format!(
                "it was as of revision {}, and changes are remembered from {since} on",
                place.revision
            ))
        })?;
        let limit = match usize::try_from(limit) {
            Ok(limit) if limit > 0 => limit,
            _ => usize::MAX,
        };
        let mut entries = view.entries_as_of(then, place.after.as_deref(), limit)?;
        let is_more = entries.len() > limit;
        entries.truncate(limit);
        let ended_at = entries.last().map(|(name, _)| name.clone());
        let mut page = Page {
            items: Vec::new(),
            revision: place.revision,
            next: ended_at
                .filter(|_| is_more)
                .map(|after| place.going_on_after(after).to_text()),
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

impl View {
    /// At least one lock more than `limit`, where there are so many, in order.
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

/// Where a page begins.
struct Place {
    revision: Revision,
    after: Option<String>,
}

impl Place {
    const fn beginning(revision: Revision) -> Self {
        Self {
            revision,
            after: None,
        }
    }

    fn going_on_after(&self, after: String) -> Self {
        Self {
            revision: self.revision,
            after: Some(after),
        }
    }

    /// In letters and digits, which no URL has to escape.
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
        let place = || {
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
        place().ok_or_else(|| StoreError::ListingOver(format!("{text:?} is not a continue token")))
    }
}

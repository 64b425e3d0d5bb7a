//! Converts the completed work of a lock. Entries that this version cannot read survive its writes.

use serde::Deserialize as _;
use serde_json::Value;

use super::super::{Fields, bounded, overlay, time_text, wall_time};
use crate::crd::lock::CompletionRecord;
use crate::protocol::completed::{COMPLETED_MAX, Completed, Completion, CompletionKey};
use crate::protocol::lock::Lock;
use crate::protocol::token::Token;
use crate::store::StoreError;

const COMPLETION: &[&str] = &["key", "completedAt", "token", "ownerId"];

/// Returns what has succeeded.
pub(super) fn completed(status: &Fields) -> Completed {
    Completed::from_entries(values(status).iter().filter_map(completion).collect())
}

/// Appends new entries, and drops the oldest that have no room.
pub(super) fn write_completed(
    status: &mut Fields,
    before: &Lock,
    next: &Lock,
) -> Result<(), StoreError> {
    if before.completed == next.completed {
        return Ok(());
    }
    let mut records = values(status).to_vec();
    let new = next.completed.entries().iter();
    for entry in new.filter(|entry| !before.completed.contains(&entry.key)) {
        records.push(overlay(None, COMPLETION, &CompletionRecord::from(entry))?);
    }
    records.drain(..records.len().saturating_sub(COMPLETED_MAX));
    status.insert("completed".to_owned(), records.into());
    Ok(())
}

fn values(status: &Fields) -> &[Value] {
    let values = status.get("completed").and_then(Value::as_array);
    values.map_or(&[], Vec::as_slice)
}

fn completion(value: &Value) -> Option<Completion> {
    let record = CompletionRecord::deserialize(value).ok()?;
    Some(Completion {
        key: CompletionKey::parse(&record.key).ok()?,
        at: wall_time(&record.completed_at),
        token: Token::from_raw(u64::try_from(record.token).ok()?),
        owner: record.owner_id.into(),
    })
}

impl From<&Completion> for CompletionRecord {
    fn from(completion: &Completion) -> Self {
        Self {
            key: completion.key.to_string(),
            completed_at: time_text(completion.at),
            token: bounded(completion.token.get()),
            owner_id: completion.owner.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ids::Resource;
    use serde_json::json;

    fn entry(key: &str) -> Value {
        json!({"key": key, "completedAt": "2026-04-01T00:00:00.000000Z", "token": 7_000,
            "ownerId": "o", "new": 1})
    }

    fn lock(completed: Completed) -> Lock {
        Lock {
            completed,
            ..Lock::unheld(Resource::parse("r").unwrap())
        }
    }

    /// Writes one more key than a status has, and returns the list as it is written.
    fn written(entries: &[Value]) -> Vec<Value> {
        let mut status = Fields::new();
        status.insert("completed".to_owned(), entries.into());
        let before = lock(completed(&status));
        let added = Completion {
            key: CompletionKey::parse("added").unwrap(),
            at: wall_time("2026-04-02T00:00:00Z"),
            token: Token::from_raw(8_000),
            owner: "p".into(),
        };
        let next = lock(before.completed.with(added));
        write_completed(&mut status, &before, &next).unwrap();
        values(&status).to_vec()
    }

    #[test]
    fn entries_that_this_version_cannot_read_survive_a_new_one() {
        let newer = json!({"key": "ä", "of": "a newer version"});
        let list = written(&[entry("a"), newer.clone()]);
        assert_eq!(list[..2], [entry("a"), newer]);
        assert_eq!(
            list[2],
            json!({"key": "added", "completedAt": "2026-04-02T00:00:00.000000Z",
                "token": 8_000, "ownerId": "p"})
        );
    }

    #[test]
    fn oldest_of_32_entries_is_dropped_readable_or_not() {
        let mut entries: Vec<_> = (1..COMPLETED_MAX).map(|n| entry(&n.to_string())).collect();
        entries.insert(0, json!({"key": ""}));
        let list = written(&entries);
        assert_eq!((list.len(), &list[0]), (COMPLETED_MAX, &entry("1")));
        assert_eq!(list[31]["key"], "added");
    }
}

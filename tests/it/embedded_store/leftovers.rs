//! The cleanup at a start: sessions that no lock names, and free locks beyond a limit. Tokens
//! increase across it.

use std::path::Path;

use leasehold::protocol::session::{Revocation, RevokeReason, Session};
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Revision;
use leasehold::store::embedded::EmbeddedStore;
use redb::{Database, TableDefinition};
use serde_json::json;

use super::{Embedded, FIRST};
use crate::contract::resource;

/// The number of free locks that are kept.
const FREE: u64 = 1_000;

const LOCKS: TableDefinition<'static, &'static str, (u64, &'static [u8])> =
    TableDefinition::new("locks");
const META: TableDefinition<'static, &'static str, u64> = TableDefinition::new("meta");

fn open(directory: &Path) -> Embedded {
    Embedded::new(EmbeddedStore::open(directory, FIRST).unwrap(), None)
}

/// Writes free locks directly into the file, each with its revision and its token. Sets the store's
/// revision to `revision`.
fn put_free_locks(directory: &Path, revision: u64, locks: impl Iterator<Item = (u64, u64)>) {
    let database = Database::open(directory.join("leasehold.redb")).unwrap();
    let write = database.begin_write().unwrap();
    {
        let mut table = write.open_table(LOCKS).unwrap();
        for (at, token) in locks {
            let name = format!("free-{at}");
            let document = json!({"resource": name, "token": token}).to_string();
            table.insert(&*name, (at, document.as_bytes())).unwrap();
        }
        let mut meta = write.open_table(META).unwrap();
        meta.insert("revision", revision).unwrap();
    }
    write.commit().unwrap();
}

async fn names(store: &Embedded) -> Vec<String> {
    let page = store.a.locks.list(0, None).await.unwrap();
    let names = page.items.iter();
    names.map(|lock| lock.value.resource.to_string()).collect()
}

#[tokio::test]
async fn sessions_without_locks_are_removed_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let held = store.a.make_and_take(&resource("r"), "g-a").await;
    let held = store.b.take(&held, "g-b").await;
    assert_eq!(held.value.waiters.entries().len(), 1);
    let with_name = |name: &str| Session {
        id: name.into(),
        ..store.a.session()
    };
    let sessions = [
        store.a.session(),
        store.b.session(),
        with_name("ended"),
        with_name("killed"),
    ];
    for session in &sessions {
        let made = store.a.sessions.create(session).await.unwrap();
        if session.id.as_str() == "ended" {
            let end = Revocation {
                at: WallTime(0),
                by: "a".into(),
                reason: RevokeReason::Ended,
            };
            let ended = made.value.revoked(end).unwrap();
            store.a.sessions.update(&made, &ended).await.unwrap();
        }
    }
    drop(store);
    let store = open(directory.path());
    let mut there = Vec::new();
    for session in &sessions {
        let found = store.a.sessions.get(&session.id).await.unwrap();
        there.push(found.is_some());
    }
    assert_eq!(there, [true, true, false, false]);
    assert_eq!(store.a.read(&resource("r")).await.value, held.value);
}

#[tokio::test]
async fn most_recently_written_free_locks_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let held = store.a.make_and_take(&resource("held"), "g-a").await;
    drop(store);
    let first = FIRST.0 + 100;
    let last = first + FREE;
    put_free_locks(
        directory.path(),
        last,
        (first..=last).map(|at| (at, (at - 1) * 1_000)),
    );
    let store = open(directory.path());
    let there = names(&store).await;
    assert_eq!(there.len() as u64, FREE + 1);
    assert!(!there.contains(&format!("free-{first}")));
    assert!(there.contains(&format!("free-{}", first + 1)));
    assert_eq!(store.a.read(&resource("held")).await.value, held.value);

    // The next start has nothing to clean up, and writes nothing.
    let revision = store.a.locks.list(1, None).await.unwrap().revision;
    drop(store);
    let store = open(directory.path());
    assert_eq!(names(&store).await, there);
    let page = store.a.locks.list(1, None).await.unwrap();
    assert_eq!(page.revision, revision);
}

/// For example after a token floor that was given once. If the lock were deleted, it would begin
/// below its own last token.
#[tokio::test]
async fn free_lock_with_a_token_above_the_revision_stays() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let first = FIRST.0 + 100;
    let last = first + FREE + 1;
    let ahead = |at: u64| match at - first {
        0 => last * 1_000,
        _ => (at - 1) * 1_000,
    };
    put_free_locks(
        directory.path(),
        last,
        (first..=last).map(|at| (at, ahead(at))),
    );
    let there = names(&open(directory.path())).await;
    assert!(there.contains(&format!("free-{first}")));
    assert!(!there.contains(&format!("free-{}", first + 1)));
}

/// This version must not discard fields that a newer version wrote.
#[tokio::test]
async fn a_free_lock_with_fields_of_a_newer_version_stays() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let newer = resource("newer");
    store.a.locks.create(&newer).await.unwrap();
    let edit = |lock: &mut serde_json::Value| lock["new"] = json!(1);
    store.store.edit_lock_document(&newer, edit).await.unwrap();
    drop(store);
    let first = FIRST.0 + 100;
    let last = first + FREE;
    put_free_locks(
        directory.path(),
        last,
        (first..=last).map(|at| (at, (at - 1) * 1_000)),
    );
    let there = names(&open(directory.path())).await;
    assert!(there.contains(&"newer".to_owned()));
    assert!(!there.contains(&format!("free-{first}")));
}

#[tokio::test]
async fn removed_lock_begins_again_above_its_last_token() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let first = FIRST.0 + 100;
    let last = first + FREE;
    // The largest token of a lock that may be removed.
    let token = last * 1_000 - 1;
    put_free_locks(directory.path(), last, (first..=last).map(|at| (at, token)));
    let store = open(directory.path());
    let gone = resource(&format!("free-{first}"));
    assert!(store.a.locks.get(&gone).await.unwrap().is_none());
    let made = store.a.locks.create(&gone).await.unwrap();
    assert!(Revision(made.version.0).scale() > u128::from(token) + 999);
}

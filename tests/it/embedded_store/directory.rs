//! The data directory: private to its owner, used by one process, refused if it is damaged, and
//! never changed by a refusal.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use leasehold::protocol::ids::Resource;
use leasehold::protocol::token::Revision;
use leasehold::store::LockStore;
use leasehold::store::embedded::{EmbeddedStore, OpenError};
use redb::{Database, TableDefinition};
use rustix::process::{PidfdFlags, PidfdGetfdFlags};
use tempfile::TempDir;

use super::FIRST;
use crate::seed::seed;

const FILE: &str = "leasehold.redb";

fn resource(name: &str) -> Resource {
    Resource::parse(name).unwrap()
}

/// Creates a directory with a hundred locks, closed cleanly. Returns it with its last revision.
async fn filled() -> (TempDir, Revision) {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    for n in 0..100 {
        let resource = resource(&format!("resource-number-{n:03}"));
        store.create(&resource).await.unwrap();
    }
    let revision = store.list(1, None).await.unwrap().revision;
    (directory, revision)
}

/// Returns the error of opening it, and asserts that the refusal did not change the file.
fn refusal(directory: &Path) -> OpenError {
    let path = directory.join(FILE);
    let before = fs::read(&path).unwrap();
    let refused = EmbeddedStore::open(directory, FIRST);
    let refused = refused.err().expect("a refusal");
    assert!(fs::read(&path).unwrap() == before, "the file was changed");
    refused
}

fn is_damaged(refused: &OpenError) {
    let words = refused.to_string();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{words}");
    assert!(
        words.contains("is damaged") && words.contains("left as it is"),
        "{words}"
    );
    assert!(
        words.contains(FILE) && words.contains("start a new one"),
        "{words}"
    );
}

#[tokio::test]
async fn reopened_store_contains_all_written_locks() {
    let (directory, revision) = filled().await;
    for _ in 0..3 {
        let store = EmbeddedStore::open(directory.path(), Revision(1)).unwrap();
        let page = store.list(0, None).await.unwrap();
        assert_eq!((page.items.len(), page.revision), (100, revision));
    }
    let store = EmbeddedStore::open(directory.path(), Revision(1 << 40)).unwrap();
    let made = store.create(&resource("another")).await.unwrap();
    assert_eq!(made.version, Revision(revision.0 + 1));
}

#[tokio::test]
async fn store_that_replaces_a_moved_one_continues_above_it() {
    let (directory, revision) = filled().await;
    fs::rename(
        directory.path().join(FILE),
        directory.path().join("damaged"),
    )
    .unwrap();
    let store = EmbeddedStore::open(directory.path(), Revision(1)).unwrap();
    let page = store.list(0, None).await.unwrap();
    assert!(page.items.is_empty() && page.revision > revision);
}

#[tokio::test]
async fn new_directory_is_private_to_its_owner() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("deep/down");
    let _store = EmbeddedStore::open(&directory, FIRST).unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.clone()), 0o700);
    assert_eq!(mode(directory.join(FILE)), 0o600);
}

#[tokio::test]
async fn existing_directory_keeps_its_mode_and_its_files_are_private() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let _store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.path()), 0o755);
    for file in [FILE, "lock", "acknowledged"] {
        assert_eq!(mode(&directory.path().join(file)), 0o600, "{file}");
    }
}

#[tokio::test]
async fn a_second_user_of_the_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    let refused = EmbeddedStore::open(directory.path(), FIRST).err().unwrap();
    assert!(matches!(refused, OpenError::InUse { .. }));
    let words = format!("in use by another process ({})", std::process::id());
    assert!(refused.to_string().contains(&words), "{refused}");
    drop(store);
    EmbeddedStore::open(directory.path(), FIRST).unwrap();
}

/// A program that starts another one has copies of its files in the new process for a moment.
#[tokio::test]
async fn directory_is_free_at_once_beside_the_start_of_a_program() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    let _copies = copies_of_open_files(directory.path());
    drop(store);
    EmbeddedStore::open(directory.path(), FIRST).unwrap();
}

/// Returns copies of this process's open files in a directory, as a new process gets them.
fn copies_of_open_files(directory: &Path) -> Vec<OwnedFd> {
    let this = rustix::process::getpid();
    let this = rustix::process::pidfd_open(this, PidfdFlags::empty()).unwrap();
    let open = fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap);
    let within = open.filter(|open| {
        let file = fs::read_link(open.path());
        file.is_ok_and(|file| file.starts_with(directory))
    });
    let copies: Vec<_> = within
        .map(|open| open.file_name().to_str().unwrap().parse().unwrap())
        .map(|number| rustix::process::pidfd_getfd(&this, number, PidfdGetfdFlags::empty()))
        .map(Result::unwrap)
        .collect();
    assert!(!copies.is_empty(), "no file is open");
    copies
}

#[tokio::test]
async fn process_id_is_in_the_directory_while_it_is_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let id = || fs::read_to_string(directory.path().join("lock")).unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    assert_eq!(id(), format!("{}\n", std::process::id()));
    let _refused = EmbeddedStore::open(directory.path(), FIRST).err().unwrap();
    assert_eq!(id(), format!("{}\n", std::process::id()));
    drop(store);
    assert_eq!(id(), "");
}

#[tokio::test]
async fn file_open_elsewhere_does_not_count_as_damaged() {
    let (directory, revision) = filled().await;
    let other = Database::open(directory.path().join(FILE)).unwrap();
    let refused = refusal(directory.path());
    assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
    drop(other);
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    assert_eq!(store.list(1, None).await.unwrap().revision, revision);
}

#[tokio::test]
async fn file_that_cannot_be_created_does_not_count_as_damaged() {
    let directory = tempfile::tempdir().unwrap();
    // The path of the new file is a device that accepts no data, like a full disk.
    let unfinished = directory.path().join("leasehold.redb.new");
    std::os::unix::fs::symlink("/dev/full", &unfinished).unwrap();
    let refused = EmbeddedStore::open(directory.path(), FIRST).err().unwrap();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
    assert!(
        refused.to_string().contains("redb.new cannot be used"),
        "{refused}"
    );
}

#[tokio::test]
async fn directory_that_cannot_be_created_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let file = parent.path().join("file");
    fs::write(&file, "x").unwrap();
    let refused = EmbeddedStore::open(&file.join("below"), FIRST)
        .err()
        .unwrap();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains("file/below"));
}

#[tokio::test]
async fn changed_bytes_are_detected() {
    let (directory, revision) = filled().await;
    let path = directory.path().join(FILE);
    let good = fs::read(&path).unwrap();
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut noticed = 0;
    for round in 0..60 {
        // Anywhere in the file, and half of the time in its header.
        let place = match round % 2 {
            0 => random.usize(..good.len().min(320)),
            _ => random.usize(..good.len()),
        };
        let mut bad = good.clone();
        bad[place] ^= 1 << random.u8(..8);
        fs::write(&path, &bad).unwrap();
        match EmbeddedStore::open(directory.path(), FIRST) {
            Err(refused) => {
                is_damaged(&refused);
                assert!(fs::read(&path).unwrap() == bad, "the file was changed");
                noticed += 1;
            }
            // An unused byte was changed, which damages nothing: then everything is there.
            Ok(store) => {
                let page = store.list(0, None).await.unwrap();
                let there = (page.items.len(), page.revision, page.unreadable.len());
                assert_eq!(there, (100, revision, 0), "byte {place}, seed {seed}");
            }
        }
    }
    assert!(noticed > 0, "seed {seed}");
}

#[tokio::test]
async fn every_page_of_documents_is_checked() {
    let (directory, _) = filled().await;
    let path = directory.path().join(FILE);
    let good = fs::read(&path).unwrap();
    let needle = b"resource-number-05";
    let places: Vec<_> = good
        .windows(needle.len())
        .enumerate()
        .filter(|(_, window)| window == needle)
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty());
    let mut bad = good.clone();
    for place in places {
        bad[place + 3] = b'X';
    }
    fs::write(&path, bad).unwrap();
    is_damaged(&refusal(directory.path()));
}

#[tokio::test]
async fn file_that_is_not_a_store_is_refused() {
    let (directory, _) = filled().await;
    let path = directory.path().join(FILE);
    let good = fs::read(&path).unwrap();
    let mut chance = fastrand::Rng::with_seed(seed());
    let random: Vec<u8> = (0..100_000).map(|_| chance.u8(..)).collect();
    let other_database = {
        let path = directory.path().join("other");
        drop(Database::create(&path).unwrap());
        fs::read(path).unwrap()
    };
    for bytes in [
        Vec::new(),
        b"hello".to_vec(),
        random,
        good[..good.len() / 2].to_vec(),
        good[..4096].to_vec(),
        good[..100].to_vec(),
        [vec![0; 4096], good[4096..].to_vec()].concat(),
        other_database,
    ] {
        fs::write(&path, &bytes).unwrap();
        is_damaged(&refusal(directory.path()));
    }
    fs::write(&path, &good).unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    assert_eq!(store.list(0, None).await.unwrap().items.len(), 100);
}

#[tokio::test]
async fn a_newer_versions_file_is_refused() {
    let (directory, _) = filled().await;
    let path = directory.path().join(FILE);
    let meta = TableDefinition::<&str, u64>::new("meta");
    let database = Database::open(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(meta).unwrap().insert("format", 2).unwrap();
    write.commit().unwrap();
    drop(database);
    let refused = refusal(directory.path());
    assert!(
        matches!(refused, OpenError::Newer { found: 2, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn file_left_unfinished_by_a_crash_is_recreated() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("leasehold.redb.new"), "half").unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    assert_eq!(store.list(0, None).await.unwrap().items.len(), 0);
}

/// One bit of the header selects the newer of the last two commits. No checksum covers it.
#[tokio::test]
async fn file_without_the_last_commit_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    for name in ["one", "two", "three"] {
        store.create(&resource(name)).await.unwrap();
    }
    let path = directory.path().join(FILE);
    let mut as_a_crash_leaves_it = fs::read(&path).unwrap();
    drop(store);
    as_a_crash_leaves_it[9] ^= 1;
    fs::write(&path, as_a_crash_leaves_it).unwrap();
    is_damaged(&refusal(directory.path()));
}

#[tokio::test]
async fn an_older_copy_of_the_file_is_refused() {
    let (directory, _) = filled().await;
    let path = directory.path().join(FILE);
    let copy = fs::read(&path).unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    store.create(&resource("another")).await.unwrap();
    drop(store);
    fs::write(&path, copy).unwrap();
    let refused = refusal(directory.path());
    is_damaged(&refused);
    assert!(refused.to_string().contains("revision 1100"), "{refused}");
}

#[tokio::test]
async fn unreadable_revision_record_is_rewritten() {
    let (directory, _) = filled().await;
    let (path, noted) = (
        directory.path().join(FILE),
        directory.path().join("acknowledged"),
    );
    let copy = fs::read(&path).unwrap();
    fs::write(&noted, [b'x'; 100]).unwrap();
    let store = EmbeddedStore::open(directory.path(), FIRST).unwrap();
    store.create(&resource("another")).await.unwrap();
    drop(store);
    // From here on an older copy is detected again.
    fs::write(&path, copy).unwrap();
    let refused = refusal(directory.path());
    assert!(refused.to_string().contains("1101 was"), "{refused}");
}

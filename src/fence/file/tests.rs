//! The file in real directories, after errors, and on a disk that loses what was not synced.

use std::sync::{Arc, Mutex};

use super::*;

fn report() -> Resource {
    Resource::parse("report").unwrap()
}

fn tokens(recorded: &Recorded) -> Vec<(String, u64)> {
    let tokens = recorded.tokens.iter();
    tokens.map(|(r, t)| (r.to_string(), t.get())).collect()
}

#[tokio::test]
async fn largest_token_and_orderly_stop_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("a/b");
    let (state, recorded) = StateFile::open(&directory).unwrap();
    assert!(recorded.tokens.is_empty() && !recorded.is_settled);
    for token in [5, 7, 6] {
        state
            .record(&report(), Token::from_raw(token))
            .await
            .unwrap();
    }
    state.settle().await.unwrap();
    drop(state);
    let (state, recorded) = reopened(&directory);
    assert_eq!(tokens(&recorded), [("report".to_owned(), 7)]);
    assert!(recorded.is_settled);
    // As after a crash.
    drop(state);
    assert!(!reopened(&directory).1.is_settled);
}

/// The thread of the file before it may not have ended yet.
fn reopened(directory: &Path) -> (StateFile, Recorded) {
    loop {
        match StateFile::open(directory) {
            Err(StateError::InUse { .. }) => thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

#[tokio::test]
async fn second_fence_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let _first = StateFile::open(directory.path()).unwrap();
    let second = StateFile::open(directory.path());
    assert!(matches!(second, Err(StateError::InUse { .. })));
}

#[test]
fn unusable_files_are_left_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(FILE);
    fs::write(&path, "not a database, but long enough to be read as one").unwrap();
    let damaged = StateFile::open(directory.path()).err().unwrap();
    assert!(matches!(damaged, StateError::Damaged { .. }), "{damaged}");
    assert!(fs::read(&path).unwrap().starts_with(b"not a database"));
    let file = StateFile::open(&path).err().unwrap();
    assert!(matches!(file, StateError::Io { .. }), "{file}");
}

#[test]
fn file_of_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    lock(directory.path()).unwrap();
    create(directory.path()).unwrap();
    let database = builder().open(directory.path().join(FILE)).unwrap();
    let transaction = database.begin_write().unwrap();
    let newer = FORMAT_NOW + 1;
    transaction
        .open_table(META)
        .unwrap()
        .insert(FORMAT, newer)
        .unwrap();
    transaction.commit().unwrap();
    drop(database);
    let refused = StateFile::open(directory.path()).err().unwrap();
    assert!(matches!(refused, StateError::Newer { .. }), "{refused}");
}

#[test]
fn interrupted_creation_is_repeated() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(UNFINISHED), "half").unwrap();
    assert!(StateFile::open(directory.path()).is_ok());
}

/// A disk that may lose what was written after its last sync. Each sync waits until the test permits it.
#[derive(Debug)]
struct Disk {
    written: Mutex<Vec<u8>>,
    synced: Arc<Mutex<Vec<u8>>>,
    syncs: mpsc::UnboundedSender<Permit>,
}

type Permit = std::sync::mpsc::Sender<()>;

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.written.lock().unwrap()[offset..][..out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap();
        self.written.lock().unwrap().resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let (permit, permitted) = std::sync::mpsc::channel();
        // When the test no longer receives, no sync waits.
        drop(self.syncs.send(permit));
        let _not_waited = permitted.recv();
        self.synced
            .lock()
            .unwrap()
            .clone_from(&self.written.lock().unwrap());
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        self.written.lock().unwrap()[offset..][..data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[tokio::test]
async fn recorded_token_survives_a_loss_of_power() {
    let (syncs, mut waiting) = mpsc::unbounded_channel();
    let synced = Arc::new(Mutex::new(Vec::new()));
    let disk = Disk {
        written: Mutex::default(),
        synced: synced.clone(),
        syncs: syncs.clone(),
    };
    let (writes, incoming) = mpsc::unbounded_channel();
    thread::spawn(move || {
        let database = builder().create_with_backend(disk).unwrap();
        write_all(Path::new("unused"), Some(database), incoming);
    });
    let lock = tempfile::tempfile().unwrap();
    let state = StateFile {
        writes,
        _lock: lock,
    };
    let (report, token) = (report(), Token::from_raw(7));
    let mut record = state.record(&report, token);
    // The record is polled before the next sync is permitted: a record that returns too early lacks that sync.
    loop {
        tokio::select! {
            biased;
            recorded = &mut record => break recorded.unwrap(),
            Some(permit) = waiting.recv() => permit.send(()).unwrap(),
        }
    }
    let written = Mutex::new(synced.lock().unwrap().clone());
    drop(waiting);
    let after = Disk {
        written,
        synced,
        syncs,
    };
    let database = builder().create_with_backend(after).unwrap();
    let (_, recorded) = read(&database).unwrap();
    assert_eq!(tokens(&recorded), [("report".to_owned(), 7)]);
}

/// As after a full disk, which redb reports until the database is opened again.
#[test]
fn database_is_opened_again_after_an_error() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path()).unwrap();
    let (done, _result) = oneshot::channel();
    let change = Change::Token(report(), Token::from_raw(5));
    let batch = [Write { change, done }];
    let mut database = None;
    let away = directory.path().join("away");
    assert!(write_batch(&away, &mut database, &batch).is_err());
    assert!(database.is_none());
    write_batch(&directory.path().join(FILE), &mut database, &batch).unwrap();
    assert_eq!(
        tokens(&read(&database.unwrap()).unwrap().1),
        [("report".to_owned(), 5)]
    );
}

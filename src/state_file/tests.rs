//! The file on a disk: a read returns what was written, or nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn open(directory: &TempDir) -> StateFile {
    StateFile::open(directory.path()).unwrap().unwrap()
}

/// Returns what a new process reads.
fn found(directory: &TempDir) -> Past {
    open(directory).read().unwrap()
}

fn records(count: usize) -> Vec<Vec<u8>> {
    let record = |n| format!("{{\"record\":{n}}}").into_bytes();
    (0..count).map(record).collect()
}

fn replace(file: &mut StateFile, count: usize) -> io::Result<()> {
    file.replace(&mut records(count).into_iter().map(Ok))
}

/// Writes a file with `count` records, each appended, and returns its content.
fn written(directory: &TempDir, count: usize) -> Vec<u8> {
    let mut file = open(directory);
    replace(&mut file, 0).unwrap();
    for record in records(count) {
        file.append(&record).unwrap();
    }
    fs::read(directory.path().join(FILE)).unwrap()
}

#[test]
fn next_process_reads_appended_records_and_continues() {
    let directory = directory();
    assert_eq!(found(&directory), Past::Nothing);
    written(&directory, 3);
    let mut next = open(&directory);
    assert_eq!(next.read().unwrap(), Past::Records(records(3)));
    next.append(&records(4)[3]).unwrap();
    drop(next);
    assert_eq!(found(&directory), Past::Records(records(4)));
}

#[test]
fn file_is_private_to_its_owner_and_to_one_process() {
    let directory = directory();
    written(&directory, 1);
    let mode = fs::metadata(directory.path().join(FILE)).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    let first = open(&directory);
    assert!(StateFile::open(directory.path()).unwrap().is_none());
    // A program that starts another one has a copy in the new process for a moment.
    let _copy = first.lock.try_clone().unwrap();
    drop(first);
    assert!(StateFile::open(directory.path()).unwrap().is_some());
}

#[test]
fn replacing_removes_all_old_records() {
    let directory = directory();
    written(&directory, 30);
    let mut file = open(&directory);
    file.read().unwrap();
    let before = file.bytes();
    replace(&mut file, 2).unwrap();
    assert!(file.bytes() < before);
    file.append(&records(3)[2]).unwrap();
    drop(file);
    assert_eq!(found(&directory), Past::Records(records(3)));
}

#[test]
fn failed_replacement_leaves_the_file_usable() {
    let directory = directory();
    written(&directory, 3);
    let mut file = open(&directory);
    file.read().unwrap();
    // Even root cannot write to a directory as if it were a file.
    let unfinished = directory.path().join(UNFINISHED);
    fs::create_dir(&unfinished).unwrap();
    assert!(replace(&mut file, 1).is_err());
    fs::remove_dir(&unfinished).unwrap();
    // A record that cannot be created fails the replacement, and is not left out.
    let mut broken = vec![Ok(b"{}".to_vec()), Err(io::ErrorKind::Other.into())].into_iter();
    assert!(file.replace(&mut broken).is_err());
    assert!(!unfinished.exists());
    file.append(&records(4)[3]).unwrap();
    drop(file);
    assert_eq!(found(&directory), Past::Records(records(4)));
}

#[test]
fn crash_during_a_replacement_leaves_the_old_or_the_new_file() {
    let directory = directory();
    let old = written(&directory, 3);
    let (file, unfinished) = (
        directory.path().join(FILE),
        directory.path().join(UNFINISHED),
    );
    let whole = written(&self::directory(), 2);
    for new in [&b""[..], &whole[..whole.len() / 2], &whole[..]] {
        // A crash before the rename, with any part of the new file written.
        fs::write(&file, &old).unwrap();
        fs::write(&unfinished, new).unwrap();
        assert_eq!(found(&directory), Past::Records(records(3)));
        assert!(!unfinished.exists());
    }
    // A file that was not renamed has no owner, even if no other file exists.
    fs::remove_file(&file).unwrap();
    fs::write(&unfinished, &whole).unwrap();
    assert_eq!(found(&directory), Past::Nothing);
    // A crash after the rename.
    fs::write(&file, &whole).unwrap();
    assert_eq!(found(&directory), Past::Records(records(2)));
}

#[test]
fn void_file_is_never_read_and_a_refused_one_is_kept_once() {
    let directory = directory();
    written(&directory, 3);
    let mut file = open(&directory);
    file.read().unwrap();
    file.void().unwrap();
    assert!(file.append(b"{}").is_err());
    drop(file);
    assert_eq!(found(&directory), Past::Nothing);

    let text = written(&directory, 2);
    open(&directory).set_aside().unwrap();
    assert_eq!(found(&directory), Past::Nothing);
    assert_eq!(fs::read(directory.path().join(REFUSED)).unwrap(), text);
}

#[test]
fn unusable_directory_is_an_error_that_names_the_reason() {
    let directory = directory();
    let missing = directory.path().join("missing");
    let Err(error) = StateFile::open(&missing) else {
        panic!("it was opened");
    };
    assert!(error.to_string().contains("does not exist"), "{error}");
    // Even root cannot create a file where a directory is.
    fs::create_dir(directory.path().join(UNFINISHED)).unwrap();
    assert!(matches!(
        StateFile::open(directory.path()),
        Err(OpenError::Io { .. })
    ));
}

#[test]
fn non_regular_file_is_refused_without_waiting() {
    let directory = directory();
    let path = directory.path().join(FILE);
    // It stands for a pipe, and needs no child process. A child that is being started has a copy of
    // every open file, including the locks of the tests that run at the same time.
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let mut file = StateFile::open(directory.path()).unwrap().unwrap();
    let error = file.read().unwrap_err();
    assert!(
        format!("{error:?}").contains("no regular file"),
        "{error:?}"
    );
}

#[test]
fn a_file_of_another_version_is_refused_by_name() {
    let directory = directory();
    let path = directory.path().join(FILE);
    fs::write(&path, "leasehold-state 2 00000000000000000000\n").unwrap();
    let Past::Damaged(words) = found(&directory) else {
        panic!("it was read");
    };
    assert!(words.contains("\"2\""), "{words}");
}

#[test]
fn crash_during_a_write_keeps_all_acknowledged_records() {
    let directory = directory();
    let two = written(&directory, 2);
    let three = written(&directory, 3);
    let path = directory.path().join(FILE);
    // Some or all bytes of the record are written, and the count is not.
    for cut in two.len()..=three.len() {
        let mut torn = two.clone();
        torn.extend_from_slice(&three[two.len()..cut]);
        fs::write(&path, &torn).unwrap();
        let whole = if cut == three.len() { 3 } else { 2 };
        assert_eq!(
            found(&directory),
            Past::Records(records(whole)),
            "cut at {cut}"
        );
        // The next process continues after the last complete record, as after a normal stop.
        let mut next = open(&directory);
        next.read().unwrap();
        next.append(b"next").unwrap();
        drop(next);
        let Past::Records(all) = found(&directory) else {
            panic!("cut at {cut}");
        };
        assert_eq!(
            (all.len(), all.last().unwrap().as_slice()),
            (whole + 1, &b"next"[..])
        );
    }
}

#[test]
fn truncated_file_is_refused() {
    let directory = directory();
    let whole = written(&directory, 4);
    for cut in 0..whole.len() {
        fs::write(directory.path().join(FILE), &whole[..cut]).unwrap();
        assert!(
            matches!(found(&directory), Past::Damaged(_)),
            "cut at {cut}"
        );
    }
}

#[test]
fn removed_swapped_or_repeated_lines_are_refused() {
    let directory = directory();
    let text = String::from_utf8(written(&directory, 4)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    for changed in [
        vec![0, 1, 2, 4],
        vec![0, 2, 1, 3, 4],
        vec![0, 1, 2, 3, 3, 4],
        vec![0, 2, 3, 4],
        vec![0, 1, 2, 3, 4, 4],
    ] {
        let changed: Vec<&str> = changed.into_iter().map(|n: usize| lines[n]).collect();
        let changed = changed.join("\n") + "\n";
        fs::write(directory.path().join(FILE), &changed).unwrap();
        assert!(matches!(found(&directory), Past::Damaged(_)), "{changed}");
    }
}

proptest! {
    /// One byte at any position is changed to any value. The file is refused, or reads as what was
    /// written. (Only a change of the count can be valid: to one less, as a crashed writer leaves
    /// it.)
    #[test]
    fn changed_byte_is_never_read_as_another_record(
        count in 0_usize..5,
        place in any::<prop::sample::Index>(),
        to in any::<u8>(),
    ) {
        let directory = directory();
        let mut text = written(&directory, count);
        let place = place.index(text.len());
        prop_assume!(text[place] != to);
        text[place] = to;
        fs::write(directory.path().join(FILE), &text).unwrap();
        match found(&directory) {
            Past::Damaged(_) => {}
            read => prop_assert_eq!(read, Past::Records(records(count))),
        }
    }
}

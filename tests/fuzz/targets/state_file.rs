//! Arbitrary bytes as a sidecar's state file. The file is read as it was written, or refused with a
//! message and moved aside unchanged. Records that are read were in the file, and later records
//! follow them.

use std::fs;
use std::io;
use std::path::Path;

use leasehold::agent::{Journal as _, Past};
use leasehold::state_file::StateFile;

use super::{Outcome, Target};

/// The first line: the magic, the format, and the number of records.
const HEAD: usize = "leasehold-state 1 00000000000000000000\n".len();

pub(crate) const TARGET: Target = Target {
    name: "state_file",
    run: |input| target(input, read),
    broken: |input| target(input, without_sums),
    seeds: written,
    words: &[
        "leasehold-state ",
        "leasehold-state 1 ",
        "leasehold-state 2 ",
        "00000000000000000000",
        "00000000000000000001",
        "00000000000000000003",
        "99999999999999999999",
        "\n",
        "{\"agent\":",
        "{\"sessionOver\":",
    ],
    tries: 3_000,
};

fn target(input: &[u8], read: fn(&mut StateFile, &Path) -> Past) -> Outcome {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    fs::write(&path, input).unwrap();
    let mut file = StateFile::open(directory.path())
        .unwrap()
        .expect("no other process has it");
    match read(&mut file, directory.path()) {
        Past::Nothing => panic!("there is a file of {} bytes", input.len()),
        Past::Damaged(words) => {
            assert!(words.len() > 10, "{words:?} says nothing");
            assert_put_aside(file, input);
            Outcome::Refused(
                words
                    .chars()
                    .filter(char::is_ascii_alphabetic)
                    .take(40)
                    .collect(),
            )
        }
        Past::Records(records) => {
            assert_as_written(input, &records, &path);
            assert_goes_on(file, records.clone(), directory.path());
            Outcome::Taken(format!("{} records", records.len()))
        }
    }
}

fn read(file: &mut StateFile, _directory: &Path) -> Past {
    file.read().expect("the disk is well")
}

/// A refused file is kept for inspection, and never read again.
fn assert_put_aside(mut file: StateFile, input: &[u8]) {
    let refused = file.set_aside().expect("it can be put aside");
    assert_eq!(fs::read(refused).unwrap(), input);
    assert_eq!(file.read().unwrap(), Past::Nothing);
}

/// Asserts that the same records, written again, give the same file, except for a truncated last
/// line and the count.
fn assert_as_written(input: &[u8], records: &[Vec<u8>], path: &Path) {
    let anew = tempfile::tempdir().unwrap();
    let mut file = StateFile::open(anew.path()).unwrap().unwrap();
    replace(&mut file, records).unwrap();
    let expected = fs::read(anew.path().join("state")).unwrap();
    assert_eq!(
        fs::read(path).unwrap(),
        expected,
        "what is read is not what is there"
    );
    assert!(
        input[HEAD..].starts_with(&expected[HEAD..]),
        "there were other records in it"
    );
}

fn assert_goes_on(mut file: StateFile, mut records: Vec<Vec<u8>>, directory: &Path) {
    file.append(b"one more").expect("the disk is well");
    drop(file);
    records.push(b"one more".to_vec());
    let mut again = StateFile::open(directory).unwrap().unwrap();
    assert_eq!(again.read().unwrap(), Past::Records(records));
}

fn replace(file: &mut StateFile, records: &[Vec<u8>]) -> io::Result<()> {
    file.replace(&mut records.iter().cloned().map(Ok))
}

/// Returns a file as it is written, one truncated within a record, and one truncated between a
/// record and the count.
fn written() -> Vec<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let mut file = StateFile::open(directory.path()).unwrap().unwrap();
    let records = [&b"{\"agent\":{}}"[..], b"{\"lease\":{\"id\":\"g.0\"}}"].map(<[u8]>::to_vec);
    replace(&mut file, &records).unwrap();
    let counted = fs::read(directory.path().join("state")).unwrap();
    file.append(b"\"sessionOver\"").unwrap();
    let whole = fs::read(directory.path().join("state")).unwrap();
    let in_a_record = whole[..whole.len() - 3].to_vec();
    let uncounted = [&counted[..HEAD], &whole[HEAD..]].concat();
    vec![whole, in_a_record, uncounted]
}

/// Planted fault: accepts each line as a record, whatever its checksum is.
fn without_sums(file: &mut StateFile, directory: &Path) -> Past {
    match read(file, directory) {
        Past::Damaged(words) if words.contains("checksum") => {
            let text = fs::read(directory.join("state")).unwrap();
            let lines = text[HEAD..].split(|byte| *byte == b'\n');
            Past::Records(lines.map(<[u8]>::to_vec).collect())
        }
        past => past,
    }
}

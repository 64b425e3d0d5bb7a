//! The format of the state file. The first line has the format and the number of records. Each
//! record is one line, with a checksum over it and everything before it.
//!
//! The checksums detect damage, and mixed lines of two files. They are no protection against a
//! writer of the file, who can compute them. The count distinguishes a file that was cut between
//! lines from one whose writer ended there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use sha2::{Digest as _, Sha256};

/// The only format that this version writes and reads.
const FORMAT: &str = "1";
/// The start of a state file; the format follows.
const MAGIC: &str = "leasehold-state ";
/// The offset of the count: after the magic, the format and a space.
const COUNT_AT: usize = MAGIC.len() + FORMAT.len() + 1;
/// The number of its digits, enough for every `u64`.
const COUNT_DIGITS: usize = 20;
/// The length of the first line.
const HEAD: usize = COUNT_AT + COUNT_DIGITS + 1;
/// The number of hexadecimal digits of a checksum.
const SUM_DIGITS: usize = 32;
/// The length of a line besides its record: the checksum, a space and the line break.
pub(super) const OVERHEAD: usize = SUM_DIGITS + 2;

/// Why a file is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Damage {
    /// The first line is not a state file's.
    #[error("it is not a state file, or its header is damaged")]
    NoStateFile,
    /// Another version wrote it.
    #[error("it has the format {0:?}, and this version knows {FORMAT:?}")]
    UnknownFormat(String),
    /// Bytes were changed.
    #[error("record {0} is damaged: its checksum does not match")]
    BadSum(u64),
    /// Records at its end are missing.
    #[error("it is cut: {there} of {counted} records are there")]
    Cut {
        /// The number of complete records.
        there: u64,
        /// The number of records in the first line.
        counted: u64,
    },
    /// It has more records than an interrupted write explains.
    #[error("it has {there} records and counts {counted}")]
    TooMany {
        /// The number of complete records.
        there: u64,
        /// The number of records in the first line.
        counted: u64,
    },
}

/// The checksum of all records so far.
#[derive(Clone)]
pub(super) struct Chain([u8; 32]);

impl Chain {
    fn begin() -> Self {
        Self(Sha256::digest([MAGIC, FORMAT].concat()).into())
    }

    fn add(&mut self, record: &[u8]) {
        let sum = Sha256::new().chain_update(self.0).chain_update(record);
        self.0 = sum.finalize().into();
    }

    fn text(&self) -> [u8; SUM_DIGITS] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; SUM_DIGITS];
        for (pair, byte) in text.chunks_exact_mut(2).zip(self.0) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        text
    }

    /// Appends the line of a record. A record has no line break.
    pub(super) fn frame(&mut self, record: &[u8], line: &mut Vec<u8>) {
        self.add(record);
        line.extend_from_slice(&self.text());
        line.push(b' ');
        line.extend_from_slice(record);
        line.push(b'\n');
    }
}

/// An undamaged file.
pub(super) struct Framed<'a> {
    pub(super) records: Vec<&'a [u8]>,
    pub(super) chain: Chain,
    /// The end of its last complete record.
    pub(super) bytes: u64,
}

impl<'a> Framed<'a> {
    /// Reads a file.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Damage> {
        let (counted, body) = parse_head(bytes)?;
        let mut framed = Self {
            records: Vec::new(),
            chain: Chain::begin(),
            bytes: HEAD as u64,
        };
        let mut rest = body;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, behind) = rest.split_at(end + 1);
            framed.take(&line[..end])?;
            framed.bytes += line.len() as u64;
            rest = behind;
        }
        // Anything after the last line break was cut while it was written, and does not count.
        let there = framed.records.len() as u64;
        if there < counted {
            return Err(Damage::Cut { there, counted });
        }
        if there > counted + 1 || (there > counted && !rest.is_empty()) {
            return Err(Damage::TooMany { there, counted });
        }
        Ok(framed)
    }

    fn take(&mut self, line: &'a [u8]) -> Result<(), Damage> {
        let number = self.records.len() as u64 + 1;
        let (sum, record) = line
            .split_at_checked(SUM_DIGITS + 1)
            .ok_or(Damage::BadSum(number))?;
        self.chain.add(record);
        if sum.strip_suffix(b" ") != Some(&self.chain.text()) {
            return Err(Damage::BadSum(number));
        }
        self.records.push(record);
        Ok(())
    }
}

fn parse_head(bytes: &[u8]) -> Result<(u64, &[u8]), Damage> {
    let behind = bytes.strip_prefix(MAGIC.as_bytes());
    let behind = behind.ok_or(Damage::NoStateFile)?;
    let end = behind.iter().position(|byte| matches!(byte, b' ' | b'\n'));
    let format = &behind[..end.ok_or(Damage::NoStateFile)?];
    if format != FORMAT.as_bytes() {
        let format = String::from_utf8_lossy(&format[..format.len().min(32)]);
        return Err(Damage::UnknownFormat(format.into_owned()));
    }
    let (head, body) = bytes.split_at_checked(HEAD).ok_or(Damage::NoStateFile)?;
    let count = head.get(COUNT_AT..HEAD - 1).unwrap_or_default();
    let is_whole = head.ends_with(b"\n") && count.iter().all(u8::is_ascii_digit);
    let count = std::str::from_utf8(count).ok().filter(|_| is_whole);
    let count = count.and_then(|count| count.parse().ok());
    Ok((count.ok_or(Damage::NoStateFile)?, body))
}

/// A whole file, to be written at once.
pub(super) struct Composed {
    pub(super) text: Vec<u8>,
    pub(super) chain: Chain,
    pub(super) records: u64,
}

/// Composes a file, with one copy of the records in memory.
pub(super) fn compose(
    records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
) -> io::Result<Composed> {
    let mut composed = Composed {
        text: head(0),
        chain: Chain::begin(),
        records: 0,
    };
    for record in records {
        composed.chain.frame(&record?, &mut composed.text);
        composed.records += 1;
    }
    composed.text[..HEAD].copy_from_slice(&head(composed.records));
    Ok(composed)
}

fn head(records: u64) -> Vec<u8> {
    format!("{MAGIC}{FORMAT} {records:0COUNT_DIGITS$}\n").into_bytes()
}

/// Writes the number of complete records to the first line. A process cannot die in the middle of
/// it: the bytes are few, and in one page.
pub(super) fn write_count(file: &File, records: u64) -> io::Result<()> {
    let count = format!("{records:0COUNT_DIGITS$}");
    file.write_all_at(count.as_bytes(), COUNT_AT as u64)
}

//! A pod's memory volume: the state file of its sidecar, which outlives the process.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::agent::{Journal, Memory, Past};

type Records = Vec<Vec<u8>>;

/// The volume. Cloning gives another handle to the same one.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    /// `None` without a file.
    file: Option<Records>,
    /// How many times a record on file was lost.
    forgot: u64,
    /// The process that has it open. Later writes of earlier processes are discarded.
    process: u64,
}

/// The state file, as opened by one process.
struct File {
    disk: Disk,
    process: u64,
}

impl Disk {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the file, as in the loss of a volume.
    pub(crate) fn lose(&self) {
        let mut inner = self.inner();
        inner.file = None;
        inner.forgot += 1;
    }

    /// A sidecar stopped gracefully: the outcome of its leases is no longer on file.
    pub(crate) fn put_away(&self) {
        self.inner().forgot += 1;
    }

    /// Returns whether there is a file.
    pub(crate) fn has_file(&self) -> bool {
        self.inner().file.is_some()
    }

    /// Returns how many times a record on file was lost.
    pub(crate) fn forgot(&self) -> u64 {
        self.inner().forgot
    }

    /// Discards all later writes of the process that had it open.
    pub(crate) fn take_away(&self) {
        self.inner().process += 1;
    }

    /// Opens it for a new process.
    pub(crate) fn open(&self, boot_id: &str) -> Memory {
        let mut inner = self.inner();
        inner.process += 1;
        let past = inner.file.clone().map_or(Past::Nothing, Past::Records);
        Memory {
            journal: Box::new(File {
                disk: self.clone(),
                process: inner.process,
            }),
            past,
            boot_id: boot_id.to_owned(),
            namespace: "sim".to_owned(),
        }
    }
}

impl File {
    fn change(&self, change: impl FnOnce(&mut Option<Records>)) {
        let mut inner = self.disk.inner();
        if inner.process == self.process {
            change(&mut inner.file);
        }
    }
}

impl Journal for File {
    fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.change(|file| file.get_or_insert_default().push(record.to_vec()));
        Ok(())
    }

    fn replace(
        &mut self,
        records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>,
    ) -> io::Result<()> {
        let records = records.collect::<io::Result<Records>>()?;
        self.change(|file| *file = Some(records));
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let inner = self.disk.inner();
        let records = inner.file.iter().flatten();
        records.map(|record| record.len() as u64 + 1).sum()
    }

    fn void(&mut self) -> io::Result<()> {
        self.change(|file| *file = None);
        Ok(())
    }

    fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.change(|file| *file = None);
        Ok(PathBuf::from("refused"))
    }
}

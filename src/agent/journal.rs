//! What the agent writes down so that it can go on after its own death: the session with its
//! deadline, each lease before it is answered, and each lease's end before its release is sent.
//!
//! The port knows bytes; what they say is in `record`, and what they say of an earlier process in `past`.
//! Everything is written under the state's mutex, in the order of the core's effects, so the
//! journal never says less than what anybody was told. A journal that takes no record is given up and
//! made void: one with gaps in it would lie.
//!
//! It is rewritten from the core, before a record is added. What that record says may be in the core
//! already, and is then written twice; the end of a lease then comes without its beginning.

pub(super) mod past;
pub(super) mod record;

use std::io;
use std::path::PathBuf;

use crate::protocol::session::PodRef;
use crate::protocol::time::SessionTtl;

use super::core::Core;
use super::core::effect::Record as Wanted;
use super::core::history::End;
use super::core::own::Own;
pub use past::Past;
use record::{EndedRecord, Identity, LeaseRecord, Record, TtlRecord};

/// The journal is written anew when it has this many bytes more than twice what is worth keeping.
const GARBAGE_BYTES: u64 = 256 * 1024;
/// How many ends of leases are worth keeping when it is.
const ENDS_KEPT: usize = 1_000;

/// Where an agent's records are kept. What was appended outlives the process.
pub trait Journal: Send + 'static {
    /// Adds a record.
    ///
    /// # Errors
    /// When it is not known to be there; the journal is then made void.
    fn append(&mut self, record: &[u8]) -> io::Result<()>;

    /// Puts these in the place of all records, in one step.
    ///
    /// # Errors
    /// When it did not; then all is as it was, and records can still be added.
    fn replace(&mut self, records: &mut dyn Iterator<Item = io::Result<Vec<u8>>>)
    -> io::Result<()>;

    /// How large it is.
    fn bytes(&self) -> u64;

    /// Makes sure that nothing in it is ever read again.
    ///
    /// # Errors
    /// When that is not known.
    fn void(&mut self) -> io::Result<()>;

    /// Moves what an earlier process left out of the way, for people to look at; says where it is
    /// then.
    ///
    /// # Errors
    /// When it is still there; `replace` then overwrites it.
    fn set_aside(&mut self) -> io::Result<PathBuf>;
}

/// What an agent remembers of the process before it, and where it writes for the one after it.
pub struct Memory {
    /// Where the records go.
    pub journal: Box<dyn Journal>,
    /// What is there.
    pub past: Past,
    /// Names the run of the machine in which the agent's clock counts.
    pub boot_id: String,
    /// The namespace whose locks the stores have.
    pub namespace: String,
}

impl Memory {
    pub(super) fn identity(&self, pod: &PodRef, ttl: SessionTtl) -> Identity {
        Identity {
            boot_id: self.boot_id.clone(),
            pod_uid: pod.uid.to_string(),
            namespace: self.namespace.clone(),
            ttl_seconds: ttl.as_secs(),
        }
    }
}

/// The journal of a running agent.
pub(super) struct Writer {
    journal: Box<dyn Journal>,
    identity: Identity,
    /// How large it may get before it is written anew.
    limit: u64,
    /// Whether the last try to write it anew failed, and that was said.
    is_short: bool,
}

impl Writer {
    /// Goes on behind the records of the process before.
    pub(super) fn behind(journal: Box<dyn Journal>, identity: Identity) -> Self {
        let limit = limit_of(&*journal);
        Self {
            journal,
            identity,
            limit,
            is_short: false,
        }
    }

    /// Begins anew with these. Each is made when it is written: there may be thousands.
    ///
    /// # Errors
    /// When the records are as they were.
    fn begin(&mut self, records: impl Iterator<Item = Record>) -> io::Result<()> {
        let head = Record::Agent(self.identity.clone());
        let all = std::iter::once(head).chain(records);
        let begun = self
            .journal
            .replace(&mut all.map(|record| record.to_bytes()));
        // After a failure not before it has grown as much again: each try costs what it writes.
        self.limit = limit_of(&*self.journal);
        begun
    }

    pub(super) fn set_aside(&mut self) -> io::Result<PathBuf> {
        self.journal.set_aside()
    }
}

fn limit_of(journal: &dyn Journal) -> u64 {
    journal.bytes() * 2 + GARBAGE_BYTES
}

/// Writes what must be on file, if there is a journal, until that takes no record.
#[derive(Default)]
pub(super) struct Recorder(Option<Writer>);

impl Recorder {
    /// Returns a recorder that continues this journal.
    pub(super) const fn with(writer: Writer) -> Self {
        Self(Some(writer))
    }

    /// Writes what the core wants to be on file, before anything that follows from it is answered. It is
    /// there when this returns, or there is no journal any more.
    pub(super) fn persist(&mut self, core: &Core, record: Wanted) {
        match record {
            Wanted::Compaction => self.shorten(core),
            Wanted::Replacement => self.begin(core),
            record => self.write(core, record),
        }
    }

    /// Returns whether a later process could continue the leases.
    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Nothing is left that a later process could continue.
    pub(super) fn close(&mut self) {
        if let Some(mut writer) = self.0.take()
            && let Err(error) = writer.journal.void()
        {
            tracing::warn!(%error, "removing unused state file failed");
        }
    }

    fn write(&mut self, core: &Core, record: Wanted) {
        if self.0.is_none() {
            return;
        }
        let Some(record) = record_of(core, record) else {
            return;
        };
        // What is not resumed yet is in the journal alone.
        if !core.is_resuming() {
            self.compact(core);
        }
        let Some(writer) = &mut self.0 else {
            return;
        };
        let bytes = record.to_bytes();
        if let Err(error) = bytes.and_then(|bytes| writer.journal.append(&bytes)) {
            self.give_up(&error);
        }
    }

    /// Writes the journal anew, with what is worth keeping and nothing of what is in it.
    fn begin(&mut self, core: &Core) {
        if let Some(writer) = &mut self.0
            && let Err(error) = writer.begin(worth_keeping(core))
        {
            self.give_up(&error);
        }
    }

    /// Writes the journal anew once most of it is about what is over.
    fn compact(&mut self, core: &Core) {
        let journal = self.0.as_ref();
        if journal.is_some_and(|writer| writer.journal.bytes() > writer.limit) {
            self.shorten(core);
        }
    }

    /// Writes the journal anew. Where that fails, what is in it is true all the same.
    fn shorten(&mut self, core: &Core) {
        let Some(writer) = &mut self.0 else {
            return;
        };
        let begun = writer.begin(worth_keeping(core));
        let was_short = std::mem::replace(&mut writer.is_short, begun.is_err());
        if let (Err(error), false) = (begun, was_short) {
            tracing::warn!(
                %error, bytes = writer.journal.bytes(), advice = "give its volume more space",
                "compacting the state file failed"
            );
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        let Some(mut writer) = self.0.take() else {
            return;
        };
        tracing::warn!(
            %error,
            "state file not writable; restarts lose leases"
        );
        if let Err(error) = writer.journal.void() {
            tracing::error!(%error, "removing stale state file failed");
        }
    }
}

/// Returns a record as it is written; `None` if its lease has ended meanwhile, or if it is not one record.
pub(super) fn record_of(core: &Core, wanted: Wanted) -> Option<Record> {
    match wanted {
        Wanted::Compaction | Wanted::Replacement => None,
        Wanted::Session(session) => Some(Record::Session(session.into())),
        Wanted::SessionOver => Some(Record::SessionOver),
        Wanted::Lease(lease) => {
            let held = core.own.lease(&lease)?;
            Some(Record::Lease(Box::new(LeaseRecord::of(held, None))))
        }
        Wanted::Life(lease) => {
            let life = core.own.lease(&lease)?.life.into();
            let lease = lease.to_string();
            Some(Record::Ttl(TtlRecord { lease, life }))
        }
        Wanted::Ended(ended) => Some(Record::Ended(EndedRecord::from(&ended))),
        Wanted::Unheard(request) => Some(Record::Unheard((&request).into())),
    }
}

/// Returns the records of all that a later process has to know, and of nothing else.
pub(super) fn worth_keeping(core: &Core) -> impl Iterator<Item = Record> {
    let releases = &core.releases;
    let leases = core.own.leases().map(|held| {
        if held.closing.is_some() {
            let end = Own::end_record(held, End::Releasing);
            return Record::Ended(EndedRecord::from(&end));
        }
        let request = held.request.as_ref();
        let asked = request.and_then(|key| core.history.requested_life(key));
        Record::Lease(Box::new(LeaseRecord::of(held, asked)))
    });
    let ends = core.history.last_ends(ENDS_KEPT);
    let ends = ends.map(|(lease, end, request)| {
        let end = releases.past_end_record(lease, end, request);
        Record::Ended(EndedRecord::from(&end))
    });
    let session = core.live().map(|live| live.saved().into());
    let session = session.map(Record::Session);
    session.into_iter().chain(ends).chain(leases)
}

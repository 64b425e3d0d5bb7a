//! Who of a seat does not run, and since when: in the history, from before somebody is stopped until after it runs
//! again. What is told too late is excused by that, by a machine that stood still (`pulse`), and by nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::history::Op;
use crate::journal::Journal;

/// The stops of one seat.
pub(crate) struct Stops {
    /// What the history calls its sidecar.
    pub(crate) sidecar: String,
    /// Nobody records them: only to see that this is noticed.
    are_secret: bool,
    journal: Journal,
    /// Those that are not over.
    open: BTreeMap<String, u64>,
}

impl Stops {
    /// Of the seat of this number, with a history in this directory.
    pub(crate) fn begin(histories: &Path, number: usize, are_secret: bool) -> Result<Self> {
        Ok(Self {
            sidecar: format!("sidecar-{number}"),
            are_secret,
            journal: Journal::begin(histories, &format!("seat-{number}"))?,
            open: BTreeMap::new(),
        })
    }

    /// Before somebody is stopped or killed.
    pub(crate) fn stops(&mut self, who: &str) -> Result<()> {
        if !self.are_secret && !self.open.contains_key(who) {
            let operation = self.journal.invoke(Op::stop(who))?;
            self.open.insert(who.to_owned(), operation);
        }
        Ok(())
    }

    /// After it was let go on, or started again.
    pub(crate) fn runs(&mut self, who: &str) -> Result<()> {
        match self.open.remove(who) {
            Some(operation) => self.journal.ok(operation, Op::stop(who)),
            None => Ok(()),
        }
    }

    /// The same of the sidecar.
    pub(crate) fn sidecar_stops(&mut self) -> Result<()> {
        self.stops(&self.sidecar.clone())
    }

    /// The same of the sidecar.
    pub(crate) fn sidecar_runs(&mut self) -> Result<()> {
        self.runs(&self.sidecar.clone())
    }
}

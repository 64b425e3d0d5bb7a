//! Records in the history which process of a pod is stopped and since when, from before the stop
//! until after the process runs again. Only this and a stalled machine (`stall_detector`) excuse a
//! late notification.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::history::Op;
use crate::recorder::Recorder;

/// The stops of one pod.
pub(crate) struct Stops {
    /// The name of its sidecar in the history.
    pub(crate) sidecar: String,
    /// The stops are not recorded. A control: shows that this is detected.
    are_secret: bool,
    recorder: Recorder,
    /// The stops that are not over.
    open: BTreeMap<String, u64>,
}

impl Stops {
    /// Starts the record of the pod with this number, with a history in this directory.
    pub(crate) fn begin(histories: &Path, number: usize, are_secret: bool) -> Result<Self> {
        Ok(Self {
            sidecar: format!("sidecar-{number}"),
            are_secret,
            recorder: Recorder::begin(histories, &format!("pod-{number}"))?,
            open: BTreeMap::new(),
        })
    }

    /// Records a stop, before the process is stopped or killed.
    pub(crate) fn stops(&mut self, who: &str) -> Result<()> {
        if !self.are_secret && !self.open.contains_key(who) {
            let operation = self.recorder.invoke(Op::stop(who))?;
            self.open.insert(who.to_owned(), operation);
        }
        Ok(())
    }

    /// Records the end of a stop, after the process continued or was restarted.
    pub(crate) fn runs(&mut self, who: &str) -> Result<()> {
        match self.open.remove(who) {
            Some(operation) => self.recorder.ok(operation, Op::stop(who)),
            None => Ok(()),
        }
    }

    /// The same for the sidecar.
    pub(crate) fn sidecar_stops(&mut self) -> Result<()> {
        self.stops(&self.sidecar.clone())
    }

    /// The same for the sidecar.
    pub(crate) fn sidecar_runs(&mut self) -> Result<()> {
        self.runs(&self.sidecar.clone())
    }
}

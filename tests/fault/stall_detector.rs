//! Detects stalls of the machine. If a thread that only sleeps wakes up late, no other process ran
//! in time either, and no app could be notified.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::history::{EVERYONE, HistoryFile, Op, Process};
use crate::recorder::now_ns;

const SLEEPS: Duration = Duration::from_millis(50);
/// A thread that oversleeps by this much was not scheduled. A busy core delays it by far less.
const LATE_NS: u64 = 500_000_000;

/// Runs until it is dropped.
pub(crate) struct StallDetector {
    is_over: Arc<AtomicBool>,
}

impl StallDetector {
    /// Starts a detector that records the stalls as a history in this directory.
    pub(crate) fn begin(histories: &Path) -> Result<Self> {
        let file = HistoryFile::open(&histories.join("machine.jsonl"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        std::thread::spawn(move || -> Result<()> {
            let mut machine = Process::new("machine");
            let mut before = now_ns();
            while !ends.load(Ordering::Relaxed) {
                std::thread::sleep(SLEEPS);
                let now = now_ns();
                if now - before > LATE_NS {
                    let stopped = machine.invoke(before, Op::stop(EVERYONE));
                    file.append(&stopped)?;
                    file.append(&machine.ok(now, stopped.operation, Op::stop(EVERYONE)))?;
                }
                before = now;
            }
            Ok(())
        });
        Ok(Self { is_over })
    }
}

impl Drop for StallDetector {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

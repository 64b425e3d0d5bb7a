//! Whether the machine itself stands still: where a thread that only sleeps wakes up late, nobody else ran in time
//! either, and nobody can be told anything.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;

use crate::history::{EVERYONE, HistoryFile, Op, Process};
use crate::journal::now_ns;

const SLEEPS: Duration = Duration::from_millis(50);
/// Who sleeps for so much longer did not run. A core that builds something is late by far less.
const LATE_NS: u64 = 500_000_000;

/// It goes on until it is dropped.
pub(crate) struct Pulse {
    is_over: Arc<AtomicBool>,
}

impl Pulse {
    /// Begins one, whose gaps become a history in this directory.
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

impl Drop for Pulse {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

//! Histories: what apps requested, received and wrote, on one clock, and a check of whether all of
//! it can be true. Include it with `#[path = "../history.rs"] mod history;`.
//!
//! ```text
//! let mut app = Process::new("app-1.0");                   // a restarted app is another process
//! file.append(&app.invoke(now, Op::acquire("orders")))?;   // before the request is sent
//! file.append(&app.ok(now, operation, Op::granted("orders", lease, token, until)))?;
//! let history = History::read(&paths)?;                    // all files of the run, merged
//! history.check()?;                                        // or all violations, with messages
//! ```
//!
//! The events come from processes that may be killed: one file per process, one write(2) per line.
//! An operation without an outcome may have happened or not. `tests/porcupine` reads the same
//! files.

#![allow(
    dead_code,
    unused_imports,
    reason = "each of its users takes what it needs of it"
)]

#[path = "history/beliefs.rs"]
mod beliefs;
#[path = "history/check.rs"]
mod check;
#[path = "history/event.rs"]
mod event;
#[path = "history/fence.rs"]
mod fence;
#[path = "history/file.rs"]
mod file;
#[path = "history/joined.rs"]
mod joined;
#[path = "history/log.rs"]
mod log;
#[path = "history/losses.rs"]
mod losses;
#[path = "history/porcupine.rs"]
mod porcupine;
#[path = "history/process.rs"]
mod process;
#[path = "history/tokens.rs"]
mod tokens;
#[path = "history/violation.rs"]
mod violation;

pub(crate) use beliefs::Overlap;
pub(crate) use check::Summary;
pub(crate) use event::{EVERYONE, Entry, Event, Op, OverriddenBy, Phase};
pub(crate) use file::{History, HistoryFile};
pub(crate) use porcupine::check_linearizable;
pub(crate) use process::Process;
pub(crate) use violation::Violation;

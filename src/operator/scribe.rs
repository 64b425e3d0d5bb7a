//! Tells people what happened, once as far as it can be known: the line of the audit log, then the
//! note.
//!
//! What was told is known by the notes' names. A replica that becomes the active one first asks
//! which notes there are, so that it tells again what its predecessor may not have told, and not
//! all that there is.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::time::Duration;

use crate::store::StoreError;
use crate::store::cluster::{Note, Notes};
use crate::store::fleet::Place;

use super::audit::News;
use super::{Ports, pause_after};

/// How many notes are written at once; what is urgent is done by other tasks.
const UNDER_WAY: usize = 4;
/// How often a note is tried. The line is out by then, and the incident in the lock.
const TRIES: u32 = 8;
/// How often it is asked in vain which notes there are before everything is told again: each line has
/// an id, and one that is there twice is better than none.
const ASKED_IN_VAIN: u32 = 5;
/// How many names are remembered before those of what is long over are forgotten.
const REMEMBERED: usize = 100_000;

/// Where the lines of the audit log go.
pub trait AuditLog: Send + Sync + 'static {
    /// Writes one line, without its end.
    ///
    /// # Errors
    /// When it cannot be written.
    fn write(&self, line: &str) -> io::Result<()>;
}

/// What is to be told.
#[derive(Default)]
pub(super) struct Scribe {
    waiting: VecDeque<News>,
    /// What was told, or is to be; none before the notes that there are have been asked for.
    told: HashSet<Place>,
    knows: Knows,
    asked_in_vain: u32,
    under_way: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knows {
    #[default]
    Nothing,
    Asked,
    Notes,
}

/// What a task of the scribe came to.
pub(super) struct Finished {
    kind: Kind,
    took: Duration,
}

enum Kind {
    Known(Result<HashSet<Place>, StoreError>),
    Written(Result<(), StoreError>),
}

impl Finished {
    /// Whether a note was written; none where it was only asked which there are.
    pub(super) fn is_written(&self) -> Option<bool> {
        match &self.kind {
            Kind::Known(_) => None,
            Kind::Written(written) => Some(written.is_ok()),
        }
    }

    pub(super) const fn took(&self) -> Duration {
        self.took
    }
}

/// A task, to be spawned.
pub(super) type Task = futures::future::BoxFuture<'static, Finished>;

impl Scribe {
    /// This is to be told, if it has not been.
    pub(super) fn tell(&mut self, news: News) {
        if self.told.len() > REMEMBERED {
            self.told.clear();
        }
        if self.told.insert(place_of(&news)) {
            self.waiting.push_back(news);
        }
    }

    /// Another one tells, or will ask anew what was told.
    pub(super) fn forget(&mut self) {
        *self = Self {
            under_way: self.under_way,
            ..Self::default()
        };
    }

    /// Starts what is to be told.
    pub(super) fn start(&mut self, ports: &Ports, mut spawn: impl FnMut(Task)) {
        match self.knows {
            Knows::Nothing => {
                self.knows = Knows::Asked;
                let (notes, clock) = (ports.notes.clone(), ports.clock.clone());
                let failures = self.asked_in_vain;
                spawn(Box::pin(async move {
                    let began = clock.now();
                    let known = notes.known().await;
                    if known.is_err() {
                        tokio::time::sleep(pause_after(4 + failures)).await;
                    }
                    Finished {
                        kind: Kind::Known(known),
                        took: clock.now().since(began),
                    }
                }));
            }
            Knows::Asked => {}
            Knows::Notes => {
                while self.under_way < UNDER_WAY
                    && let Some(news) = self.waiting.pop_front()
                {
                    self.under_way += 1;
                    spawn(tell(ports, news));
                }
            }
        }
    }

    pub(super) fn note_finished(&mut self, finished: Finished) {
        match finished.kind {
            Kind::Known(Ok(known)) => {
                self.waiting.retain(|news| !known.contains(&place_of(news)));
                self.told.extend(known);
                self.knows = Knows::Notes;
            }
            Kind::Known(Err(error)) => {
                self.asked_in_vain += 1;
                let gives_up = self.asked_in_vain >= ASKED_IN_VAIN;
                tracing::warn!(
                    %error, gives_up,
                    "the Events that there are cannot be listed, so what was told may be told again"
                );
                self.knows = if gives_up {
                    Knows::Notes
                } else {
                    Knows::Nothing
                };
            }
            Kind::Written(_) => {
                self.under_way = self.under_way.saturating_sub(1);
            }
        }
    }
}

fn place_of(news: &News) -> Place {
    Place {
        namespace: news.note.lock.namespace.clone(),
        name: news.note.name.clone(),
    }
}

/// The line first: who dies after it leaves no note, and the next one tells both again.
fn tell(ports: &Ports, news: News) -> Task {
    let (notes, audit, clock) = (
        ports.notes.clone(),
        ports.audit.clone(),
        ports.clock.clone(),
    );
    Box::pin(async move {
        let began = clock.now();
        if let Some(line) = &news.line {
            // Without it there is no note either: that would say that it was told.
            let mut failures = 0;
            while let Err(error) = audit.write(&line.to_string()) {
                tracing::error!(%error, %line, "the audit log cannot be written; trying on");
                tokio::time::sleep(pause_after(4 + failures)).await;
                failures += 1;
            }
        }
        let written = write(&*notes, &news.note).await;
        Finished {
            kind: Kind::Written(written),
            took: clock.now().since(began),
        }
    })
}

async fn write(notes: &dyn Notes, note: &Note) -> Result<(), StoreError> {
    let mut failures = 0;
    loop {
        match notes.write(note).await {
            Err(error) if failures >= TRIES => {
                tracing::warn!(
                    lock = %note.lock, reason = note.reason, %error,
                    "an Event about a lock could not be written; the audit log has its line"
                );
                return Err(error);
            }
            // A right that is missing may be given meanwhile.
            Err(_) => {
                tokio::time::sleep(pause_after(failures)).await;
                failures += 1;
            }
            Ok(()) => return Ok(()),
        }
    }
}

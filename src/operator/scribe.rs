//! Tells people what happened, once as far as it can be known: the line of the audit log, then the
//! note.
//!
//! What was told is known by the notes' names. A replica that becomes the active one first asks
//! which notes there are, so that it tells again what its predecessor may not have told, and not
//! all that there is.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::time::Duration;

use async_trait::async_trait;

use crate::random::Random;
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
/// How much waits to be told. What has no room is passed over: it stands in the locks, and is looked for
/// there when all of this is told.
const WAITING: usize = 10_000;
/// How many names are remembered before those that no lock speaks of any more are forgotten.
const REMEMBERED: usize = 100_000;

/// Where the lines of the audit log go.
#[async_trait]
pub trait AuditLog: Send + Sync + 'static {
    /// Writes one line, without its end, however long that takes: nobody may be reading at the other
    /// end of the pipe. That stops the record and nothing else, so no thread that others need blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    async fn write(&self, line: &str) -> io::Result<()>;
}

/// What is to be told.
#[derive(Default)]
pub(super) struct Scribe {
    waiting: VecDeque<News>,
    /// What was told, or is to be; none before the notes that there are have been asked for.
    told: BTreeSet<Place>,
    /// How many names were left when those of what is over were last forgotten.
    kept: usize,
    /// Something had no room.
    passed_over: bool,
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
    Known(Result<BTreeSet<Place>, StoreError>),
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
    /// This is to be told, if it has not been. Whether it will be, as far as is known yet.
    pub(super) fn tell(&mut self, news: News) -> bool {
        if self.told.contains(&place_of(&news)) {
            return false;
        }
        if self.waiting.len() >= WAITING {
            self.passed_over = true;
            return false;
        }
        self.told.insert(place_of(&news));
        self.waiting.push_back(news);
        true
    }

    /// Whether it has to see all that there is to tell: to find what was passed over, or to learn
    /// what nobody will speak of again.
    pub(super) fn must_go_over(&self) -> bool {
        let finds_room = self.passed_over && self.waiting.is_empty();
        finds_room || self.told.len() > REMEMBERED.max(2 * self.kept)
    }

    /// This is all that there is to tell.
    pub(super) fn go_over(&mut self, everything: impl Iterator<Item = News>) {
        let told_before = std::mem::take(&mut self.told);
        self.told = self.waiting.iter().map(place_of).collect();
        self.passed_over = false;
        for news in everything {
            let place = place_of(&news);
            if told_before.contains(&place) {
                self.told.insert(place);
            } else {
                self.tell(news);
            }
        }
        self.kept = self.told.len();
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
                let random = ports.random.clone();
                let failures = self.asked_in_vain;
                spawn(Box::pin(async move {
                    let began = clock.now();
                    let known = notes.known().await;
                    if known.is_err() {
                        tokio::time::sleep(pause_after(4 + failures, &random)).await;
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
                    %error, retrying = !gives_up, "listing Events failed; duplicates are possible"
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
        namespace: news.note.place.namespace.clone(),
        name: news.note.name.clone(),
    }
}

/// The line first: who dies after it leaves no note, and the next one tells both again.
fn tell(ports: &Ports, news: News) -> Task {
    let (notes, audit) = (ports.notes.clone(), ports.audit.clone());
    let (clock, random) = (ports.clock.clone(), ports.random.clone());
    Box::pin(async move {
        let began = clock.now();
        if let Some(line) = &news.line {
            write_line(&*audit, &line.to_string(), &random).await;
        }
        let written = write(&*notes, &news.note, &random).await;
        Finished {
            kind: Kind::Written(written),
            took: clock.now().since(began),
        }
    })
}

/// Writes it, however long that takes: without it there is no note either, which would say that it was
/// told.
async fn write_line(audit: &dyn AuditLog, line: &str, random: &Random) {
    let mut failures = 0;
    while let Err(error) = audit.write(line).await {
        tracing::error!(%error, %line, "writing the audit log failed; retrying");
        tokio::time::sleep(pause_after(4 + failures, random)).await;
        failures += 1;
    }
}

async fn write(notes: &dyn Notes, note: &Note, random: &Random) -> Result<(), StoreError> {
    let mut failures = 0;
    loop {
        match notes.write(note).await {
            Err(error) if failures >= TRIES => {
                tracing::warn!(
                    kind = ?note.regarding, object = %note.place, reason = note.reason, %error,
                    "writing an Event failed"
                );
                return Err(error);
            }
            // A right that is missing may be given meanwhile.
            Err(_) => {
                tokio::time::sleep(pause_after(failures, random)).await;
                failures += 1;
            }
            Ok(()) => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::time::WallTime;
    use crate::store::cluster::Regarding;

    fn news(number: usize) -> News {
        let note = Note {
            name: format!("note-{number}").into(),
            regarding: Regarding::Lock,
            place: Place {
                namespace: "n".into(),
                name: "lock".into(),
            },
            uid: "uid".into(),
            pod: None,
            is_warning: false,
            reason: "",
            action: "",
            message: String::new(),
            at: WallTime(0),
        };
        News { line: None, note }
    }

    fn names(scribe: &mut Scribe) -> Vec<String> {
        let waiting = scribe.waiting.drain(..);
        waiting.map(|news| news.note.name.to_string()).collect()
    }

    #[test]
    fn news_over_the_limit_is_found_again_once_there_is_room() {
        let mut scribe = Scribe::default();
        let all = WAITING + 2;
        for number in 0..all {
            scribe.tell(news(number));
        }
        assert_eq!(scribe.waiting.len(), WAITING);
        assert!(!scribe.must_go_over(), "there is no room yet");
        names(&mut scribe);
        assert!(scribe.must_go_over());
        scribe.go_over((0..all).map(news));
        let last = [WAITING, WAITING + 1].map(|number| format!("note-{number}"));
        assert_eq!(names(&mut scribe), last);
        assert!(!scribe.must_go_over());
    }

    #[test]
    fn old_news_is_forgotten_and_no_news_is_recorded_twice() {
        let mut scribe = Scribe::default();
        for number in 0..=REMEMBERED {
            scribe.tell(news(number));
            scribe.waiting.clear();
        }
        assert!(scribe.must_go_over());
        scribe.go_over((REMEMBERED - 10..=REMEMBERED).map(news));
        assert_eq!(names(&mut scribe), Vec::<String>::new());
        assert_eq!(scribe.told.len(), 11);
        scribe.tell(news(REMEMBERED));
        assert_eq!(names(&mut scribe), Vec::<String>::new());
    }
}

//! Random writers on one fence: leases that end while their writers still write, retries after unknown outcomes,
//! writers that disappear in the middle of a transaction, and crashes of the store. The history's checker judges.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;
use leasehold::protocol::time::Moment;
use tokio::sync::Mutex;

use super::store::{Append, Store, Written};
use crate::harness::{PATIENCE, eventually, now};
use crate::history::{Event, History, Op, Process, Summary};
use crate::seed::seed;

const WRITERS: usize = 6;
/// How many answers the writers get before each crash, and after the last one.
const ANSWERS: usize = 60;
/// The log, and the lock that guards it.
const LOG: &str = "log";

/// A run of the writers.
struct Run<'s, S> {
    store: &'s S,
    events: RefCell<Vec<Event>>,
    /// The lease that is not over: its token, and its writer.
    lease: Cell<Option<(u64, usize)>>,
    /// The last token of a grant. The mutex is locked during a grant.
    granted: Mutex<u64>,
    /// When the last lease began.
    granted_at: Cell<Option<Moment>>,
    random: RefCell<fastrand::Rng>,
    answers: Cell<usize>,
    /// How many entries were accepted when a writer repeated them.
    repeated: Cell<usize>,
    is_over: Cell<bool>,
}

/// A writer, and the token of its last lease.
struct Writer {
    number: usize,
    process: Process,
    token: Option<u64>,
    appended: usize,
    /// An entry with an unknown outcome, and the number of its operation.
    unknown: Option<(u64, Append)>,
}

/// Runs writers until the store has crashed this often, and returns what the history has, once it is checked.
pub(super) async fn run(store: &impl Store, crashes: usize) -> Result<Summary> {
    let (history, repeated) = play(store, crashes).await?;
    let summary = history.check()?;
    println!("{repeated} were repeated: {summary:?}");
    ensure!(
        summary.appended > 0,
        "no entry was acknowledged: {summary:?}"
    );
    ensure!(summary.refused > 0, "no entry was refused: {summary:?}");
    ensure!(summary.unknown > 0, "no outcome was unknown: {summary:?}");
    Ok(summary)
}

/// The control: a run without a fence, or on a store that loses it, has a violation with these words.
pub(super) async fn run_with_violation(
    store: &impl Store,
    crashes: usize,
    words: &str,
) -> Result<()> {
    let (history, _repeated) = play(store, crashes).await?;
    let violations = history.violations();
    let is_noticed = violations.iter().any(|one| one.what.contains(words));
    ensure!(is_noticed, "{words} is missing: {violations:?}");
    Ok(())
}

/// Returns the history of a run, and how many entries were accepted when a writer repeated them.
async fn play(store: &impl Store, crashes: usize) -> Result<(History, usize)> {
    let run = Run {
        store,
        events: RefCell::default(),
        lease: Cell::new(None),
        granted: Mutex::new(1000),
        granted_at: Cell::new(None),
        random: RefCell::new(fastrand::Rng::with_seed(seed())),
        answers: Cell::new(0),
        repeated: Cell::new(0),
        is_over: Cell::new(false),
    };
    let writers = join_all((0..WRITERS).map(|number| run.write(number)));
    let (outcome, _writers) = tokio::join!(run.crash(crashes), writers);
    outcome?;
    let entries = store.entries().await?;
    let log = LOG.to_owned();
    run.record(|at| Process::new("store").info(at, Op::Log { log, entries }));
    Ok((History::of(run.events.into_inner()), run.repeated.get()))
}

impl<S: Store> Run<'_, S> {
    async fn crash(&self, crashes: usize) -> Result<()> {
        let all = async {
            for _ in 0..crashes {
                self.until_answered().await?;
                self.store.crash().await?;
            }
            self.until_answered().await?;
            if crashes > 0 && self.store.repeats() {
                let repeated = async || (self.repeated.get() > 0).then_some(());
                eventually("an entry that was repeated", PATIENCE, repeated).await?;
            }
            Ok(())
        };
        let outcome = all.await;
        self.is_over.set(true);
        outcome
    }

    async fn until_answered(&self) -> Result<()> {
        let enough = self.answers.get() + ANSWERS;
        let answered = async || (self.answers.get() >= enough).then_some(());
        eventually("answers to the writers", PATIENCE, answered).await
    }

    async fn write(&self, number: usize) {
        let mut writer = Writer {
            number,
            process: Process::new(format!("writer-{number}")),
            token: None,
            appended: 0,
            unknown: None,
        };
        let mut connection = None;
        while !self.is_over.get() {
            let takes = self.one_in(6);
            if takes || writer.token.is_none() {
                self.acquire(&mut writer).await;
            }
            if connection.is_none() {
                connection = self.store.connect().await.ok();
            }
            let (Some(connected), Some(token)) = (&mut connection, writer.token) else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            if self.append(&mut writer, token, connected).await.is_err() {
                connection = None;
            }
        }
    }

    /// Ends the current lease, if it has lasted long enough, and begins one of this writer, with a larger token. The
    /// writer whose lease it was is not notified, and continues to write.
    async fn acquire(&self, writer: &mut Writer) {
        let mut last = self.granted.lock().await;
        let lasts_longer = |at: Moment| now() < at.after(self.store.lease());
        if self.granted_at.get().is_some_and(lasts_longer) {
            return;
        }
        if let Some((token, former)) = self.lease.take() {
            let mut former = Process::new(format!("lease-of-{former}-{token}"));
            self.record(|at| former.info(at, Op::believes_end(&token.to_string())));
        }
        *last += self.random.borrow_mut().u64(1..=1000);
        let token = *last;
        let invoked = self.record(|at| writer.process.invoke(at, Op::acquire(LOG)));
        let granted = Op::granted(LOG, &token.to_string(), token, u64::MAX);
        if self.store.grant(token).await.is_err() {
            // No writer has this token.
            writer.token = None;
            self.record(|at| writer.process.unknown(at, invoked, Op::acquire(LOG)));
            return;
        }
        self.lease.set(Some((token, writer.number)));
        self.granted_at.set(Some(now()));
        self.record(|at| writer.process.ok(at, invoked, granted));
        writer.token = Some(token);
    }

    /// Appends an entry, or repeats one with an unknown outcome. An error means that the outcome is unknown.
    async fn append(
        &self,
        writer: &mut Writer,
        token: u64,
        connection: &mut S::Connection,
    ) -> Result<()> {
        let repeated = writer.unknown.take();
        let is_repeated = repeated.is_some();
        let (invoked, append) = repeated.unwrap_or_else(|| self.begin(writer, token));
        // A repetition may add no entry to the log. That the fence accepted its token is recorded as a read.
        let passed =
            is_repeated.then(|| self.record(|at| writer.process.invoke(at, Op::read(LOG))));
        let patience = if self.one_in(10) {
            self.pause()
        } else {
            PATIENCE
        };
        let written = tokio::time::timeout(patience, self.store.append(connection, &append)).await;
        self.answers.set(self.answers.get() + 1);
        let op = op(&append);
        match written {
            Ok(Ok(Written::Accepted)) => {
                if let Some(passed) = passed {
                    self.repeated.set(self.repeated.get() + 1);
                    let saw = Op::saw(LOG, append.token, &append.value);
                    self.record(|at| writer.process.ok(at, passed, saw));
                }
                self.record(|at| writer.process.ok(at, invoked, op));
            }
            Ok(Ok(Written::Stale)) => {
                // One in three ignores the refusal, and writes again.
                if !self.one_in(3) {
                    writer.token = None;
                }
                self.record(|at| {
                    if is_repeated {
                        writer.process.unknown(at, invoked, op)
                    } else {
                        writer.process.fail(at, invoked, op)
                    }
                });
            }
            Ok(Err(_)) | Err(_) => {
                if self.store.repeats() && self.one_in(2) {
                    writer.unknown = Some((invoked, append));
                } else {
                    self.record(|at| writer.process.unknown(at, invoked, op));
                }
                anyhow::bail!("the outcome is unknown");
            }
        }
        Ok(())
    }

    /// Begins to append an entry, and returns the number of this operation.
    fn begin(&self, writer: &mut Writer, token: u64) -> (u64, Append) {
        writer.appended += 1;
        let append = Append {
            token,
            value: format!("{}-{}", writer.process.name(), writer.appended),
            pause: self.pause(),
        };
        let invoked = self.record(|at| writer.process.invoke(at, op(&append)));
        (invoked, append)
    }

    fn one_in(&self, many: u32) -> bool {
        self.random.borrow_mut().u32(0..many) == 0
    }

    fn pause(&self) -> Duration {
        let longest = if self.one_in(4) { 30_000 } else { 500 };
        Duration::from_micros(self.random.borrow_mut().u64(0..longest))
    }

    /// Records an event of this moment, and returns the number of its operation.
    fn record(&self, event: impl FnOnce(u64) -> Event) -> u64 {
        let at = now().elapsed_since_boot().as_nanos();
        let event = event(u64::try_from(at).unwrap_or(u64::MAX));
        let operation = event.operation;
        self.events.borrow_mut().push(event);
        operation
    }
}

fn op(append: &Append) -> Op {
    Op::append(LOG, &append.token.to_string(), append.token, &append.value)
}

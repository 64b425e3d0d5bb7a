//! A candidate of an election, in the background.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::client::Lock;
use crate::error::Error;
use crate::lease::Lease;

/// A leader that returns at once must not flood the API server with terms.
const PAUSE: Duration = Duration::from_secs(1);

/// A candidacy in the background. It has a thread. Its clones are the same one.
#[derive(Clone)]
pub struct Election {
    inner: Arc<Inner>,
}

struct Inner {
    is_stopping: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lease: Option<Arc<Lease>>,
    leave: Option<oneshot::Sender<()>>,
    failure: Option<Error>,
    has_ended: bool,
    thread: Option<ThreadId>,
}

impl Election {
    pub(crate) fn start(
        lead: Lock,
        mut leader: impl FnMut(&Lease, &Self) + Send + 'static,
    ) -> Self {
        let inner = Inner {
            is_stopping: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        let election = Self {
            inner: Arc::new(inner),
        };
        let candidate = election.clone();
        thread::Builder::new()
            .name("leasehold-lead".into())
            .spawn(move || {
                let end = End(&candidate);
                candidate.run(&lead, &mut leader);
                drop(end);
            })
            .expect("the system must have a thread for the election");
        election
    }

    /// Returns whether this process leads now. It sends no request: the lease's own deadline
    /// decides. Send the lease's token with every write as the leader all the same.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.token().is_some()
    }

    /// Returns the fencing token while this process leads.
    #[must_use]
    pub fn token(&self) -> Option<u64> {
        let lease = self.state().lease.clone()?;
        lease.check().ok().map(|()| lease.token())
    }

    /// Returns the error that ended the candidacy, for example for an invalid name.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.state().failure.clone()
    }

    /// Returns whether [`stop`](Election::stop) was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.inner.is_stopping.load(Ordering::SeqCst)
    }

    /// Waits until the lease is lost, a release is requested, or the election is stopped: a leader
    /// without other work.
    pub fn wait(&self, lease: &Lease) {
        while lease.check().is_ok() && lease.release_requested().is_none() && !self.is_stopping() {
            let state = self.state();
            let pause = lease.remaining().min(PAUSE);
            drop(self.inner.changed.wait_timeout(state, pause));
        }
    }

    /// Steps down, and ends the candidacy. It waits until the leader has returned, unless the leader
    /// calls it.
    pub fn stop(&self) {
        self.inner.is_stopping.store(true, Ordering::SeqCst);
        let mut state = self.state();
        if let Some(leave) = state.leave.take() {
            let _acquired = leave.send(());
        }
        self.inner.changed.notify_all();
        let is_leader = Some(thread::current().id()) == state.thread;
        while !state.has_ended && !is_leader {
            state = self
                .inner
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, lead: &Lock, leader: &mut impl FnMut(&Lease, &Self)) {
        self.state().thread = Some(thread::current().id());
        while let Some(acquired) = self.acquire(lead) {
            match acquired {
                Ok(lease) => self.serve(lease, leader),
                Err(error @ Error::Unavailable { .. }) => {
                    tracing::warn!(%error, "lead not acquired");
                }
                Err(error) => {
                    tracing::error!(%error, "candidacy ended");
                    self.state().failure = Some(error);
                    return;
                }
            }
            let state = self.state();
            if !self.is_stopping() {
                drop(self.inner.changed.wait_timeout(state, PAUSE));
            }
        }
    }

    /// Returns `None` after a stop.
    fn acquire(&self, lead: &Lock) -> Option<Result<Lease, Error>> {
        let pending = {
            let mut state = self.state();
            if self.is_stopping() {
                return None;
            }
            let pending = lead.clone().start();
            state.leave = Some(pending.leave);
            pending.result
        };
        let acquired = pending.blocking_recv().ok();
        self.state().leave = None;
        acquired
    }

    fn serve(&self, lease: Lease, leader: &mut impl FnMut(&Lease, &Self)) {
        tracing::info!(
            election = lease.resource(),
            fencingToken = lease.token(),
            "lead acquired"
        );
        let lease = Arc::new(lease);
        self.state().lease = Some(lease.clone());
        if catch_unwind(AssertUnwindSafe(|| leader(&lease, self))).is_err() {
            tracing::error!(election = lease.resource(), "leader panicked");
        }
        self.state().lease = None;
        if let Some(lease) = Arc::into_inner(lease) {
            let _lost_before = lease.release_blocking();
        }
    }
}

/// The end of the candidacy, also by a panic: `stop` must not wait for it.
struct End<'a>(&'a Election);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.lease = None;
        state.has_ended = true;
        self.0.inner.changed.notify_all();
    }
}

//! A lease, and the only place that decides whether it is still valid.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::api::{Acquired, CompleteRequest, ReleaseRequested, ReleaseRequestedEvent};
use crate::clock::now;
use crate::engine;
use crate::error::Error;
use crate::wire::{CALL, Sidecar};

/// The name of the header that carries a fencing token.
pub const HEADER_NAME: &str = "X-Fencing-Token";

pub(crate) const VALIDITY_OVER: &str = "validity_over";
const RELEASED: &str = "released";
/// No promise of a sidecar is longer.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Timers stand still while the machine sleeps, and the lease's clock does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Returns the time that an answer means by some milliseconds. They count from when the request was
/// sent: the sidecar counts from when it read the request, which is later.
pub(crate) fn after(sent: Duration, ms: u64) -> Duration {
    sent + Duration::from_millis(ms.min(DAY_MS))
}

/// The request to release a lock. Finish the work and release it; nothing is taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest {
    /// `person_asked`, `agent_stopping`, `max_hold`, or another reason of the HTTP API.
    pub reason: String,
    /// The person that requests it.
    pub actor: Option<String>,
    /// What the person wants to say.
    pub message: Option<String>,
}

impl From<ReleaseRequested> for ReleaseRequest {
    fn from(said: ReleaseRequested) -> Self {
        Self {
            reason: said.reason,
            actor: Some(said.actor),
            message: Some(said.message),
        }
    }
}

impl From<ReleaseRequestedEvent> for ReleaseRequest {
    fn from(said: ReleaseRequestedEvent) -> Self {
        Self {
            reason: said.reason,
            actor: said.actor,
            message: said.message,
        }
    }
}

/// How a lease has ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    /// The app has released it.
    Released,
    Lost {
        reason: String,
        detail: String,
    },
}

impl End {
    /// Whether the sidecar may keep the lock for longer than the client believed.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(self, Self::Lost { reason, .. } if reason == VALIDITY_OVER)
    }

    fn error(self) -> Error {
        let (reason, detail) = match self {
            Self::Released => (RELEASED.into(), "the app has released the lock".into()),
            Self::Lost { reason, detail } => (reason, detail),
        };
        Error::Lost { reason, detail }
    }
}

type OnLost = Box<dyn FnOnce(&Error) + Send>;

struct State {
    deadline: Duration,
    /// A lease that has ended stays ended.
    end: Option<End>,
    doubt: String,
    request: Option<ReleaseRequest>,
    on_lost: Vec<OnLost>,
    /// Gets the outcome of the release.
    release: Option<oneshot::Sender<Result<(), Error>>>,
}

/// What a lease and its keeper share.
pub(crate) struct Shared {
    pub(crate) grant: Acquired,
    pub(crate) sidecar: Sidecar,
    state: Mutex<State>,
    over: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(sidecar: Sidecar, grant: Acquired, deadline: Duration) -> Arc<Self> {
        let state = State {
            deadline,
            end: None,
            doubt: String::new(),
            request: None,
            on_lost: Vec::new(),
            release: None,
        };
        let over = watch::Sender::new(false);
        Arc::new(Self {
            grant,
            sidecar,
            state: Mutex::new(state),
            over,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the end. The deadline counts, and not what a task has seen.
    pub(crate) fn ended(&self) -> Option<End> {
        self.ended_in(&mut self.state())
    }

    fn ended_in(&self, state: &mut State) -> Option<End> {
        if state.end.is_none() && now() >= state.deadline {
            let detail = format!("no renewal came in time{}", state.doubt);
            let reason = VALIDITY_OVER.into();
            self.finish(state, End::Lost { reason, detail });
        }
        state.end.clone()
    }

    fn finish(&self, state: &mut State, end: End) {
        state.end = Some(end);
        self.over.send_replace(true);
    }

    /// Ends it, unless it has ended before: the sidecar said so.
    pub(crate) fn lose(&self, reason: String, detail: String) {
        let mut state = self.state();
        if self.ended_in(&mut state).is_none() {
            self.finish(&mut state, End::Lost { reason, detail });
        }
    }

    /// Takes a new deadline from the sidecar.
    pub(crate) fn prolong(&self, deadline: Duration) {
        let mut state = self.state();
        if self.ended_in(&mut state).is_none() {
            state.deadline = deadline;
            state.doubt.clear();
        }
    }

    /// Remembers why no new deadline may come.
    pub(crate) fn doubt(&self, why: &Error) {
        self.state().doubt = format!(": {why}");
    }

    pub(crate) fn ask_for_release(&self, request: ReleaseRequest) {
        self.state().request = Some(request);
    }

    pub(crate) fn remaining(&self) -> Duration {
        let mut state = self.state();
        match self.ended_in(&mut state) {
            Some(_) => Duration::ZERO,
            None => state.deadline.saturating_sub(now()),
        }
    }

    /// Returns after how much time to look at the clock again.
    pub(crate) fn sleep(&self) -> Duration {
        self.remaining().min(LONGEST_SLEEP)
    }

    pub(crate) async fn over(&self) {
        let mut over = self.over.subscribe();
        let _the_sender_is_here = over.wait_for(|over| *over).await;
    }

    /// Begins the release. `None`: the lease has ended before.
    fn release(&self) -> Result<Option<oneshot::Receiver<Result<(), Error>>>, Error> {
        let mut state = self.state();
        match self.ended_in(&mut state) {
            Some(End::Released) => Ok(None),
            Some(end) => Err(end.error()),
            None => {
                let (sender, receiver) = oneshot::channel();
                state.release = Some(sender);
                self.finish(&mut state, End::Released);
                Ok(Some(receiver))
            }
        }
    }

    /// Returns how long the sidecar may take to release it.
    pub(crate) fn time_to_release(&self) -> Duration {
        self.state().deadline.saturating_sub(now()).min(CALL)
    }

    /// On the engine, when it has ended: reports the end to the app.
    pub(crate) fn report(&self, released: Result<(), Error>) {
        let (end, release, on_lost) = {
            let mut state = self.state();
            let on_lost = std::mem::take(&mut state.on_lost);
            (state.end.clone(), state.release.take(), on_lost)
        };
        if let Some(release) = release {
            let _left = release.send(released);
        }
        let Some(lost @ End::Lost { .. }) = end else {
            return;
        };
        let error = lost.error();
        let Acquired {
            resource,
            fencing_token,
            ..
        } = &self.grant;
        let reason = error.code();
        tracing::warn!(resource, fencingToken = fencing_token, reason, "lock lost");
        for callback in on_lost {
            if catch_unwind(AssertUnwindSafe(|| callback(&error))).is_err() {
                tracing::error!(resource, "callback panicked");
            }
        }
    }

    pub(crate) fn path(&self) -> String {
        format!("/v1/locks/{}", self.grant.lease_id)
    }
}

/// The right to act, while [`check`](Lease::check) returns `Ok`. Dropping it releases the lock in
/// the background.
///
/// It may be used by several threads and tasks at the same time.
pub struct Lease {
    shared: Arc<Shared>,
}

impl Lease {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the fencing token. It is larger than every token given before for this resource.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.shared.grant.fencing_token
    }

    /// Returns what is locked.
    #[must_use]
    pub fn resource(&self) -> &str {
        &self.shared.grant.resource
    }

    /// Returns the lease's id, as the HTTP API and the logs have it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.grant.lease_id
    }

    /// Returns the holder's name that others see.
    #[must_use]
    pub fn owner_id(&self) -> &str {
        &self.shared.grant.owner_id
    }

    /// Returns the keys of work that earlier holders have completed, oldest first.
    #[must_use]
    pub fn completed(&self) -> &[String] {
        &self.shared.grant.completed
    }

    /// Returns [`Error::Lost`] if the lease has ended. Call it before each write, and between the
    /// steps of long work. It sends no request: the lease's own deadline decides.
    pub fn check(&self) -> Result<(), Error> {
        self.shared.ended().map_or(Ok(()), |end| Err(end.error()))
    }

    /// Returns for how long the lease is valid from now on, if nothing prolongs it. It is zero if
    /// the lease has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.shared.remaining()
    }

    /// Returns the name and the value of the header `X-Fencing-Token`, for a request to the guarded
    /// resource. It fails like [`check`](Lease::check).
    pub fn header(&self) -> Result<(&'static str, String), Error> {
        self.check()?;
        Ok((HEADER_NAME, self.token().to_string()))
    }

    /// Returns the request to release the lock, if there is one. Finish the work and release it.
    #[must_use]
    pub fn release_requested(&self) -> Option<ReleaseRequest> {
        self.shared.state().request.clone()
    }

    /// Waits until the lease has ended, and returns [`Error::Lost`]. It works in every runtime.
    pub async fn lost(&self) -> Error {
        self.shared.over().await;
        match self.check() {
            Err(error) => error,
            Ok(()) => unreachable!("a lease that is over stays over"),
        }
    }

    /// Has a function called when the lease is lost, at once if it is. A release does not call it.
    ///
    /// The thread that keeps all leases calls it, so it must be short, and must not wait.
    pub fn on_lost(&self, callback: impl FnOnce(&Error) + Send + 'static) {
        let mut state = self.shared.state();
        match self.shared.ended_in(&mut state) {
            None => state.on_lost.push(Box::new(callback)),
            Some(End::Released) => {}
            Some(end) => {
                drop(state);
                callback(&end.error());
            }
        }
    }

    /// Records under a key that work has succeeded; later holders find it in
    /// [`completed`](Lease::completed).
    ///
    /// [`Error::Unavailable`] means that it is not known whether the key is recorded: call it again.
    pub async fn complete(&self, key: &str) -> Result<(), Error> {
        self.check()?;
        let shared = self.shared.clone();
        let body = CompleteRequest { key: key.into() };
        engine::run(async move {
            let path = format!("{}/complete", shared.path());
            let result = shared
                .sidecar
                .order(reqwest::Method::POST, &path, &body, CALL)
                .await;
            if let Err(Error::Lost { reason, detail }) = &result {
                shared.lose(reason.clone(), detail.clone());
            }
            result.map(|_status| ())
        })
        .await
    }

    /// Releases the lock. The lease is over in any case, and this takes ten seconds at most.
    ///
    /// It returns [`Error::Lost`] if the lease was lost before: another holder may have had the
    /// lock, so the work does not count as guarded. A release that the sidecar did not confirm is
    /// logged, and the lock is then free when the sidecar's session or the lease's TTL ends.
    pub async fn release(self) -> Result<(), Error> {
        match self.shared.release()? {
            Some(receiver) => receiver.await.unwrap_or(Ok(())),
            None => Ok(()),
        }
    }

    /// [`release`](Lease::release) for code without a runtime. It panics inside of one.
    pub fn release_blocking(self) -> Result<(), Error> {
        match self.shared.release()? {
            Some(receiver) => receiver.blocking_recv().unwrap_or(Ok(())),
            None => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _in_the_background = self.shared.release();
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("resource", &self.resource())
            .field("token", &self.token())
            .field("ended", &self.shared.ended())
            .finish_non_exhaustive()
    }
}

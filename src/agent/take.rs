//! Taking a lock in the store: read, decide, write, until the lock names a grant.
//!
//! The grant's id is made before the first write. Whenever an answer does not say what happened,
//! the lock is read: one's own id in it means that the write landed. No write is repeated
//! blindly; each goes out on the version it was decided on.

use crate::protocol::ids::{GrantId, Resource};
use crate::protocol::lock::{Claim, Decision, Grant, Lock, Refusal};
use crate::protocol::token::Revision;
use crate::store::{StoreError, Stored, within};

use super::release::Returning;
use super::take_over::Fate;
use super::{AcquireError, Acquired, Agent, Backoff, CALL_LIMIT, HolderView};

/// What the store's side of a try came to.
pub(super) enum Taken {
    /// The lock names our grant.
    Ours(Stored<Lock>),
    /// It names another.
    Others(Acquired),
}

/// What to do about a lock that was read.
enum Step {
    /// Write this.
    Write(Box<Lock>),
    /// Nothing more.
    Done(Box<Taken>),
    /// The lock changed under the decision; read it again.
    Again,
}

impl Agent {
    /// Tries until the lock names a grant, ours or another's. `unsettled` is the version on which
    /// a write was sent whose outcome is not known.
    pub(super) async fn take(
        &self,
        resource: &Resource,
        claim: &Claim,
        unsettled: &mut Option<Revision>,
    ) -> Result<Taken, AcquireError> {
        let mut known = self.state().take_known(resource);
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            match self
                .try_take(known.take(), resource, claim, unsettled)
                .await
            {
                Ok(Some(taken)) => return Ok(taken),
                // Somebody else's write came first: read again at once, but not for ever.
                Ok(None) => {}
                Err(AcquireError::Store(error)) if error.is_transient() => {
                    if !self.pause(&mut backoff).await {
                        return Err(AcquireError::Store(error));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            if !self.pause(&mut backoff).await {
                return Err(AcquireError::Store(StoreError::Unavailable(
                    "other writes to the lock kept coming first".into(),
                )));
            }
        }
    }

    /// One round: read (unless the lock is known), decide, write. None when another write came
    /// first.
    async fn try_take(
        &self,
        known: Option<Stored<Lock>>,
        resource: &Resource,
        claim: &Claim,
        unsettled: &mut Option<Revision>,
    ) -> Result<Option<Taken>, AcquireError> {
        let current = match known {
            Some(known) => known,
            None => self.read_or_create(resource).await?,
        };
        let next = match self.plan(&current, claim).await? {
            Step::Done(taken) => return Ok(Some(*taken)),
            Step::Again => return Ok(None),
            Step::Write(next) => next,
        };
        self.check_session(&claim.claimant.session)?;
        // Closes the race of two who read the same free (or dead) lock: one write per version.
        match within(CALL_LIMIT, self.0.locks.update(&current, &next)).await {
            Ok(stored) => {
                self.state().note_lock(&stored);
                Ok(stored
                    .value
                    .is_held_by(&claim.grant)
                    .then_some(Taken::Ours(stored)))
            }
            Err(StoreError::Conflict | StoreError::NotFound(_)) => Ok(None),
            Err(error) => {
                if let (StoreError::DeniedByPolicy(reason), Some(grant)) =
                    (&error, &current.value.grant)
                {
                    let hint = Some(self.note_strict(reason));
                    return Ok(Some(Taken::Others(held_by_other(
                        &current.value,
                        grant,
                        hint,
                    ))));
                }
                if matches!(error, StoreError::Ambiguous(_)) {
                    *unsettled = Some(current.version);
                }
                Err(error.into())
            }
        }
    }

    async fn plan(&self, current: &Stored<Lock>, claim: &Claim) -> Result<Step, AcquireError> {
        let mint = self.mint()?;
        match current.value.acquire(current.version, &mint, claim) {
            Decision::Granted(next) | Decision::Queued(next) => Ok(Step::Write(next)),
            Decision::AlreadyGranted => Ok(Step::Done(Box::new(Taken::Ours(current.clone())))),
            Decision::Refused(Refusal::TokenExhausted(error)) => Err(error.into()),
            Decision::Refused(Refusal::Held | Refusal::QueueFull) | Decision::AlreadyQueued(_) => {
                self.plan_about_holder(current, claim).await
            }
        }
    }

    async fn plan_about_holder(
        &self,
        current: &Stored<Lock>,
        claim: &Claim,
    ) -> Result<Step, AcquireError> {
        let lock = &current.value;
        let Some(grant) = &lock.grant else {
            return Ok(Step::Again);
        };
        self.check_orphan(&lock.resource, grant, claim)?;
        match self.fate_of(&grant.holder).await? {
            Fate::MayLive { hint } => Ok(Step::Done(Box::new(Taken::Others(held_by_other(
                lock, grant, hint,
            ))))),
            Fate::Dead => {
                let next = self.plan_take_over(current, claim);
                Ok(next.map_or(Step::Again, |next| Step::Write(Box::new(next))))
            }
        }
    }

    /// A grant under our own session is some lease's, some other attempt's, or on its way back.
    /// One that is none of these landed after everybody had given up on it: it is released.
    fn check_orphan(
        &self,
        resource: &Resource,
        grant: &Grant,
        claim: &Claim,
    ) -> Result<(), StoreError> {
        if grant.holder.session != claim.claimant.session {
            return Ok(());
        }
        let is_returning = {
            let state = self.state();
            let held = state.held.get(resource);
            let is_served = held.is_some_and(|held| *held.tenure.grant() == grant.id);
            if is_served || state.claimed.contains(&grant.id) {
                return Ok(());
            }
            state.returning.contains(&grant.id)
        };
        // The lock may have been read before a release that is done by now: only a grant that a
        // second read still shows is an orphan.
        if !is_returning && self.state().suspected_before(&grant.id) {
            tracing::warn!(%resource, grantId = %grant.id, "an own grant that nobody awaits; releasing");
            let (resource, grant) = (resource.clone(), grant.id.clone());
            // Nobody waits for it; the task goes on by itself.
            let _done = self.spawn_give_back(Returning {
                resource,
                grant,
                known: None,
                lease: None,
            });
        }
        Err(StoreError::Unavailable(
            "the lock's last lease in this pod is still being released".into(),
        ))
    }

    /// The lock as of now; its object is made where there is none.
    async fn read_or_create(&self, resource: &Resource) -> Result<Stored<Lock>, AcquireError> {
        if let Some(stored) = self.read_lock(resource).await? {
            return Ok(stored);
        }
        match within(CALL_LIMIT, self.0.locks.create(resource)).await {
            Ok(stored) => {
                self.state().note_revision(stored.version);
                Ok(stored)
            }
            // Somebody made it meanwhile, or an answer of ours was lost.
            Err(StoreError::Conflict) => match self.read_lock(resource).await? {
                Some(stored) => Ok(stored),
                None => {
                    Err(StoreError::Unavailable("the lock object comes and goes".into()).into())
                }
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a lock and takes note of its revision.
    pub(super) async fn read_lock(
        &self,
        resource: &Resource,
    ) -> Result<Option<Stored<Lock>>, StoreError> {
        let stored = within(CALL_LIMIT, self.0.locks.get(resource)).await?;
        if let Some(stored) = &stored {
            self.state().note_revision(stored.version);
        }
        Ok(stored)
    }

    /// After a restored backup the token is raised by a second write before anybody hears of it.
    pub(super) async fn raise_if_restored(
        &self,
        mut stored: Stored<Lock>,
        grant: &GrantId,
    ) -> Result<Stored<Lock>, AcquireError> {
        let mut backoff = Backoff::of_a_call(self.now());
        loop {
            self.state().note_revision(stored.version);
            if !stored.value.is_held_by(grant) {
                return Err(AcquireError::Store(StoreError::Unavailable(
                    "somebody ended the grant before it could be told".into(),
                )));
            }
            let mint = self.mint()?;
            if !mint.must_raise(stored.value.token, stored.version) {
                return Ok(stored);
            }
            tracing::warn!(
                resource = %stored.value.resource, fencingToken = stored.value.token.get(),
                revision = stored.version.0,
                "the store's revision leapt (a restored backup?); raising the token first"
            );
            let raised = stored.value.rebase(stored.version, &mint, grant)?;
            let raised = raised.ok_or(AcquireError::SessionLost)?;
            // Closes the race with a force release: the token is raised on the version we hold.
            let error = match within(CALL_LIMIT, self.0.locks.update(&stored, &raised)).await {
                Ok(written) => {
                    stored = written;
                    continue;
                }
                Err(error) => error,
            };
            if error != StoreError::Conflict && !error.is_transient() {
                return Err(error.into());
            }
            if !self.pause(&mut backoff).await {
                return Err(error.into());
            }
            if let Ok(Some(found)) = self.read_lock(&stored.value.resource).await {
                stored = found;
            }
        }
    }
}

fn held_by_other(lock: &Lock, grant: &Grant, hint: Option<String>) -> Acquired {
    Acquired::Held {
        holder: holder_view(lock, grant),
        queue_length: lock.waiters.len(),
        hint,
    }
}

/// Who holds a lock, for people.
pub(super) fn holder_view(lock: &Lock, grant: &Grant) -> HolderView {
    HolderView {
        owner: grant.holder.owner.clone(),
        pod: grant.holder.pod.name.to_string(),
        token: lock.token,
        acquired_at: grant.acquired_at,
        metadata: grant.metadata.clone(),
    }
}

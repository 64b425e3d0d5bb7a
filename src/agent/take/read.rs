//! Reads of a lock, and what the agent takes note of then.

use crate::agent::bid::Bid;
use crate::agent::core::observed;
use crate::agent::{AcquireError, Agent, CALL_LIMIT};
use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::store::{StoreError, Stored, within};

impl Agent {
    /// The lock as of now; its object is made where there is none.
    pub(super) async fn read_or_create(&self, bid: &mut Bid) -> Result<Stored<Lock>, AcquireError> {
        if let Some(stored) = self.read_for(bid).await? {
            return Ok(stored);
        }
        let resource = &bid.request.resource;
        match within(CALL_LIMIT, self.0.locks.create(resource)).await {
            Ok(stored) => {
                self.observe_revision(stored.version);
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

    /// Reads the lock; without a session together with the store's revision, which the session
    /// would have to ask for next.
    async fn read_for(&self, bid: &mut Bid) -> Result<Option<Stored<Lock>>, AcquireError> {
        if self.current_session().is_some() {
            return Ok(self.read_lock(&bid.request.resource).await?);
        }
        let (before, asked_at) = (self.seen_before_list(), self.now());
        let resource = &bid.request.resource;
        let looked = within(CALL_LIMIT, self.0.locks.get_with_revision(resource)).await?;
        let looked_at = looked.lock.as_ref();
        self.record_read(resource, asked_at, looked_at);
        self.observe_list(before, looked.revision)?;
        bid.listed = Some(looked.revision);
        Ok(looked.lock)
    }

    /// Reads a lock and takes note of its revision.
    pub(in crate::agent) async fn read_lock(
        &self,
        resource: &Resource,
    ) -> Result<Option<Stored<Lock>>, StoreError> {
        let asked_at = self.now();
        let stored = within(CALL_LIMIT, self.0.locks.get(resource)).await?;
        self.record_read(resource, asked_at, stored.as_ref());
        if let Some(stored) = &stored {
            self.observe_revision(stored.version);
            self.with_leases(|leases| observed::read(leases, stored));
        }
        Ok(stored)
    }

    fn record_read(&self, resource: &Resource, asked_at: Moment, read: Option<&Stored<Lock>>) {
        let mut state = self.state();
        state.elections.record_read(resource, asked_at, read);
    }

    /// Takes note of a lock as it was just written.
    pub(in crate::agent) fn note_written(&self, stored: &Stored<Lock>) {
        self.observe_revision(stored.version);
        self.state().core.free_locks.observe(stored);
    }
}

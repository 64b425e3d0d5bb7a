//! What the admission policies of strict mode refuse: a pod that ends another's session or grant.

use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::Session;
use leasehold::store::StoreError;

use super::Link;

impl Link {
    fn is_bound(&self) -> bool {
        self.world().setting().is_strict && !self.0.is_operator
    }

    fn refuse(&self) -> Result<(), StoreError> {
        self.world().count("refused by policy");
        let words = "only the operator takes over";
        Err(StoreError::DeniedByPolicy(words.into()))
    }

    pub(super) fn may_write_session(&self, next: &Session) -> Result<(), StoreError> {
        if self.is_bound() && *next.pod.name != *self.0.who {
            return self.refuse();
        }
        Ok(())
    }

    pub(super) fn may_write_lock(&self, next: &Lock) -> Result<(), StoreError> {
        let ends_anothers = {
            let book = self.world().book();
            let before = book.checks.lock(&next.resource);
            let had = before.and_then(|lock| lock.grant.as_ref());
            had.is_some_and(|had| *had.holder.pod.name != *self.0.who && !next.is_held_by(&had.id))
        };
        if self.is_bound() && ends_anothers {
            return self.refuse();
        }
        Ok(())
    }
}

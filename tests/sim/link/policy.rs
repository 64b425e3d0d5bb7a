//! The admission policies of strict mode: they refuse a pod that ends another pod's session or
//! grant. It also checks what no process may do: end a grant before its session has ended.

use leasehold::protocol::lock::{Grant, Lock};
use leasehold::protocol::session::Session;
use leasehold::protocol::token::Revision;
use leasehold::store::StoreError;

use super::Link;

impl Link {
    fn is_bound(&self) -> bool {
        self.world().setup().is_strict && !self.0.is_operator
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
        if self.is_bound() && self.ended_by(next).is_some() {
            return self.refuse();
        }
        Ok(())
    }

    /// Returns the other pod's grant that this write ends.
    pub(super) fn ended_by(&self, next: &Lock) -> Option<Grant> {
        let records = self.world().records();
        let had = records.invariants.lock(&next.resource)?.grant.as_ref()?;
        let ends = *had.holder.pod.name != *self.0.who && !next.names_grant(&had.id);
        ends.then(|| had.clone())
    }

    /// Checks an applied write that may contain the writer's own new grant. Its token must exceed
    /// every revision that a LIST had returned to the writer when it sent the write.
    pub(super) fn judge_token(&self, before: &Lock, next: &Lock, listed: Revision) {
        let Some(grant) = &next.grant else { return };
        let is_own = *grant.holder.pod.name == *self.0.who;
        if !is_own || before.names_grant(&grant.id) || next.token.get() >= as_token(listed) {
            return;
        }
        let (of, token) = (&next.resource, next.token);
        let flaw = format!("{of} has token {token} from one who had listed {listed:?}");
        self.world().judge(&self.0.who, Err(flaw));
    }

    /// Checks an applied write that ended this grant. Its session must be revoked or missing for
    /// long enough, or an administrator requested it.
    pub(super) fn judge_end(&self, of: &Lock, ended: Option<Grant>) {
        let Some(ended) = ended else { return };
        let now = self.world().now();
        let verdict = {
            let records = self.world().records();
            if records.invariants.is_overridden(&of.resource, &ended.id) {
                return;
            }
            records.sessions.may_be_ended(&ended.holder, now)
        };
        self.world().judge(&self.0.who, verdict);
    }
}

fn as_token(revision: Revision) -> u64 {
    u64::try_from(revision.scale()).unwrap_or(u64::MAX)
}

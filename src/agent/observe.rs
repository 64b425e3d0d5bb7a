//! Looking at who holds locks before anybody asks for them.
//!
//! A challenger's wait counts from its first look at a session. An agent that starts where another
//! one was killed looks at once, so that whoever asks later need not wait for a whole TTL more.

use std::collections::BTreeMap;

use crate::protocol::lock::Grant;
use crate::protocol::observed::Sight;
use crate::store::{StoreError, within};

use super::{Agent, CALL_LIMIT};

/// How many locks are read at a time.
const PAGE: u32 = 500;

impl Agent {
    /// Takes a look at the session of every holder. Writes nothing for those that it has not
    /// looked at before.
    ///
    /// # Errors
    /// What the store says; nothing is lost by it but time.
    pub async fn observe_holders(&self) -> Result<(), StoreError> {
        let mut grants: BTreeMap<_, Grant> = BTreeMap::new();
        let mut next: Option<String> = None;
        loop {
            let list = self.0.locks.list(PAGE, next.as_deref());
            let page = within(CALL_LIMIT, list).await?;
            for grant in page.items.into_iter().filter_map(|lock| lock.value.grant) {
                grants.insert(grant.holder.key(), grant);
            }
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        for grant in grants.values() {
            let holder = grant.holder.key();
            let read = within(CALL_LIMIT, self.0.sessions.get(&holder.id)).await?;
            let read = read.filter(|stored| stored.value.key() == holder);
            let sight = match read {
                None => Sight::Missing,
                Some(stored) if stored.value.revoked.is_some() => Sight::Revoked,
                Some(stored) => Sight::Version(stored.version),
            };
            let now = self.now();
            self.state().core.peers.observe(&holder, sight, now);
        }
        Ok(())
    }
}

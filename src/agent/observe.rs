//! Looking at who holds locks before anybody asks for them.
//!
//! A challenger's wait counts from its first look at a session. An agent that starts where another
//! one was killed looks at once, so that whoever asks later need not wait for a whole TTL more.

use std::collections::BTreeMap;

use crate::protocol::lock::Grant;
use crate::protocol::observed::Sight;
use crate::store::{StoreError, within};

use super::core::CALL_LIMIT;
use super::driver::Driver;

/// How many locks are read at a time.
const PAGE: u32 = 500;

/// Takes a look at the session of every holder.
pub(super) async fn observe_holders(driver: &Driver) -> Result<(), StoreError> {
    let mut grants: BTreeMap<_, Grant> = BTreeMap::new();
    let mut next: Option<String> = None;
    loop {
        let list = driver.locks.list(PAGE, next.as_deref());
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
        let read = within(CALL_LIMIT, driver.sessions.get(&holder.id)).await?;
        let read = read.filter(|stored| stored.value.key() == holder);
        let sight = match read {
            None => Sight::Missing,
            Some(stored) if stored.value.revoked.is_some() => Sight::Revoked,
            Some(stored) => Sight::Version(stored.version),
        };
        let now = driver.now();
        driver.state().core.peers.observe(&holder, sight, now);
    }
    Ok(())
}

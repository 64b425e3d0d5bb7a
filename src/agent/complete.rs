//! Records in a lock that guarded work has succeeded.
//!
//! The record is a write of its own, made while the lease is held: a confirmed one is in the lock before
//! any other holder can be. It is a compare-and-swap on a version that names this grant, so it cannot be
//! applied after the grant has ended. It is the only write beside the core: no decision of the core
//! depends on it, and the core is given its result as that of a read. A caller without a confirmation
//! repeats the call: a key that is recorded already needs no write.

use crate::protocol::completed::{Completion, CompletionKey};
use crate::protocol::ids::{LeaseId, Resource};
use crate::store::{StoreError, within};

use super::api::{CompleteError, LeaseError};
use super::core::answers::{self, Guarding};
use super::core::{CALL_LIMIT, REQUEST_LIMIT, observed};
use super::driver::Driver;
use super::query::read_lock;
use super::release::explained;

/// How many writes are tried. Each conflict is usually a new waiter.
const WRITES_MAX: usize = 8;

/// Records a key for a lease, and waits for the confirmation.
pub(super) async fn complete(
    driver: &Driver,
    lease: &LeaseId,
    key: &CompletionKey,
) -> Result<(), CompleteError> {
    let until = driver.now().after(REQUEST_LIMIT);
    for _ in 0..WRITES_MAX {
        let held = guarding(driver, lease).await?;
        let lock = &held.lock.value;
        if lock.completed.contains(key) {
            return Ok(());
        }
        let completion = Completion {
            key: key.clone(),
            at: driver.clock.wall(),
            token: held.token,
            owner: held.owner,
        };
        let next = lock.complete(&held.grant, completion);
        let next = next.ok_or(LeaseError::Unknown)?;
        // Closes the race with the end of the grant: no other holder has the lock at this version.
        match within(CALL_LIMIT, driver.locks.update(&held.lock, &next)).await {
            Ok(stored) => {
                driver.with_core(|core, cx| {
                    core.observe_revision(cx, stored.version);
                    observed::written(&mut core.leases(cx), &stored);
                });
                if stored.value.completed.contains(key) {
                    return Ok(());
                }
                // An API server removes the fields that its definitions do not have.
                let why = "the API server did not store status.completed".into();
                return Err(StoreError::Invalid(why).into());
            }
            Err(StoreError::Conflict | StoreError::NotFound(_)) if driver.now() < until => {
                read_again(driver, &lock.resource).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Conflict.into())
}

async fn guarding(driver: &Driver, lease: &LeaseId) -> Result<Guarding, LeaseError> {
    match driver.with_leases(|leases| answers::guarding(leases, lease)) {
        Ok(held) => Ok(held),
        Err(error) => Err(explained(driver, lease, error).await),
    }
}

/// Reads the lock, and lets the core know whether it still names the grant.
async fn read_again(driver: &Driver, resource: &Resource) -> Result<(), StoreError> {
    let before = driver.state().core.own.before_read(resource);
    let read = read_lock(driver, resource).await?;
    driver.with_leases(|leases| observed::compared(leases, resource, before, read.as_ref()));
    Ok(())
}

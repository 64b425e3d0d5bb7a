//! Questions to the store: which locks there are, and whether a token is current.
//!
//! Nothing is answered from memory here but what the agent alone knows: which of a grant's
//! thousand tokens its lease has.

use crate::protocol::ids::Resource;
use crate::protocol::key::GrantKey;
use crate::protocol::lock::{Lock, TokenCheck};
use crate::protocol::token::Token;
use crate::store::{StoreError, Stored, within};

use super::api::{LockPage, LockView, QueryError, Verified};
use super::core::reply::holder_view;
use super::core::session::Live;
use super::core::{CALL_LIMIT, Core, SeenAtSend, observed};
use super::driver::Driver;

/// How many pages of the store one call reads in search of the first match.
const PAGES_MAX: usize = 10;

/// What the agent itself knows of a grant.
enum Own {
    /// The token of the lease that it serves.
    Serving(Token),
    /// The last one that it gave; that lease is over.
    Kept(Token),
    /// It is on its way back, and all its leases are over.
    GivenBack,
}

/// A page of the namespace's locks whose resource starts with `prefix`.
pub(super) async fn locks(
    driver: &Driver,
    prefix: &str,
    limit: u32,
    next: Option<&str>,
) -> Result<LockPage, QueryError> {
    let mut page = LockPage {
        locks: Vec::new(),
        next: next.map(Into::into),
        unreadable: vec![],
    };
    for _ in 0..PAGES_MAX {
        let before = seen_before_list(driver);
        let read = within(CALL_LIMIT, driver.locks.list(limit, page.next.as_deref())).await;
        let read = read.map_err(|error| match error {
            // The caller's listing begins here; it has nothing to start anew without.
            StoreError::ContinueTokenExpired(words) if next.is_none() => {
                StoreError::Unavailable(words)
            }
            error => error,
        })?;
        // Only a listing's first page is as of now.
        if page.next.is_none() {
            driver.observe_list(before, read.revision)?;
        }
        let matching = read
            .items
            .iter()
            .filter(|lock| lock.value.resource.as_str().starts_with(prefix));
        let state = driver.state();
        page.locks.extend(
            matching.map(|stored| lock_view(stored, waiting_for(&state.core, &stored.value))),
        );
        drop(state);
        page.unreadable.extend(read.unreadable);
        page.next = read.next;
        if page.next.is_none() || !page.locks.is_empty() {
            break;
        }
    }
    Ok(page)
}

/// Whether a fencing token is the current one of a resource, as the store says now.
pub(super) async fn verify(
    driver: &Driver,
    resource: &Resource,
    token: Token,
) -> Result<Verified, QueryError> {
    let lock = read_to_verify(driver, resource).await?;
    let verified = judge(driver, lock.as_ref(), token);
    if matches!(verified, Verified::Stale { .. }) {
        driver.metrics.stale_token();
    }
    Ok(verified)
}

/// Reads a lock whose tokens are compared next, and lets the agent's own leases know what that shows.
pub(super) async fn read_to_verify(
    driver: &Driver,
    resource: &Resource,
) -> Result<Option<Stored<Lock>>, QueryError> {
    let before = driver.state().core.own.before_read(resource);
    let read = read_lock(driver, resource).await?;
    driver.with_leases(|leases| observed::compared(leases, resource, before, read.as_ref()));
    Ok(read)
}

/// Reads a lock, and lets the core know what that shows.
pub(super) async fn read_lock(
    driver: &Driver,
    resource: &Resource,
) -> Result<Option<Stored<Lock>>, StoreError> {
    let asked_at = driver.now();
    let stored = within(CALL_LIMIT, driver.locks.get(resource)).await?;
    driver.with_state(|state| {
        state
            .elections
            .record_read(resource, asked_at, stored.as_ref());
        if let Some(stored) = &stored {
            driver.step(state, |core, cx| {
                core.observe_revision(cx, stored.version);
                observed::read(&mut core.leases(cx), stored);
            });
        }
    });
    Ok(stored)
}

/// Compares a token with a lock that was just read.
pub(super) fn judge(driver: &Driver, read: Option<&Stored<Lock>>, token: Token) -> Verified {
    let Some(stored) = read else {
        return Verified::Unknown {
            latest: Token::NONE,
        };
    };
    let lock = &stored.value;
    let latest = lock.token;
    match lock.check_token(token) {
        TokenCheck::Stale => Verified::Stale { latest },
        TokenCheck::Unknown => Verified::Unknown { latest },
        TokenCheck::Current => match own_token(driver, stored) {
            None => Verified::Current { exact: false },
            Some(Own::Serving(own)) if own == token => Verified::Current { exact: true },
            Some(Own::Serving(own) | Own::Kept(own)) if own >= token => {
                Verified::Stale { latest: own }
            }
            Some(Own::Serving(own) | Own::Kept(own)) => Verified::Unknown { latest: own },
            Some(Own::GivenBack) => Verified::Stale { latest },
        },
    }
}

/// What this agent knows of the lock's grant, if it is this agent's.
fn own_token(driver: &Driver, stored: &Stored<Lock>) -> Option<Own> {
    let state = driver.state();
    let resource = &stored.value.resource;
    let is_ours = |grant: &GrantKey| stored.value.is_held_by(grant);
    if let Some(held) = state.core.own.held(resource) {
        return is_ours(&held.key()).then_some(Own::Serving(held.lease.token));
    }
    if let Some(warm) = state.core.own.warm(resource) {
        return is_ours(&warm.key()).then(|| Own::Kept(warm.tenure.last_token()));
    }
    let grant = stored.value.grant.as_ref()?;
    let is_given_back = state.core.releases.has(&grant.id);
    is_given_back.then_some(Own::GivenBack)
}

/// Returns what had been seen when a list is sent: all that its answer can be compared with. A
/// write that is answered while the list is in flight may well be newer than it.
fn seen_before_list(driver: &Driver) -> SeenAtSend {
    driver.state().core.seen_at_send()
}

/// How many wait for a lock, as far as is known here.
fn waiting_for(core: &Core, lock: &Lock) -> usize {
    let own = core.live().map(Live::key);
    core.acquiring.waiting_for(lock, own.as_ref())
}

fn lock_view(stored: &Stored<Lock>, queue_length: usize) -> LockView {
    let lock = &stored.value;
    LockView {
        resource: lock.resource.clone(),
        holder: lock.grant.as_ref().map(|grant| holder_view(lock, grant)),
        token: lock.token,
        queue_length,
        transitions: lock.transitions,
    }
}

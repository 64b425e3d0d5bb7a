//! Reports of refused writes: the only proof that a stale writer exists.
//!
//! A report is accepted if the lock says that its token is stale. Of two leases of one grant in another pod only the
//! guarded resource knows which one is later, so a report may claim that. A report is counted and logged, and an Event
//! about the lock shows it. The Events are bounded twice: there is one for each token, and an agent tries to write one
//! only once in [`EVENT_PAUSE`]. A report changes no lock and no lease.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::time::Moment;
use crate::protocol::token::Token;
use crate::store::cluster::{RefusalEvents, RefusedWrite};
use crate::store::{StoreError, Stored, within};

use super::api::{QueryError, Verified};
use super::core::CALL_LIMIT;
use super::driver::Driver;
use super::query::{judge, read_to_verify};

/// The time between two attempts of an agent to write an Event.
pub const EVENT_PAUSE: Duration = Duration::from_secs(10);

/// An accepted report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The newest known token: of the report, or the first one of the current or last grant.
    pub latest: Token,
    /// The result of writing an Event.
    pub event: EventOutcome,
}

/// The result of writing the Event of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventOutcome {
    /// It exists.
    Exists,
    /// It was not tried, because another attempt began less than [`EVENT_PAUSE`] ago.
    Limited,
    /// The agent uses no cluster, so there are no Events.
    NoCluster,
    /// This attempt failed, or the one for the same token less than [`EVENT_PAUSE`] ago.
    Failed(StoreError),
}

/// Why a report was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// The token belongs to the current grant, and no newer token of it is known.
    Current,
    /// It is larger than all tokens that the lock granted.
    Unknown {
        /// The first token of the current or last grant.
        latest: Token,
    },
    /// The lock could not be read.
    Query(QueryError),
}

/// What an agent keeps for its reports.
#[derive(Default)]
pub(super) struct Refusals {
    /// `None` without a cluster.
    events: Option<Arc<dyn RefusalEvents>>,
    last: Mutex<Option<Attempt>>,
}

/// The last attempt to write an Event.
struct Attempt {
    at: Moment,
    resource: Resource,
    token: Token,
    /// `None` while it runs.
    result: Option<Result<(), StoreError>>,
}

impl Refusals {
    pub(super) fn new(events: Arc<dyn RefusalEvents>) -> Self {
        Self {
            events: Some(events),
            last: Mutex::default(),
        }
    }

    /// Begins an attempt, or returns the result that is known without one.
    fn begin(&self, refused: &RefusedWrite, now: Moment) -> Result<(), EventOutcome> {
        let mut last = self.last();
        if let Some(last) = &*last
            && now < last.at.after(EVENT_PAUSE)
        {
            let is_same = last.resource == refused.resource && last.token == refused.token;
            return Err(match &last.result {
                Some(Ok(())) if is_same => EventOutcome::Exists,
                Some(Err(error)) if is_same => EventOutcome::Failed(error.clone()),
                _ => EventOutcome::Limited,
            });
        }
        *last = Some(Attempt {
            at: now,
            resource: refused.resource.clone(),
            token: refused.token,
            result: None,
        });
        Ok(())
    }

    fn end(&self, began: Moment, result: &Result<(), StoreError>) {
        if let Some(last) = &mut *self.last()
            && last.at == began
        {
            last.result = Some(result.clone());
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Attempt>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts a report.
pub(super) async fn report(
    driver: &Driver,
    refusals: &Refusals,
    refused: RefusedWrite,
) -> Result<Reported, ReportError> {
    let lock = read_to_verify(driver, &refused.resource).await;
    let latest = latest_token(driver, lock.map_err(ReportError::Query)?.as_ref(), &refused)?;
    driver.metrics.refused_write();
    tracing::warn!(
        resource = %refused.resource, fencingToken = refused.token.get(),
        latestFencingToken = latest.get(), guard = refused.guard.as_deref(),
        "stale write refused"
    );
    let event = write_event(driver, refusals, &refused, latest).await;
    Ok(Reported { latest, event })
}

/// Returns the newest known token of the lock, if that of the report is stale.
fn latest_token(
    driver: &Driver,
    lock: Option<&Stored<Lock>>,
    refused: &RefusedWrite,
) -> Result<Token, ReportError> {
    let is_granted =
        |token: &Token| !matches!(judge(driver, lock, *token), Verified::Unknown { .. });
    let reported = refused.latest.filter(is_granted);
    match judge(driver, lock, refused.token) {
        Verified::Stale { latest } => Ok(latest.max(reported.unwrap_or(latest))),
        Verified::Unknown { latest } => Err(ReportError::Unknown { latest }),
        Verified::Current { exact: false } => {
            let newer = reported.filter(|reported| *reported > refused.token);
            newer.ok_or(ReportError::Current)
        }
        Verified::Current { exact: true } => Err(ReportError::Current),
    }
}

async fn write_event(
    driver: &Driver,
    refusals: &Refusals,
    refused: &RefusedWrite,
    latest: Token,
) -> EventOutcome {
    let Some(events) = &refusals.events else {
        return EventOutcome::NoCluster;
    };
    let now = driver.now();
    if let Err(known) = refusals.begin(refused, now) {
        return known;
    }
    let writing = events.write(refused, latest, driver.clock.wall());
    let written = within(CALL_LIMIT, writing).await;
    refusals.end(now, &written);
    match written {
        Ok(()) => EventOutcome::Exists,
        Err(error) => {
            tracing::warn!(resource = %refused.resource, %error, "writing an Event failed");
            EventOutcome::Failed(error)
        }
    }
}

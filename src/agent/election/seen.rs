//! Who leads elsewhere, as the store says. An answer is kept for a short while: an app may ask ten times
//! a second, and the API server must not feel it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::agent::api::{ElectionError, ElectionView, QueryError};
use crate::agent::driver::Driver;
use crate::agent::query::read_lock;
use crate::agent::state::seen::Found;
use crate::protocol::election::ElectionName;
use crate::protocol::ids::Resource;
use crate::protocol::token::Token;
use crate::store::{StoreError, within};

/// How old an answer about others may get before the store is asked, and how soon it is asked
/// again after it did not answer.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(1);
/// How long a reader waits for the store who would know nothing else.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// How long a reader waits who can be told what is known from before. The read goes on.
const KNOWN_READ_LIMIT: Duration = Duration::from_millis(100);

/// The election as the store said last; the store is asked where that was long ago. While it
/// does not answer, what it said before stands, with its age.
pub(super) async fn seen_election(
    driver: &Driver,
    election: &ElectionName,
) -> Result<ElectionView, ElectionError> {
    let resource = election.resource();
    if let Some(view) = view_seen_within(driver, election, fresh_for(driver, resource)) {
        return view;
    }
    let is_known =
        view_seen_within(driver, election, Duration::MAX).is_some_and(|known| known.is_ok());
    let asked = if is_known {
        let asked = ask_in_turn(driver, resource);
        let in_time = tokio::time::timeout(KNOWN_READ_LIMIT, asked).await;
        in_time.unwrap_or(Ok(()))
    } else {
        ask_in_turn(driver, resource).await
    };
    match asked {
        Err(error) if !error.is_transient() => Err(QueryError::from(error).into()),
        asked => {
            let known = view_seen_within(driver, election, Duration::MAX);
            known.unwrap_or_else(|| Err(not_known(asked.err())))
        }
    }
}

/// Has the store asked by one reader for all, and waits for what it says. The read goes on, and
/// is noted, when nobody waits for it any more.
async fn ask_in_turn(driver: &Driver, resource: &Resource) -> Result<(), StoreError> {
    let one_at_a_time = turn(driver, resource).lock_owned().await;
    // Somebody may have asked while this waited for its turn, in vain or not.
    if is_seen_within(driver, resource, fresh_for(driver, resource))
        || was_unanswered_just_now(driver, resource)
    {
        return Ok(());
    }
    let (answered, answer) = oneshot::channel();
    let (asking, resource) = (driver.clone(), resource.clone());
    driver.spawn(async move {
        let read = within(READ_LIMIT, read_lock(&asking, &resource)).await;
        if read.as_ref().is_err_and(StoreError::is_transient) {
            note_unanswered(&asking, &resource);
        }
        drop(one_at_a_time);
        // Nobody may be waiting any more.
        let _unheard = answered.send(read.map(|_noted| ()));
    });
    answer.await.unwrap_or(Ok(()))
}

fn is_seen_within(driver: &Driver, resource: &Resource, longest: Duration) -> bool {
    let now = driver.now();
    let state = driver.state();
    let seen = state.elections.seen.of(resource);
    let found = seen.and_then(|seen| seen.found.as_ref());
    found.is_some_and(|(as_of, _)| now.since(*as_of) < longest)
}

/// A candidate's claim reads the lock every third of the period anyway.
fn fresh_for(driver: &Driver, resource: &Resource) -> Duration {
    let now = driver.now();
    if driver.state().core.acquiring.is_awaited(resource, now) {
        driver.config.session_ttl.period() * 2 / 5
    } else {
        FRESH_FOR
    }
}

/// The turn to ask about an election.
fn turn(driver: &Driver, resource: &Resource) -> Arc<tokio::sync::Mutex<()>> {
    let mut state = driver.state();
    let seen = state.elections.seen.of_mut(resource);
    seen.asking.clone()
}

/// The election as the store returned it less than `longest` ago.
pub(super) fn view_seen_within(
    driver: &Driver,
    election: &ElectionName,
    longest: Duration,
) -> Option<Result<ElectionView, ElectionError>> {
    let resource = election.resource();
    let now = driver.now();
    let state = driver.state();
    let (as_of, found) = state.elections.seen.of(resource)?.found.as_ref()?;
    let age = now.since(*as_of);
    if age >= longest {
        return None;
    }
    let is_candidate = state.core.acquiring.is_awaited(resource, now)
        || state.elections.campaigns.contains(resource);
    let (holder, token) = match found {
        Found::Lock { holder, token } => (holder.clone(), *token),
        Found::Nothing if is_candidate => (None, Token::NONE),
        Found::Nothing => return Some(Err(ElectionError::Unknown(election.clone()))),
    };
    Some(Ok(ElectionView {
        election: election.clone(),
        lead: None,
        holder,
        token,
        age: Some(age),
    }))
}

fn was_unanswered_just_now(driver: &Driver, resource: &Resource) -> bool {
    let now = driver.now();
    let state = driver.state();
    let seen = state.elections.seen.of(resource);
    let failed_at = seen.and_then(|seen| seen.failed_at);
    failed_at.is_some_and(|at| now.since(at) < FRESH_FOR)
}

fn note_unanswered(driver: &Driver, resource: &Resource) {
    let now = driver.now();
    driver.state().elections.seen.of_mut(resource).failed_at = Some(now);
}

/// Why nothing is known of who leads.
fn not_known(error: Option<StoreError>) -> ElectionError {
    let error = error.unwrap_or_else(|| {
        let words = "who leads is not known: it did not answer just now, or that changed meanwhile";
        StoreError::Unavailable(words.into())
    });
    QueryError::from(error).into()
}

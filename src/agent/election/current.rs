//! Who leads an election now.

use crate::agent::api::{ElectionError, ElectionView};
use crate::agent::driver::Driver;
use crate::protocol::election::ElectionName;
use crate::protocol::time::Moment;

use super::interest::note_question;
use super::lead::lead;
use super::seen::seen_election;

/// Who leads: this agent, until a deadline of its own, or whom the store named.
pub(in crate::agent) async fn current(
    driver: &Driver,
    election: &ElectionName,
    arrived: Moment,
) -> Result<ElectionView, ElectionError> {
    note_question(driver, election);
    if let Some(view) = lead(driver, election, arrived) {
        return Ok(view);
    }
    let view = seen_election(driver, election).await;
    // The lead may have come while the store was asked.
    lead(driver, election, arrived).map_or(view, Ok)
}

//! The lead of this agent: answered from the lease and the clock alone, and told to readers.

use std::time::Duration;

use crate::agent::api::{ElectionView, HolderView, Lead};
use crate::agent::core::answers;
use crate::agent::core::held::Held;
use crate::agent::driver::Driver;
use crate::protocol::election::ElectionName;
use crate::protocol::time::Moment;

/// The shortest time that readers are told of, where the session has it.
const SHORTEST_TOLD: Duration = Duration::from_secs(1);

/// The election as its leader here sees it: recorded in the lease before it is told. None when
/// the agent has no lease of it, or the clock has ended that.
pub(in crate::agent) fn lead(
    driver: &Driver,
    election: &ElectionName,
    arrived: Moment,
) -> Option<ElectionView> {
    let resource = election.resource();
    let short = short(driver);
    let told =
        driver.with_leases(|leases| answers::tell_readers(leases, resource, arrived, short))?;
    let state = driver.state();
    let held = state.core.own.lease(&told.lease)?;
    Some(ElectionView {
        election: election.clone(),
        lead: Some(Lead {
            lease: told.lease,
            valid_for: told.valid_for,
        }),
        holder: Some(own_view(driver, held)),
        token: held.lease.token,
        age: None,
    })
}

/// What readers of an app's lease are told of: it is as long as they keep the next leader waiting
/// when the app ends it.
fn short(driver: &Driver) -> Duration {
    (driver.config.session_ttl.period() / 10).max(SHORTEST_TOLD)
}

fn own_view(driver: &Driver, held: &Held) -> HolderView {
    HolderView {
        owner: held.owner.clone(),
        pod: driver.config.pod.name.to_string(),
        token: held.stored.value.token,
        acquired_at: held.acquired_at,
        metadata: held.metadata.clone(),
        kept: false,
    }
}

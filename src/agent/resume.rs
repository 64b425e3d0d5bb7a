//! An agent that continues where its process died, as far as the state file and the store allow. The core
//! decides.

use super::config::Config;
use super::core::saved::SavedState;
use super::driver::{Driver, state_discarded};
use super::journal::past::{self, Discarded};
use super::journal::{Memory, Recorder, Writer};

/// Continues what the process before did, as far as that may be, and writes down what the process after
/// must know.
pub(super) fn recall(driver: &Driver, memory: Memory) {
    let Config {
        pod, session_ttl, ..
    } = &driver.config;
    let identity = memory.identity(pod, *session_ttl);
    let mut writer = Writer::behind(memory.journal, identity.clone());
    let saved = match past::read(&memory.past, &identity, *session_ttl, driver.now()) {
        Ok(saved) => saved,
        Err(discarded) => discard(driver, discarded, &mut writer),
    };
    driver.with_state(|state| {
        state.journal = Recorder::with(writer);
        driver.step(state, |core, cx| core.recall(cx, saved));
    });
}

/// Discards a journal. What is left of it is how its leases ended, if they were this pod's.
fn discard(driver: &Driver, discarded: Discarded, writer: &mut Writer) -> SavedState {
    let Discarded { reason, mut saved } = discarded;
    // One that is well, only not for this agent, need not be looked at.
    let set_aside = reason.sets_file_aside().then(|| writer.set_aside());
    let file = set_aside.transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "renaming state file failed; overwriting it");
        None
    });
    let session = saved.session.take();
    let is_known = session.is_some() || !saved.leases.is_empty();
    let leases = is_known.then_some(saved.leases.len());
    let session = session.as_ref().map(|session| &session.id);
    state_discarded(&reason, session, leases, file.as_deref());
    if !reason.reports_leases() {
        return SavedState::default();
    }
    for _ in &saved.leases {
        driver.metrics.lease_lost(reason.loss().as_str());
    }
    saved.end_all(reason.loss());
    *saved
}

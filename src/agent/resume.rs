//! An agent that continues where its process died, as far as the state file and the store allow. The core
//! decides.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::{LockStore, SessionStore};

use super::core::saved::SavedState;
use super::driver::state_discarded;
use super::journal::past::{self, Discarded};
use super::journal::{Memory, Recorder, Writer};
use super::{Agent, Config, OnTerm};

/// How long an agent that stops without delay waits for what it may have to release.
const RESUMED_AT_THE_END: Duration = Duration::from_secs(3);

impl Agent {
    /// Returns an agent that continues what the process before it did, as far as it may, and writes down
    /// what the process after it must know. Must be called inside a tokio runtime.
    #[must_use]
    pub fn with_memory(
        config: Config,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
        clock: Arc<dyn Clock>,
        memory: Memory,
    ) -> Self {
        let agent = Self::new(config, locks, sessions, clock);
        agent.recall(memory);
        agent
    }

    fn recall(&self, memory: Memory) {
        let Config {
            pod, session_ttl, ..
        } = &self.0.config;
        let identity = memory.identity(pod, *session_ttl);
        let mut writer = Writer::behind(memory.journal, identity.clone());
        let saved = match past::read(&memory.past, &identity, *session_ttl, self.now()) {
            Ok(saved) => saved,
            Err(discarded) => self.discard(discarded, &mut writer),
        };
        self.with_state(|state| {
            state.journal = Recorder::with(writer);
            self.step(state, |core, cx| core.recall(cx, saved));
        });
    }

    /// Discards a journal. What is left of it is how its leases ended, if they were this pod's.
    fn discard(&self, discarded: Discarded, writer: &mut Writer) -> SavedState {
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
            self.0.metrics.lease_lost(reason.loss().as_str());
        }
        saved.end_all(reason.loss());
        *saved
    }

    /// An agent that stops before it knows what it holds finds out first: then it can release it.
    pub(super) async fn resume_before_the_end(&self, on_term: OnTerm) {
        let limit = match on_term {
            OnTerm::Wait => self.state().core.promised_until().since(self.now()),
            OnTerm::ReleaseNow | OnTerm::AppsEnded => RESUMED_AT_THE_END,
        };
        let until = self.now().after(limit);
        loop {
            let ended = self.0.something_ended.notified();
            // Looked at in each round: it holds also where something ends all the time.
            if !self.state().core.is_resuming() || self.now() >= until {
                return;
            }
            tokio::select! {
                biased;
                () = ended => {}
                () = self.sleep_until(until) => {}
            }
        }
    }

    /// A stopped agent has nothing left that could continue, unless it never knew what it had.
    pub(super) fn forget_for_good(&self) {
        let mut state = self.state();
        if !state.core.is_resuming() {
            state.journal.close();
        }
    }
}

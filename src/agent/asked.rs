//! What people ask of grants (`spec.releaseRequest`, mode Ask), as far as it is the agent's to see to:
//! the app of a lease is asked, what no app uses is given back, and who lets go because it was asked
//! is on the record.
//!
//! It is no state of its own: what is asked is in the lock as it was seen last. What it does not do:
//! end a lease that an app has (but for a campaign's, which is the agent's own). Invariant: only what
//! was known here when a lease ended, and is asked in the version that the release is decided on, is
//! recorded as the cause of its end.
//!
//! A request counts if it names the grant or one of its leases. Streams report it once, and again when it
//! changes; a renewal has it in its answer. The lease that is served then is the last of its grant, so
//! callers of the same pod queue in the store. Answers about an election do not have the request, because
//! their readers may be other apps; the stream of a candidacy has it.

use std::sync::Arc;

use crate::protocol::ids::Resource;
use crate::protocol::lock::Lock;
use crate::protocol::settings::ReleaseRequest;
use crate::protocol::time::Moment;
use crate::store::Stored;

use super::Agent;
use super::kept::{Kept, others_wait};
use super::state::{Held, State};

impl Held {
    /// What somebody asks of its app.
    pub(super) fn asked(&self) -> Option<&Arc<ReleaseRequest>> {
        self.stored.value.settings.asked_of(self.tenure.grant())
    }
}

impl Kept {
    /// What somebody asks of whoever has it.
    pub(super) fn asked(&self) -> Option<&Arc<ReleaseRequest>> {
        self.stored.value.settings.asked_of(self.tenure.grant())
    }
}

impl State {
    /// Takes note of a lock as it was seen with the grant of a lease that is served here. None when
    /// it is another grant's; else whether what somebody asks of it has changed.
    pub(super) fn note_served(&mut self, seen: &Stored<Lock>, now: Moment) -> Option<bool> {
        let resource = &seen.value.resource;
        let held = self.held.get_mut(resource)?;
        if !seen.value.is_held_by(&held.key()) {
            return None;
        }
        if held.stored.version >= seen.version {
            return Some(false);
        }
        let others = others_wait(&seen.value, &held.session);
        let others_are_news = others != held.share.others_wait();
        held.share.note_others(others, now);
        let asked = held.asked().cloned();
        // Whoever joined the queue changed it; the release then needs no read.
        held.stored = seen.clone();
        let is_news = asked.as_ref() != held.asked();
        if let Some(line) = self.lines.get(resource)
            && (others_are_news || is_news)
        {
            // It may have to stand in the queue from now on.
            line.changed.notify_one();
        }
        Some(is_news)
    }
}

impl Agent {
    /// A read showed this lock. What it says of a lease that is served here is heeded, as if the watch
    /// had told it.
    pub(super) fn note_read(&self, seen: &Stored<Lock>) {
        let now = self.now();
        let is_news = self.state().note_served(seen, now);
        if is_news == Some(true) {
            self.pass_on_request(&seen.value.resource);
        }
    }

    /// What somebody asks of a lease's app has changed: its streams look at it.
    pub(super) fn pass_on_request(&self, resource: &Resource) {
        let asked = {
            let state = self.state();
            let held = state.held.get(resource);
            held.and_then(|held| Some((held.lease.id.clone(), held.asked()?.clone())))
        };
        if let Some((lease, request)) = asked {
            tracing::info!(
                %resource, leaseId = %lease, actor = ?request.actor, reason = ?request.reason,
                "release requested"
            );
        }
        self.0.streams_changed.notify_waiters();
    }
}

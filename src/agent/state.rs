//! What the agent remembers, and the bounds on it. No I/O and no decisions: those are made by the
//! modules beside it, under the one mutex.

mod ends;
mod held;
mod sights;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::protocol::ids::{GrantId, LeaseId, OwnerId, Resource, SessionId};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lease::Loss;
use crate::protocol::lock::Lock;
use crate::protocol::session::{KeepAlive, RenewalFailures, Session};
use crate::protocol::time::Moment;
use crate::protocol::token::{Revision, Seen, StoreWentBack};
use crate::store::Stored;

use super::Life;
use super::election::Elections;
use super::events::Over;
use super::journal::Writer;
use super::kept::Kept;
use super::line::Line;
use super::resume::{Bound, Left};
use super::session::Rest;
pub(super) use held::{Ended, Held};
use sights::Sighting;

/// How long the end of a lease is remembered.
const ENDED_REMEMBERED: Duration = Duration::from_secs(600);
/// How many ended leases are remembered at most.
const ENDED_MAX: usize = 20_000;
/// Everything the agent remembers.
#[derive(Default)]
pub(super) struct State {
    /// The session, while there is one that may be believed.
    pub(super) session: Option<LiveSession>,
    /// The rest before the next one.
    pub(super) rest: Rest,
    /// Where what a restarted agent must know is written; none where nobody asked for that.
    pub(super) journal: Option<Writer>,
    /// What an earlier process left, while it is not known whether it can be taken up.
    pub(super) resuming: Option<Left>,
    /// Until when apps may believe what that process told them, also of leases that do not go on.
    pub(super) promised_until: Moment,
    /// What that process told, as far as it binds this one.
    pub(super) bound: Bound,
    /// The highest revision of locks seen, over all sessions of this agent.
    pub(super) seen: Option<Seen>,
    /// The leases that are served, by resource: locks are not reentrant. Each in a box, because a
    /// map is up to half empty.
    pub(super) held: BTreeMap<Resource, Box<Held>>,
    /// The grants that are kept between two leases, by resource.
    pub(super) kept: BTreeMap<Resource, Kept>,
    /// Some grant gave another lease since the store was last asked who waits.
    pub(super) reused_a_grant: bool,
    /// Where each lease is.
    pub(super) resource_of: BTreeMap<LeaseId, Resource>,
    /// When the sweeper wakes next.
    pub(super) next_sweep: Moment,
    /// No new leases are given.
    pub(super) draining: bool,
    /// The agent has stopped and left promised leases to their session.
    pub(super) has_left: bool,
    /// Until when a refused take-over is taken as the policies' last word.
    pub(super) strict_until: Moment,
    /// What was answered to a `requestId`, for as long as the lease or its end is remembered.
    answered: BTreeMap<RequestKey, Answered>,
    /// How many attempts are under way: one for each try, and one for each line.
    pub(super) in_flight: usize,
    /// The grants that they are for.
    pub(super) claimed: BTreeSet<GrantId>,
    /// The same by lock.
    pub(super) under_way: BTreeMap<Resource, UnderWay>,
    /// The requests with an id that are under way.
    pub(super) asked: BTreeSet<RequestKey>,
    /// Who waits, by lock.
    pub(super) lines: BTreeMap<Resource, Line>,
    /// How many streams of events are open.
    pub(super) streams: usize,
    /// How many wait in all lines.
    pub(super) waiting: usize,
    /// The last ticket that a caller in some line was given.
    pub(super) last_ticket: u64,
    /// Grants that are being given back or looked for; the session must outlive them. With the
    /// lock as the watch told it since.
    pub(super) returning: BTreeMap<GrantId, Option<Stored<Lock>>>,
    /// Own grants that a read showed and that nobody here knew.
    suspects: BTreeSet<GrantId>,
    /// Foreign grants that were reported.
    pub(super) reported: BTreeSet<GrantId>,
    /// The store listed less than was seen before, and has not listed enough since.
    pub(super) went_back: Option<StoreWentBack>,
    /// When the last lease or attempt ended.
    pub(super) idle_since: Moment,
    /// Who was told of the leads that leases are, and what the store said of others'.
    pub(super) elections: Elections,
    /// Leases that are over while it is looked up why; nobody is told of their end before.
    pub(super) unexplained: BTreeSet<LeaseId>,
    ended: BTreeMap<LeaseId, End>,
    ended_order: VecDeque<(Moment, LeaseId, Option<RequestKey>)>,
    known: BTreeMap<Resource, Stored<Lock>>,
    observed: BTreeMap<SessionKey, Sighting>,
}

/// The session that the agent lives by.
pub(super) struct LiveSession {
    /// The object as last read or written.
    pub(super) stored: Stored<Session>,
    /// How long it may be believed.
    pub(super) keep_alive: KeepAlive,
    /// What went wrong with its renewals.
    pub(super) failures: RenewalFailures,
    /// Before the first try of the renewal under way was sent. A later try's success is counted
    /// from here too: which of them landed is not known.
    pub(super) renewal_sent: Option<Moment>,
    /// Whether the last try to renew it failed.
    pub(super) is_failing: bool,
    /// Wakes its renewal, when it may have been idle.
    pub(super) needed: Arc<Notify>,
    /// Ends the session's watch with it.
    pub(super) _watch: DropGuard,
}

impl LiveSession {
    /// A session that was just begun or taken up, and what is cancelled when it is over.
    pub(super) fn new(stored: Stored<Session>, keep_alive: KeepAlive) -> (Self, CancellationToken) {
        let over = CancellationToken::new();
        let live = Self {
            failures: stored.value.failures.clone(),
            stored,
            keep_alive,
            renewal_sent: None,
            is_failing: false,
            needed: Arc::default(),
            _watch: over.clone().drop_guard(),
        };
        (live, over)
    }

    /// Its name.
    pub(super) fn id(&self) -> &SessionId {
        &self.stored.value.id
    }

    /// Its name and this pod.
    pub(super) fn key(&self) -> SessionKey {
        self.stored.value.key()
    }
}

/// The attempts under way at one lock.
#[derive(Default)]
pub(super) struct UnderWay {
    /// How many there are.
    pub(super) attempts: usize,
    /// The revision at which the watch told that our session does not hold the lock. A grant that
    /// was had before ended before its lease was made.
    pub(super) gone_at: Option<Revision>,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its app released it, and the store said yes.
    Released,
    /// Its app released it; the store has not said yes.
    Releasing,
    /// It was lost.
    Lost(Loss),
}

/// What makes two requests the same one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) owner: OwnerId,
    pub(super) resource: Resource,
    pub(super) request_id: String,
}

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// The lease it got.
    pub(super) lease: LeaseId,
    /// The rest of its body; none once the lease is over, when any body is answered with that.
    pub(super) body: Option<(Life, Duration, BTreeMap<String, String>)>,
}

fn share<T: Clone + PartialEq>(kept: &T, name: &mut T) {
    if *name == *kept {
        name.clone_from(kept);
    }
}

impl State {
    pub(super) fn lease_count(&self) -> usize {
        self.held.len()
    }

    /// The lease by its id.
    pub(super) fn held_mut(&mut self, lease: &LeaseId) -> Option<&mut Held> {
        let resource = self.resource_of.get(lease)?;
        self.held.get_mut(resource).map(Box::as_mut)
    }

    /// The lease of a resource that is served here, and the version at which its lock was last seen
    /// with its grant.
    pub(super) fn served_grant(
        &self,
        resource: &Resource,
    ) -> Option<(LeaseId, GrantKey, Revision)> {
        let held = self.held.get(resource)?;
        Some((held.lease.id.clone(), held.key(), held.stored.version))
    }

    /// Adds a lease that was just granted.
    pub(super) fn insert(&mut self, resource: Resource, held: Held) {
        self.write_lease(&held);
        let asked = held.life;
        self.put(resource, held, asked);
    }

    /// Adds a lease that is in the journal. `asked` is what its request asked for.
    pub(super) fn put(&mut self, resource: Resource, mut held: Held, asked: Life) {
        self.share_names(&resource, &mut held);
        if let Some(key) = &held.request {
            let body = Some((asked, held.keep, held.metadata.clone()));
            self.answered.insert(
                key.clone(),
                Answered {
                    lease: held.lease.id.clone(),
                    body,
                },
            );
        }
        self.resource_of
            .insert(held.lease.id.clone(), resource.clone());
        self.elections.note_begin(&resource, held.since);
        self.held.insert(resource, Box::new(held));
    }

    /// Names that came from the store with this lock give way to the same ones that are kept
    /// already: a pod may hold thousands.
    fn share_names(&self, resource: &Resource, held: &mut Held) {
        let lock = &mut held.stored.value;
        share(resource, &mut lock.resource);
        let Some(grant) = &mut lock.grant else { return };
        share(held.tenure.grant(), &mut grant.id);
        share(&held.owner, &mut grant.holder.owner);
        if let Some(live) = &self.session {
            share(live.id(), &mut held.session.id);
            share(&live.stored.value.pod.uid, &mut held.session.pod_uid);
            share(&live.stored.value.pod, &mut grant.holder.pod);
        }
        share(&held.session.id, &mut grant.holder.session);
    }

    /// Ends a lease for its holder and everybody who asks from now on, although its grant cannot be
    /// given up yet: those who were told of it by an election's answer may still believe in it.
    pub(super) fn close(&mut self, lease: &LeaseId, now: Moment) {
        // On file first: after a restart it is to be served to nobody either.
        self.write_end(lease, End::Releasing);
        let Some(held) = self.held_mut(lease) else {
            return;
        };
        held.is_closing = true;
        held.tell_streams(Over::Released);
        let request = held.request.clone();
        if let Some(answered) = request.and_then(|key| self.answered.get_mut(&key)) {
            answered.body = None;
        }
        if let Some(resource) = self.resource_of.get(lease) {
            self.elections.note_end(resource, now);
        }
    }

    /// Takes a lease out and remembers how it ended. Its grant is given back, and from this step
    /// on it serves nobody: nothing can come between the end and that.
    pub(super) fn end(
        &mut self,
        lease: &LeaseId,
        end: End,
        now: Moment,
    ) -> Option<(Resource, Held)> {
        self.hold_back(lease, now);
        self.held_mut(lease)?.tenure.release_sent();
        self.take_out(lease, end, now)
    }

    /// Takes a lease out and remembers how it ended; what becomes of its grant is the caller's to
    /// see to. Who stands in line for its lock hears of it.
    pub(super) fn take_out(
        &mut self,
        lease: &LeaseId,
        end: End,
        now: Moment,
    ) -> Option<(Resource, Held)> {
        // On file first: what is in neither place would be nobody's.
        self.write_end(lease, end);
        let resource = self.resource_of.remove(lease)?;
        let held = *self.held.remove(&resource)?;
        held.tell_streams(end.into());
        self.elections.note_end(&resource, now);
        if let Some(line) = self.lines.get(&resource) {
            line.changed.notify_one();
        }
        if let Some(answered) = held.request.as_ref().and_then(|k| self.answered.get_mut(k)) {
            answered.body = None;
        }
        self.idle_since = now;
        self.remember_end(lease.clone(), end, held.request.clone(), now);
        Some((resource, held))
    }

    /// What the watch told last of the lock of a grant that is on its way back.
    pub(super) fn told_returning(&mut self, grant: &GrantId) -> Option<Stored<Lock>> {
        self.returning.get_mut(grant)?.take()
    }

    /// How much is held or under way; what the bound on leases counts.
    pub(super) fn load(&self) -> usize {
        self.held.len() + self.in_flight + self.returning.len() + self.waiting
    }

    /// How much of that is left where only promised leases are: these, and the grants that are not given
    /// back before the promises of the process before have passed.
    pub(super) fn left_at_stop(&self) -> usize {
        let returning = self.returning.keys();
        let held_back = returning.filter(|grant| self.is_held_back(grant));
        self.held.len() + held_back.count()
    }

    /// The local deadline of a session; none when it is not (or no longer) the live one.
    pub(super) fn deadline_of(&self, session: &SessionId) -> Option<Moment> {
        let live = self.session.as_ref().filter(|live| live.id() == session)?;
        Some(live.keep_alive.valid_until())
    }

    /// A lease that is over by the clock, and why. Without its session it is.
    pub(super) fn lost_lease(&self, lease: &LeaseId, now: Moment) -> Option<(&Held, Loss)> {
        let held = self.held.get(self.resource_of.get(lease)?)?;
        Some((held, self.loss_of(held, now)?))
    }

    /// Why a lease is over by the clock, if it is.
    pub(super) fn loss_of(&self, held: &Held, now: Moment) -> Option<Loss> {
        match self.deadline_of(&held.session.id) {
            Some(deadline) => held.lease.lost(now, deadline),
            None => Some(Loss::SessionExpired),
        }
    }

    /// Whether nothing needs the session: no lease, no kept grant, no attempt, no caller in line,
    /// no release under way.
    pub(super) fn is_idle(&self) -> bool {
        self.load() == 0 && self.kept.is_empty()
    }

    /// When the session is to be renewed: often while a lease, a place or an attempt hangs on it,
    /// else just to stay alive.
    pub(super) fn renewal_due(&self, live: &LiveSession, jitter: f64) -> Moment {
        if self.is_idle() {
            live.keep_alive.renew_idle_at(jitter)
        } else {
            live.keep_alive.renew_at(jitter)
        }
    }

    /// The leases of a session, taken out with how they ended.
    pub(super) fn end_all_of(
        &mut self,
        session: &SessionId,
        loss: Loss,
        now: Moment,
    ) -> Vec<(Resource, Held)> {
        let leases: Vec<LeaseId> = self
            .held
            .values()
            .filter(|held| held.session.id == *session)
            .map(|held| held.lease.id.clone())
            .collect();
        leases
            .iter()
            .filter_map(|lease| self.end(lease, End::Lost(loss), now))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fair_share::FairShare;
    use crate::protocol::lease::Tenure;
    use crate::protocol::time::WallTime;
    use crate::protocol::token::Token;
    use crate::store::Original;

    #[test]
    fn ended_lease_leaves_a_grant_that_serves_no_other_lease() {
        let resource = Resource::parse("r").unwrap();
        let mut tenure = Tenure::new(GrantId::from("g"), Token::from_raw(7_000));
        let lease = tenure.serve(Moment::default()).unwrap();
        let id = lease.id.clone();
        let mut state = State::default();
        state.insert(
            resource.clone(),
            Held {
                lease,
                tenure,
                session: SessionKey {
                    id: SessionId::from("s"),
                    pod_uid: "u".into(),
                },
                owner: OwnerId::from("app"),
                life: Life::Ttl(Duration::from_secs(10)),
                keep: Duration::ZERO,
                metadata: BTreeMap::new(),
                acquired_at: WallTime(0),
                stored: Stored {
                    value: Lock::unheld(resource),
                    version: Revision(7),
                    original: Original::new(()),
                },
                share: FairShare::default(),
                since: Moment::default(),
                request: None,
                replayed: false,
                readers_until: Moment::default(),
                is_closing: false,
                over: None,
            },
        );
        let (_, mut held) = state.end(&id, End::Releasing, Moment::default()).unwrap();
        assert_eq!(held.tenure.serve(Moment::default()), None);
    }
}

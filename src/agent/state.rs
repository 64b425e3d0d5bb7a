//! What the agent remembers, and the bounds on it. No I/O and no decisions: those are made by the
//! modules beside it, under the one mutex.

mod ends;
mod held;

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::oneshot;
use tokio_util::sync::DropGuard;

use crate::protocol::ids::{GrantId, LeaseId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::Life;
use super::core::Core;
use super::core::effect::{CallId, Reply};
pub(super) use super::core::history::{Answered, End, RequestKey};
use super::core::session::Live;
use super::core::stream::Over;
use super::election::Elections;
use super::gone::Unexplained;
use super::journal::Writer;
use super::kept::Kept;
use super::line::Line;
use super::resume::{Bound, Left};
pub(super) use held::{Ended, Held};

/// How many unknown own grants are remembered; a forgotten one is found again.
const SUSPECTS_MAX: usize = 1_000;

/// Everything the agent remembers.
pub(super) struct State {
    /// What decides about the session, and what was observed of the store.
    pub(super) core: Core,
    /// Those who wait for an answer of the core.
    pub(super) replies: BTreeMap<CallId, oneshot::Sender<Reply>>,
    /// The last request to the core.
    pub(super) last_call: u64,
    /// Closes the watch that is open.
    pub(super) watch: Option<DropGuard>,
    /// Where what a restarted agent must know is written; none where nobody asked for that.
    pub(super) journal: Option<Writer>,
    /// What an earlier process left, while it is not known whether it can be taken up.
    pub(super) resuming: Option<Left>,
    /// Until when apps may believe what that process told them, also of leases that do not go on.
    pub(super) promised_until: Moment,
    /// What that process told, as far as it binds this one.
    pub(super) bound: Bound,
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
    /// The same, as the core compares it: nothing needs to wake a sweeper that is awake, because it asks the
    /// core before it sleeps.
    pub(super) next_timer: Moment,
    /// The agent has stopped and left promised leases to their session.
    pub(super) has_left: bool,
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
    /// Own grants that a read showed and that nobody here knew.
    suspects: BTreeSet<GrantId>,
    /// Foreign grants that were reported.
    pub(super) reported: BTreeSet<GrantId>,
    /// When the last lease or attempt ended.
    pub(super) idle_since: Moment,
    /// Who was told of the leads that leases are, and what the store said of others'.
    pub(super) elections: Elections,
    /// Leases that are over while it is looked up why; nobody is told of their end before.
    pub(super) unexplained: BTreeMap<LeaseId, Unexplained>,
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

fn share<T: Clone + PartialEq>(kept: &T, name: &mut T) {
    if *name == *kept {
        name.clone_from(kept);
    }
}

impl State {
    /// Returns the state of an agent that has done nothing yet.
    pub(super) fn new(core: Core) -> Self {
        Self {
            core,
            replies: BTreeMap::new(),
            last_call: 0,
            watch: None,
            journal: None,
            resuming: None,
            promised_until: Moment::default(),
            bound: Bound::default(),
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
            reused_a_grant: false,
            resource_of: BTreeMap::new(),
            next_sweep: Moment::default(),
            next_timer: Moment::default(),
            has_left: false,
            in_flight: 0,
            claimed: BTreeSet::new(),
            under_way: BTreeMap::new(),
            asked: BTreeSet::new(),
            lines: BTreeMap::new(),
            streams: 0,
            waiting: 0,
            last_ticket: 0,
            suspects: BTreeSet::new(),
            reported: BTreeSet::new(),
            idle_since: Moment::default(),
            elections: Elections::default(),
            unexplained: BTreeMap::new(),
        }
    }

    /// The session, while there is one that may be believed.
    pub(super) const fn session(&self) -> Option<&Live> {
        self.core.live()
    }

    /// No new leases are given.
    pub(super) const fn is_draining(&self) -> bool {
        self.core.is_draining()
    }

    /// Notes an own grant that nobody here knows; says whether it was noted before.
    pub(super) fn suspected_before(&mut self, grant: &GrantId) -> bool {
        if self.suspects.len() >= SUSPECTS_MAX {
            self.suspects.clear();
        }
        !self.suspects.insert(grant.clone())
    }

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
            let answered = Answered {
                lease: held.lease.id.clone(),
                body,
            };
            self.core.history.record_answer(key.clone(), answered);
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
        if let Some(live) = self.core.live() {
            let session = &live.stored().value;
            share(&session.id, &mut held.session.id);
            share(&session.pod.uid, &mut held.session.pod_uid);
            share(&session.pod, &mut grant.holder.pod);
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
        if let Some(request) = held.request.clone() {
            self.core.history.answer_ended(&request);
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
        if let Some(request) = &held.request {
            self.core.history.answer_ended(request);
        }
        self.idle_since = now;
        let request = held.request.clone();
        self.core
            .history
            .record_end(lease.clone(), end, request, now);
        Some((resource, held))
    }

    /// A request to the core, and what receives its answer.
    pub(super) fn expect_reply(&mut self) -> (CallId, oneshot::Receiver<Reply>) {
        let (reply, receiver) = oneshot::channel();
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.replies.insert(call, reply);
        (call, receiver)
    }

    /// How much is held or under way; what the bound on leases counts.
    pub(super) fn load(&self) -> usize {
        self.held.len() + self.in_flight + self.core.releases.len() + self.waiting
    }

    /// How much of that is left where only promised leases are: these, and the grants that are not given
    /// back before the promises of the process before have passed.
    pub(super) fn left_at_stop(&self) -> usize {
        self.held.len() + self.core.releases.held_back()
    }

    /// The local deadline of a session; none when it is not (or no longer) the live one.
    pub(super) fn deadline_of(&self, session: &SessionId) -> Option<Moment> {
        let live = self.session().filter(|live| live.id() == session)?;
        Some(live.valid_until())
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
    use std::time::Duration;

    use super::*;
    use crate::agent::Life;
    use crate::agent::core::CoreConfig;
    use crate::agent::core::session::SessionConfig;
    use crate::protocol::fair_share::FairShare;
    use crate::protocol::ids::OwnerId;
    use crate::protocol::key::SessionKey;
    use crate::protocol::lease::Tenure;
    use crate::protocol::lock::Lock;
    use crate::protocol::session::PodRef;
    use crate::protocol::time::SessionTtl;
    use crate::protocol::time::WallTime;
    use crate::protocol::token::Token;
    use crate::store::{Original, Stored};

    fn config() -> CoreConfig {
        let pod = PodRef {
            name: "a".into(),
            uid: "u".into(),
            node: None,
        };
        CoreConfig {
            session: SessionConfig {
                pod,
                ttl: SessionTtl::clamped(15),
                idle_after: Duration::from_secs(600),
            },
            token_floor: 0,
        }
    }

    #[test]
    fn ended_lease_leaves_a_grant_that_serves_no_other_lease() {
        let resource = Resource::parse("r").unwrap();
        let mut tenure = Tenure::new(GrantId::from("g"), Token::from_raw(7_000));
        let lease = tenure.serve(Moment::default()).unwrap();
        let id = lease.id.clone();
        let mut state = State::new(Core::new(config()));
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

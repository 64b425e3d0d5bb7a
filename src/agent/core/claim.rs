//! The claim for one lock: how far it has come, and how it paces its calls.
//!
//! Invariants: the grant's id and the session stay the same through a claim's life, because a write of
//! unknown outcome carries both. At most one call is in flight. Whatever the store may have for a claim
//! that is given up is looked for as a leftover.

use std::time::Duration;

use crate::agent::api::Silence;
use crate::protocol::ids::{GrantId, Resource, SessionId};
use crate::protocol::key::{GrantKey, SessionKey};
use crate::protocol::lock::{Claim as ProtocolClaim, Lock};
use crate::protocol::object::Stored;
use crate::protocol::queue::{QUEUE_MAX, Waiter};
use crate::protocol::session::{Claimant, PodRef};
use crate::protocol::time::Moment;
use crate::protocol::token::Revision;

use super::backoff::jittered;
use super::callers::{Caller, CallerId};
use super::effect::OpId;
use super::env::Env;
use super::holder::Judging;
use super::leftover::Uncertain;

/// How many may wait in a queue that moves for a newcomer to join: every entry makes each write of
/// the lock dearer, the one that hands it over first of all. A later newcomer reads again after a pause;
/// a queue that has not moved meanwhile is joined as long as there is room.
const SHORT_QUEUE: usize = 10;
/// The same for a claim that has paused: places that no newcomer can take, or those who come back at once
/// after each turn would keep all others out.
const SHORT_QUEUE_AFTER_A_PAUSE: usize = 12;
/// The longest pause between two attempts: beyond it, places in the queue stay empty for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(6);
/// The bound of the first pause after the queue had no room. A longer one makes a crowd cheaper,
/// and makes a dozen pods with short work wait for nothing.
const NO_ROOM_PAUSE: Duration = Duration::from_secs(3);
/// The bound of the first pause after a conflict or an error.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// The same for callers that do not wait.
const SHORTEST_TRY_PAUSE: Duration = Duration::from_millis(50);

/// The claim for one lock.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) resource: Resource,
    pub(super) grant: GrantId,
    /// With which session; fixed by the first write, because a grant of another session of this agent is
    /// another grant.
    pub(super) session: Option<SessionId>,
    pub(super) step: Step,
    /// The store's revision, if a read has returned it since a session was last needed.
    pub(super) listed: Option<Revision>,
    /// Whether the store may have something for the claim.
    pub(super) is_sent: bool,
    /// The caller that the grant was written for, if it was not queued for.
    pub(super) granted_for: Option<CallerId>,
    /// Whether the store was seen to have the grant. It never comes back.
    pub(super) was_granted: bool,
    /// The last write whose outcome is not known.
    pub(super) uncertain: Option<Uncertain>,
    /// The lock as last seen, with our entry in its queue.
    pub(super) queued: Option<Box<Stored<Lock>>>,
    /// Whether the store has our entry or grant, as far as was seen.
    pub(super) has_place: bool,
    /// The lock with our grant, as the watch reported it.
    pub(super) reported: Option<Box<Stored<Lock>>>,
    /// What was last observed of a holder's session, and under which grant.
    pub(super) silence: Option<(GrantId, Silence)>,
    /// At which revision the session was seen not to hold the lock.
    pub(super) gone_at: Option<Revision>,
    pub(super) once: Once,
    pub(super) pace: Pace,
}

/// What a claim does once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Once {
    /// A write of the owner's name was sent.
    pub(super) renames: bool,
    /// The lock's creation was sent, because a read found none.
    pub(super) creates: bool,
}

/// When a claim makes its calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// No attempt before this: a pause is for the others' sake, and a caller that waits does not cut it
    /// short. A try is answered by a read all the same.
    pub(super) not_before: Moment,
    /// When the lock is read again.
    pub(super) read_at: Moment,
    /// When its holder's session is read again.
    pub(super) judge_at: Moment,
    /// Conflicts and errors in a row.
    conflicts: u32,
    /// How often it found no room in the queue.
    pauses: u32,
    /// How often the lock had been granted then, and since when that is known.
    turns: Option<(u64, Moment)>,
    /// The version at which the lock was last seen.
    seen: Option<Revision>,
    /// Since when nothing but errors came.
    pub(super) failing_since: Option<Moment>,
}

/// What a claim waits for.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A moment, or a change.
    Until(Moment),
    /// A read of the lock, sent at this moment.
    Reading(OpId, Moment),
    /// The creation of the lock.
    Creating(OpId),
    /// A session with at least half of its TTL left; with the lock to go on with.
    Session(Option<Box<Stored<Lock>>>),
    /// What is known of the holder's session.
    Judging(Box<Judging>),
    /// Whether former sessions of this pod have ended, whose queue entries are in the way.
    Former(Box<Former>),
    /// A write on this version.
    Writing(OpId, Box<Stored<Lock>>, Write),
}

/// The queue entries of former sessions of this pod.
#[derive(Clone, Debug)]
pub(super) struct Former {
    pub(super) op: OpId,
    /// The entry whose session is read.
    pub(super) entry: GrantKey,
    /// Those after it.
    pub(super) left: Vec<GrantKey>,
    /// Whether any of them leaves.
    pub(super) leaves: bool,
    pub(super) lock: Box<Stored<Lock>>,
    pub(super) waiter: Box<Waiter>,
}

/// What a write is to achieve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Acquires the free lock.
    Grant,
    /// Takes over the lock of an expired holder.
    TakeOver,
    /// Joins the queue.
    Join,
    /// Changes the name of the grant's owner.
    Rename,
    /// Raises the token of the grant.
    Raise,
}

impl Claim {
    pub(super) fn new(resource: Resource, env: &mut Env) -> Self {
        let id = env.rng.id();
        Self {
            resource,
            grant: GrantId::from(uuid(id)),
            session: None,
            step: Step::Until(env.now),
            listed: None,
            is_sent: false,
            granted_for: None,
            was_granted: false,
            uncertain: None,
            queued: None,
            has_place: false,
            reported: None,
            silence: None,
            gone_at: None,
            once: Once::default(),
            pace: Pace::default(),
        }
    }

    /// Returns the session with which the grant is claimed; `None` before the first write.
    pub(super) fn session_key(&self, pod: &PodRef) -> Option<SessionKey> {
        Some(SessionKey {
            id: self.session.clone()?,
            pod_uid: pod.uid.clone(),
        })
    }

    /// Returns the grant that is claimed; `None` before the first write.
    pub(super) fn key(&self, pod: &PodRef) -> Option<GrantKey> {
        Some(GrantKey {
            id: self.grant.clone(),
            session: self.session_key(pod)?,
        })
    }

    /// Returns whether the lock names the claim's session: as its holder or in its queue.
    pub(super) fn is_named_by(&self, lock: &Lock, pod: &PodRef) -> bool {
        self.session_key(pod).is_some_and(|session| {
            let holder = lock.grant.as_ref().map(|grant| grant.holder.key());
            holder.as_ref() == Some(&session) || lock.waiters.entry_of(&session).is_some()
        })
    }

    /// Returns whether the lock's queue has the claim's entry.
    pub(super) fn is_queued_in(&self, lock: &Lock, pod: &PodRef) -> bool {
        let own = self.key(pod);
        let mut entries = lock.waiters.entries().iter();
        own.is_some_and(|own| entries.any(|waiter| waiter.key() == own))
    }

    /// Returns whether our place in the queue is that of a preferred candidate and the first caller is
    /// none, or the other way round.
    pub(super) fn has_place_of_another_kind(&self, first: &Caller, pod: &PodRef) -> bool {
        let place = self.queued.as_ref().zip(self.session_key(pod));
        let place = place.and_then(|(lock, session)| {
            let entry = lock.value.waiters.entry_of(&session)?;
            Some(entry.preferred)
        });
        place.is_some_and(|preferred| preferred != first.request.preferred)
    }

    /// Returns the claim as it is written, in the name of a caller.
    pub(super) fn in_the_name_of(
        &self,
        caller: &Caller,
        claimant: Claimant,
        env: &Env,
    ) -> ProtocolClaim {
        let request = &caller.request;
        ProtocolClaim {
            grant: self.grant.clone(),
            claimant,
            metadata: request.metadata.clone(),
            kept: !request.keep.is_zero(),
            at: env.wall,
            preferred: request.preferred,
        }
    }

    /// Returns until when nothing is to be done; `None` if something is now.
    pub(super) fn pauses_until(&self, now: Moment, first_waits: bool) -> Option<Moment> {
        let (pace, is_queued) = (&self.pace, self.queued.is_some());
        let next = match self.step {
            _ if now < pace.not_before => pace.not_before,
            _ if is_queued => pace.read_at.min(pace.judge_at),
            Step::Until(until) if !first_waits => until,
            _ => return None,
        };
        (now < next).then_some(next)
    }

    /// Records that the store has nothing of the claim's writes, unless it has a place or an outcome is not
    /// known: a read that was sent after the last write does not show it.
    pub(super) const fn settle_writes(&mut self) {
        self.is_sent = self.has_place || self.uncertain.is_some();
    }

    /// Returns whether a call is in flight.
    pub(super) const fn has_call(&self) -> bool {
        !matches!(self.step, Step::Until(_) | Step::Session(_))
    }

    /// Returns whether the watch reported its grant, and no answer is needed before that is served.
    pub(super) const fn has_news(&self) -> bool {
        self.reported.is_some() && matches!(self.step, Step::Until(_))
    }

    /// Returns whether it waits for an answer, of the store or about the session.
    pub(super) const fn is_busy(&self) -> bool {
        !matches!(self.step, Step::Until(_))
    }

    /// Waits until a moment.
    pub(super) fn wait_until(&mut self, moment: Moment) {
        self.step = Step::Until(moment);
    }
}

impl Pace {
    /// Records the version of a lock that is decided on. Returns whether it changed since the last.
    pub(super) fn observe(&mut self, version: Revision) -> bool {
        self.seen.replace(version) != Some(version)
    }

    /// Returns whether there is room for the claim in the queue of a lock.
    pub(super) fn has_room(&mut self, lock: &Lock, third: Duration, now: Moment) -> bool {
        let room = match (self.moves(lock, third, now), self.pauses) {
            (true, 0) => SHORT_QUEUE,
            (true, _) => SHORT_QUEUE_AFTER_A_PAUSE,
            (false, _) => QUEUE_MAX,
        };
        lock.waiters.len() < room
    }

    /// Returns whether the lock was granted since the claim first saw it, or not long before.
    fn moves(&mut self, lock: &Lock, third: Duration, now: Moment) -> bool {
        let (turns, since) = *self.turns.get_or_insert((lock.transitions, now));
        if turns != lock.transitions {
            self.turns = Some((lock.transitions, now));
            return true;
        }
        now.since(since) < third
    }

    /// Pauses after the queue had no room. The bound grows with each pause.
    pub(super) fn pause_for_room(&mut self, caller_waits: Duration, env: &mut Env) -> Moment {
        let longest = LONGEST_PAUSE.min(caller_waits / 4);
        let bound = grown(NO_ROOM_PAUSE, 2, self.pauses).min(longest);
        self.pauses = self.pauses.saturating_add(1);
        self.pause_within(bound, env)
    }

    /// Pauses after a conflict or an error. The bound grows with each: callers that all retry at once
    /// only make each other's writes fail, and the holder's release.
    pub(super) fn back_off(&mut self, longest: Duration, waits: bool, env: &mut Env) -> Moment {
        let shortest = if waits {
            SHORTEST_PAUSE
        } else {
            SHORTEST_TRY_PAUSE
        };
        let bound = grown(shortest, 4, self.conflicts).min(longest);
        self.conflicts = self.conflicts.saturating_add(1);
        self.pause_within(bound, env)
    }

    /// Returns whether it has paused because the queue had no room.
    pub(super) const fn has_paused(&self) -> bool {
        self.pauses > 0
    }

    /// Records that conflicts and errors are over.
    pub(super) const fn succeed(&mut self) {
        self.conflicts = 0;
        self.failing_since = None;
    }

    /// A pause with full jitter. No pause depends on how long a call took: a server that is far away
    /// or busy with other things says nothing about this lock.
    fn pause_within(&mut self, bound: Duration, env: &mut Env) -> Moment {
        self.not_before = env.now.after(jittered(env.rng, bound));
        self.not_before
    }
}

/// Returns the longest pause after a conflict of a caller that waits so long in all.
pub(super) fn longest_pause(wait: Duration) -> Duration {
    if wait.is_zero() {
        Duration::from_millis(500)
    } else {
        LONGEST_PAUSE.min(wait / 4)
    }
}

/// Returns the first bound, multiplied by the factor so many times.
fn grown(first: Duration, factor: u32, times: u32) -> Duration {
    first.saturating_mul(factor.saturating_pow(times))
}

/// Returns a random number in the form of a version 4 UUID (RFC 9562).
fn uuid(random: u128) -> String {
    let hex = format!("{random:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

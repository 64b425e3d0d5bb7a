//! How a model agent (or the operator) handles one lock, with [`Lock`]'s own transitions.
//!
//! It reacts only to what it last read: a write's answer only updates that view. After an unanswered write or a
//! conflict the lock is read again before anything else is sent.

use std::sync::Arc;

use leasehold::protocol::ids::{GrantId, SessionId};
use leasehold::protocol::incident::IncidentKind;
use leasehold::protocol::key::GrantKey;
use leasehold::protocol::lock::{Decision, Grant, Lock};
use leasehold::protocol::observed::{Observed, Sight, Verdict};
use leasehold::protocol::queue::Waiter;
use leasehold::protocol::session::{Claimant, Session};
use leasehold::protocol::time::{Moment, SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Revision, Seen};

use crate::bugs::Bug;
use crate::node::{LockClient, Node, Rival, Role, View};
use crate::rules::Rules;
use crate::store::{Answer, Precondition, Store, Versioned, Write};

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Intent {
    Create,
    Acquire,
    Join,
    Leave,
    Release,
    Rebase,
    Revoke,
    TakeOver,
}

impl Intent {
    /// What the write does, in a word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Acquire => "acquire",
            Self::Join => "join the queue",
            Self::Leave => "leave the queue",
            Self::Release => "release",
            Self::Rebase => "rebase",
            Self::Revoke => "revoke",
            Self::TakeOver => "take over",
        }
    }
}

impl Node {
    /// Whether it may read and write locks at all.
    pub(crate) fn may_act(&self, now: Moment) -> bool {
        self.is_up() && (self.role == Role::Operator || self.is_valid(now))
    }

    /// Whether it may judge other sessions for this lock.
    pub(crate) fn challenges(&self, lock: usize, rules: &Rules) -> bool {
        match self.role {
            Role::Operator => true,
            Role::Agent => rules.peers_take_over && self.clients[lock].want.is_some(),
        }
    }

    /// What tokens are made from.
    pub(crate) fn mint(&self, rules: &Rules) -> Mint {
        let seen = match (rules.bug, self.seen) {
            (Some(Bug::TokenFromOwnRevisionAlone), _) | (_, None) => Seen::from_list(Revision(0)),
            (_, Some(seen)) => seen,
        };
        Mint { seen, floor: 0 }
    }

    /// Whether the grant found at this version needs a larger token before it is served.
    pub(crate) fn must_raise(&self, known: &Versioned<Lock>, rules: &Rules) -> bool {
        let skipped = matches!(
            rules.bug,
            Some(Bug::TokenFromOwnRevisionAlone | Bug::BumpNotNoticed)
        );
        !skipped && self.mint(rules).must_raise(known.1.token, known.0)
    }

    /// Notes the revision of a consistent LIST.
    pub(crate) fn note_list(&mut self, listed: Revision) {
        match &mut self.seen {
            // The restores here are all bumped, so no LIST ever goes back.
            Some(seen) => seen.list_answered(listed).expect("the store went back"),
            None => self.seen = Some(Seen::from_list(listed)),
        }
    }

    /// The writes that it might send now for this lock.
    pub(crate) fn plans(&self, lock: usize, now: Moment, rules: &Rules) -> Vec<(Intent, Write)> {
        let client = &self.clients[lock];
        if client.call.is_some() || client.must_read || !self.may_act(now) {
            return Vec::new();
        }
        match &client.view {
            View::Missing if client.want.is_some() => vec![(
                Intent::Create,
                Write::Lock {
                    lock,
                    given: Precondition::Absent,
                    value: rules.unheld().into(),
                },
            )],
            View::Unknown | View::Missing => Vec::new(),
            View::Known(known) => self.plans_for(client, lock, known, now, rules),
        }
    }

    fn plans_for(
        &self,
        client: &LockClient,
        lock: usize,
        known: &Versioned<Lock>,
        now: Moment,
        rules: &Rules,
    ) -> Vec<(Intent, Write)> {
        let (at, stored) = known;
        // The precondition is the version that the decision was made on: whatever happened to
        // the lock since then makes the write fail.
        let write = |value: Lock| Write::Lock {
            lock,
            given: Precondition::At(*at),
            value: value.into(),
        };
        let mint = self.mint(rules);
        if let Some(grant) = &client.leaving {
            // A resumed agent does not know what was promised with a grant that it does not know.
            let may_be_believed =
                client.tenure.is_none() && self.promised.is_some_and(|until| now < until);
            if may_be_believed && rules.bug != Some(Bug::OrphansReleasedAtOnce) {
                return Vec::new();
            }
            let Some(grant) = key_of(stored, grant) else {
                return Vec::new();
            };
            let released = stored.release(*at, &mint, &grant, WallTime::default());
            let left = || {
                stored
                    .leave_queue(&grant)
                    .map(|l| (Intent::Leave, write(l)))
            };
            return released
                .map(|l| (Intent::Release, write(l)))
                .or_else(left)
                .into_iter()
                .collect();
        }
        let mut plans = Vec::new();
        if let Some(want) = &client.want {
            if stored.names_grant(&want.grant) {
                let held = key_of(stored, &want.grant).expect("just seen");
                let raised = stored.rebase(*at, &mint, &held);
                let raised = raised.expect("no token runs out here").expect("just seen");
                return vec![(Intent::Rebase, write(raised))];
            }
            let session = self.session_id().expect("who may act has a session");
            let claim = rules.claim(want.grant.clone(), session.clone());
            let decision = if want.waits {
                stored.acquire_or_queue(*at, &mint, &claim)
            } else {
                stored.acquire(*at, &mint, &claim)
            };
            match decision {
                Decision::Granted(next) => plans.push((Intent::Acquire, write(*next))),
                Decision::Queued(waiter) => {
                    let waiter = *waiter;
                    plans.push((Intent::Join, Write::Join { lock, waiter }));
                }
                Decision::AlreadyGranted | Decision::AlreadyQueued(_) | Decision::Refused(_) => {}
            }
        }
        if self.challenges(lock, rules) {
            plans.extend(self.plan_challenge(client, known, now, rules, write));
        }
        plans
    }

    fn plan_challenge(
        &self,
        client: &LockClient,
        (at, stored): &Versioned<Lock>,
        now: Moment,
        rules: &Rules,
        write: impl Fn(Lock) -> Write,
    ) -> Option<(Intent, Write)> {
        let holder = stored.grant.as_ref()?;
        let session = &holder.holder.session;
        let rival = client.rival(session)?;
        match verdict(rival, holder.holder.session_ttl, now, rules) {
            Verdict::MayLive { .. } => None,
            Verdict::MayRevoke(version) => {
                let revoked = rival.copy.as_ref()?.revoked(rules.revocation())?;
                // Exactly the version whose silence was observed: a renewal in between wins.
                let revoke = Write::Session {
                    given: Precondition::At(version),
                    value: revoked.into(),
                };
                Some((Intent::Revoke, revoke))
            }
            Verdict::Dead => {
                let dead = |who: &Claimant| {
                    client.rival(&who.session).is_some_and(|rival| {
                        let ttl = holder.holder.session_ttl;
                        verdict(rival, ttl, now, rules) == Verdict::Dead
                    })
                };
                let taker = client.want.as_ref().zip(self.session_id());
                let taker = taker.map(|(w, id)| rules.claim(w.grant.clone(), id.clone()));
                let ending = rules.ending(IncidentKind::Expired);
                stored
                    .take_over(*at, &self.mint(rules), dead, &ending, taker.as_ref())
                    .map(|next| (Intent::TakeOver, write(next)))
            }
        }
    }

    /// Whether reading the lock is due: because a write was unanswered, or because a watch would show a change. A
    /// read that would show nothing new changes nothing and is left out.
    pub(crate) fn can_look(&self, lock: usize, store: &Store, now: Moment) -> bool {
        let client = &self.clients[lock];
        if client.call.is_some() || !self.may_act(now) {
            return false;
        }
        let operator = self.role == Role::Operator;
        let stored = store.locks[lock].as_ref();
        if client.must_read && (client.is_busy() || operator) {
            return true;
        }
        if !client.view.differs(stored) {
            return false;
        }
        let tenure_gone = client.tenure.as_ref().is_some_and(|tenure| {
            stored.is_none_or(|(_, stored)| !stored.names_grant(tenure.grant()))
        });
        let given_unasked = stored
            .and_then(|(_, stored)| stored.grant.as_ref())
            .is_some_and(|grant| {
                Some(&grant.holder.session) == self.session_id() && !client.knows(&grant.id)
            });
        operator
            || client.want.is_some()
            || client.leaving.is_some()
            || tenure_gone
            || given_unasked
    }

    /// The sessions that a challenger would see changed if it read them.
    pub(crate) fn rivals_to_look_at(
        &self,
        lock: usize,
        store: &Store,
        now: Moment,
        rules: &Rules,
    ) -> Vec<SessionId> {
        let client = &self.clients[lock];
        let Some((_, stored)) = client.known() else {
            return Vec::new();
        };
        if client.call.is_some() || !self.may_act(now) || !self.challenges(lock, rules) {
            return Vec::new();
        }
        named_sessions(stored, rules)
            .filter(|id| Some(*id) != self.session_id())
            .filter(|id| {
                client.rival(id).map(|rival| rival.sight) != Some(sight(store.sessions.get(id)))
            })
            .cloned()
            .collect()
    }

    /// Takes the answer to the request that was sent for this lock.
    pub(crate) fn lock_answered(
        &mut self,
        lock: usize,
        answer: Answer,
        now: Moment,
        rules: &Rules,
    ) {
        let client = &mut self.clients[lock];
        match answer {
            Answer::Lock(found) => {
                if let (Some((at, _)), Some(seen)) = (&found, &mut self.seen) {
                    seen.note(*at);
                }
                client.must_read = false;
                client.view = View::of(found);
                client.forget_unnamed_rivals(rules);
            }
            Answer::Session(id, found) => client.saw_rival(id, found, now),
            Answer::Conflict => client.must_read = true,
        }
    }
}

impl LockClient {
    pub(crate) fn knows(&self, grant: &GrantId) -> bool {
        self.want.as_ref().is_some_and(|want| want.grant == *grant)
            || self.tenure.as_ref().is_some_and(|t| t.grant() == grant)
            || self.leaving.as_ref() == Some(grant)
    }

    fn saw_rival(&mut self, id: SessionId, found: Option<Versioned<Session>>, received: Moment) {
        let sight = sight(found.as_ref());
        let before = self.rival(&id).map(|rival| rival.observed);
        self.rivals.retain(|rival| rival.id != id);
        self.rivals.push(Rival {
            id,
            sight,
            observed: Observed::join(before, sight, received),
            copy: found.map(|(_, copy)| copy),
        });
        self.rivals.sort_by(|one, other| one.id.cmp(&other.id));
    }

    /// Only sessions that the lock names are watched.
    fn forget_unnamed_rivals(&mut self, rules: &Rules) {
        let View::Known((_, stored)) = &self.view else {
            self.rivals.clear();
            return;
        };
        let stored: Arc<Lock> = stored.clone();
        self.rivals
            .retain(|rival| named_sessions(&stored, rules).any(|id| *id == rival.id));
    }
}

fn named_sessions<'a>(lock: &'a Lock, rules: &Rules) -> impl Iterator<Item = &'a SessionId> {
    let watched = if rules.watch_waiters { usize::MAX } else { 0 };
    let waiters = lock.waiters.entries().iter().take(watched);
    let waiting = waiters.map(|waiter| &waiter.claimant.session);
    lock.holder_session().into_iter().chain(waiting)
}

fn sight(stored: Option<&Versioned<Session>>) -> Sight {
    match stored {
        None => Sight::Missing,
        Some((_, session)) if session.revoked.is_some() => Sight::Revoked,
        Some((at, _)) => Sight::Version(*at),
    }
}

/// The verdict by the larger of both TTLs, or what a broken challenger makes of it.
pub(crate) fn verdict(rival: &Rival, entry: SessionTtl, now: Moment, rules: &Rules) -> Verdict {
    let ttl = rival
        .copy
        .as_ref()
        .map_or(entry, |copy| copy.ttl.max(entry));
    match (rules.bug, rival.observed.verdict(ttl, now)) {
        (Some(Bug::TakeOverBeforeRevoke), Verdict::MayRevoke(_)) => Verdict::Dead,
        (Some(Bug::MissingIsDeadAtOnce), Verdict::MayLive { .. })
            if rival.sight == Sight::Missing =>
        {
            Verdict::Dead
        }
        (_, verdict) => verdict,
    }
}

/// The key of a grant or a queue entry. No node here uses another's id.
fn key_of(lock: &Lock, id: &GrantId) -> Option<GrantKey> {
    let held = lock.grant.iter().map(Grant::key);
    let waiting = lock.waiters.entries().iter().map(Waiter::key);
    held.chain(waiting).find(|key| key.id == *id)
}

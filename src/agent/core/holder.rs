//! Whether a lock can be taken over from its holder, where the admission policies let an agent do it
//! (peer mode). In strict mode they refuse, and the operator does it.
//!
//! Order is everything: the expired session is revoked first, by a compare-and-swap on exactly the
//! version whose silence was observed, and only then is the lock written. The other way round a hung
//! holder could wake, renew and continue while another has the lock.

use std::time::Duration;

use crate::protocol::incident::{Ending, IncidentKind};
use crate::protocol::key::SessionKey;
use crate::protocol::lock::{Claim as ProtocolClaim, Lock};
use crate::protocol::object::{StoreError, Stored};
use crate::protocol::observed::{Sight, Verdict};
use crate::protocol::session::{Claimant, PodRef, Revocation, RevokeReason, Session};
use crate::protocol::time::{Moment, SessionTtl, WallTime};
use crate::protocol::token::Mint;

use super::effect::{Answer, OpId, StoreCall};
use super::env::{Env, Machine};
use super::limits::CALL_LIMIT;
use super::next::Source;
use super::peers::Peers;
use super::report::ClaimReport;
use crate::agent::api::Silence;

/// How long a refusal by policy is taken as the answer to the next take-over too.
const STRICT_REMEMBERED: Duration = Duration::from_secs(60);

/// How far away the proof that a holder has expired may be for a try to wait for it: that of the longest
/// period. Clients of a try do not wait for an hour.
const PROOF_AWAITED: Duration =
    Duration::from_secs(SessionTtl::LONGEST_PERIOD.as_secs() * 105 / 100);

/// Why only the operator takes over.
const ONLY_THE_OPERATOR: &str =
    "the admission policies let only the operator take over from an expired holder";

/// Whether a lock can be taken over from its holder.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// It may be alive, or this agent may not judge.
    MayLive {
        /// What keeps the lock, if there is something to say.
        hint: Option<String>,
        /// What was observed of its session.
        silence: Option<Silence>,
        /// When more can be known, if it stays silent and this agent may judge.
        until: Option<Moment>,
        /// When it will be proven dead, if it looks as if it were.
        dead_at: Option<Moment>,
    },
    /// It changed meanwhile; the lock is read again.
    Changed,
    /// It is revoked, or was seen missing for long enough.
    Dead,
}

/// Reads of the sessions of a lock's holder and of those that wait before us.
#[derive(Clone, Debug)]
pub(super) struct Judging {
    pub(super) lock: Box<Stored<Lock>>,
    /// Where the lock comes from.
    pub(super) source: Source,
    op: OpId,
    /// Whose session is read or revoked.
    who: Claimant,
    named_at: WallTime,
    is_revoking: bool,
    /// What is known of the holder.
    fate: Option<Fate>,
    /// Those whose sessions are read next, the last first. When the first is proven dead, as the holder
    /// that it is by then, the others have been observed for longer.
    next: Vec<(Claimant, WallTime)>,
    /// Whether the session that is read is the queue's first, which decides about the others.
    asks_first: bool,
    /// All together may take no longer than one call: meanwhile the lock may be handed over.
    until: Moment,
}

/// Who judges, and what was observed before.
pub(super) struct Judge<'a> {
    /// The session with which we wait in the queue.
    pub(super) own: Option<SessionKey>,
    pub(super) pod: &'a PodRef,
    pub(super) peers: &'a mut Peers,
}

/// What an answer led to.
pub(super) enum Progress {
    /// The next call was sent.
    Continues,
    /// It is known.
    Known(Fate),
    /// It cannot be known.
    Failed(StoreError),
}

impl Fate {
    pub(super) const fn unjudged(hint: String) -> Self {
        Self::MayLive {
            hint: Some(hint),
            silence: None,
            until: None,
            dead_at: None,
        }
    }

    /// Returns what is known without a read, if this agent may not judge.
    pub(super) fn without_read(takes_over: bool, peers: &Peers, now: Moment) -> Option<Self> {
        let is_strict = !takes_over || now < peers.strict_until;
        is_strict.then(|| Self::unjudged(ONLY_THE_OPERATOR.into()))
    }
}

/// Records that the policies refused a take-over: strict mode. None is tried for a minute.
pub(super) fn record_strict(peers: &mut Peers, reason: String, env: &mut Env) -> String {
    peers.strict_until = env.now.after(STRICT_REMEMBERED);
    env.out.report(ClaimReport::TakeOverDenied(reason));
    ONLY_THE_OPERATOR.into()
}

impl Judging {
    /// Begins with the holder's session.
    pub(super) fn new(lock: Box<Stored<Lock>>, source: Source, env: &mut Env) -> Option<Self> {
        let grant = lock.value.grant.as_ref()?;
        let (who, named_at) = (grant.holder.clone(), grant.acquired_at);
        let op = read(&lock, &who, env);
        Some(Self {
            lock,
            source,
            op,
            who,
            named_at,
            is_revoking: false,
            fate: None,
            next: Vec::new(),
            asks_first: false,
            until: Moment::default(),
        })
    }

    /// Takes the answer to its call.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: Answer,
        judge: &mut Judge,
        env: &mut Env,
    ) -> Progress {
        if op != self.op {
            return Progress::Continues;
        }
        let found = if self.is_revoking {
            self.revoked(answer, judge.peers, env)
        } else {
            self.read_answered(answer, judge, env)
        };
        let fate = match found {
            Ok(Some(fate)) => fate,
            Ok(None) => return Progress::Continues,
            Err(error) if self.fate.is_none() => {
                if error.is_transient() {
                    return Progress::Failed(error);
                }
                // Who holds the lock is known; whether it lives is not.
                let hint = format!("the holder's session cannot be looked at: {error}");
                return Progress::Known(Fate::unjudged(hint));
            }
            Err(error) => {
                let session = self.who.session.clone();
                let is_transient = error.is_transient();
                env.out.report(ClaimReport::WaiterUnknown(session, error));
                if is_transient {
                    // A read that fails is no reason to stop: the take-over only drops fewer waiters.
                    self.next.clear();
                }
                Fate::Changed
            }
        };
        self.judged(fate, judge, env)
    }

    fn judged(&mut self, fate: Fate, judge: &Judge, env: &mut Env) -> Progress {
        if self.fate.is_none() {
            return self.holder_judged(fate, judge, env);
        }
        let enough = enough_of(&self.lock.value);
        let lives = matches!(&fate, Fate::MayLive { until: Some(until), .. }
            if until.since(env.now) > enough);
        if std::mem::take(&mut self.asks_first) && lives {
            // An agent that is not in the queue leaves it to those who are.
            self.next.clear();
        }
        self.read_next(env)
    }

    /// Once the holder has been silent for as long as half of what proves it dead, those who wait
    /// before us are read too: what took the holder may have taken them, and they are to be skipped
    /// together and not one TTL each. Before that it would cost a read for each of them, again and
    /// again, and nearly always for nothing.
    fn holder_judged(&mut self, mut fate: Fate, judge: &Judge, env: &mut Env) -> Progress {
        let enough = enough_of(&self.lock.value);
        if let Fate::MayLive { until, .. } = &mut fate {
            match until.map(|until| until.since(env.now)) {
                None => return Progress::Known(fate),
                Some(left) if left > enough => {
                    *until = Some(env.now.after(left.saturating_sub(enough)));
                    return Progress::Known(fate);
                }
                Some(_) => {}
            }
        }
        let waiters = &self.lock.value.waiters;
        let own = judge.own.as_ref();
        let ahead = own.map_or(waiters.entries(), |own| waiters.ahead_of(own));
        let ahead_of_us = ahead.iter();
        let ahead_of_us = ahead_of_us.map(|waiter| (waiter.claimant.clone(), waiter.queued_at));
        self.next = ahead_of_us.collect();
        self.asks_first = ahead.len() == waiters.len();
        if self.asks_first {
            self.next.extend(self.next.first().cloned());
        }
        self.until = env.now.after(CALL_LIMIT);
        self.fate = Some(fate);
        self.read_next(env)
    }

    fn read_next(&mut self, env: &mut Env) -> Progress {
        if env.now < self.until
            && let Some((who, named_at)) = self.next.pop()
        {
            self.op = read(&self.lock, &who, env);
            (self.who, self.named_at, self.is_revoking) = (who, named_at, false);
            return Progress::Continues;
        }
        Progress::Known(self.fate.take().unwrap_or(Fate::Changed))
    }

    fn read_answered(
        &mut self,
        answer: Answer,
        judge: &mut Judge,
        env: &mut Env,
    ) -> Result<Option<Fate>, StoreError> {
        let found = match answer.into_session() {
            Err(StoreError::DeniedByPolicy(reason)) => {
                return Ok(Some(Fate::unjudged(record_strict(
                    judge.peers,
                    reason,
                    env,
                ))));
            }
            found => found?,
        };
        // A session of that name that another pod made is not the holder's, and says nothing of it.
        let found = found.filter(|stored| stored.value.key() == self.who.key());
        let fate = observe(&self.who, self.named_at, found.as_deref(), judge.peers, env);
        Ok(match (fate, found) {
            (Some(fate), _) => Some(fate),
            (None, Some(stored)) => self.revoke(*stored, judge.pod, env),
            (None, None) => Some(Fate::MayLive {
                hint: None,
                silence: None,
                until: None,
                dead_at: None,
            }),
        })
    }

    fn revoke(&mut self, stored: Stored<Session>, pod: &PodRef, env: &mut Env) -> Option<Fate> {
        let revocation = Revocation {
            at: env.wall,
            by: pod.name.clone(),
            reason: RevokeReason::Expired,
        };
        let Some(revoked) = stored.value.revoked(revocation) else {
            return Some(Fate::Dead);
        };
        // Closes the race with the holder's own renewal: both write on this version, one wins.
        let call = StoreCall::UpdateSession(Box::new(stored), Box::new(revoked));
        let machine = Machine::Claim(self.lock.value.resource.clone());
        self.op = env.call(machine, call, CALL_LIMIT);
        self.is_revoking = true;
        None
    }

    fn revoked(
        &mut self,
        answer: Answer,
        peers: &mut Peers,
        env: &mut Env,
    ) -> Result<Option<Fate>, StoreError> {
        match answer.into_session() {
            Ok(_) => {
                peers.observe(&self.who.key(), Sight::Revoked, env.now);
                let session = self.who.session.clone();
                env.out.report(ClaimReport::SessionRevoked(session));
                Ok(Some(Fate::Dead))
            }
            // It renewed, or another agent revoked it; the next read shows which.
            Err(StoreError::Conflict | StoreError::NotFound(_)) => Ok(Some(Fate::Changed)),
            Err(StoreError::DeniedByPolicy(reason)) => {
                Ok(Some(Fate::unjudged(record_strict(peers, reason, env))))
            }
            Err(error) => Err(error),
        }
    }
}

/// Adds a read of a session to what was observed of it. Returns its fate; `None` if it is to be revoked.
fn observe(
    who: &Claimant,
    named_at: WallTime,
    found: Option<&Stored<Session>>,
    peers: &mut Peers,
    env: &Env,
) -> Option<Fate> {
    let sight = match found {
        None => Sight::Missing,
        Some(stored) if stored.value.revoked.is_some() => Sight::Revoked,
        Some(stored) => Sight::Version(stored.version),
    };
    let observed = peers.observe(&who.key(), sight, env.now);
    let ttl = found.map_or(who.session_ttl, |stored| {
        stored.value.ttl.max(who.session_ttl)
    });
    match observed.verdict(ttl, env.now) {
        Verdict::Dead => Some(Fate::Dead),
        Verdict::MayRevoke(_) => None,
        Verdict::MayLive { until } => {
            let renewed_at = found.and_then(|stored| stored.value.renewed_at);
            let last_word = renewed_at.map_or(named_at, |at| at.max(named_at));
            let looks_expired = is_older(last_word, ttl, env) && !peers.has_changed(&who.key());
            let is_near = until.since(env.now) <= PROOF_AWAITED;
            Some(Fate::MayLive {
                hint: None,
                silence: Some(Silence {
                    since: observed.since(),
                    until,
                }),
                until: Some(until),
                dead_at: (looks_expired && is_near).then_some(until),
            })
        }
    }
}

/// Returns whether a session looks as if it had expired: its own last word is that old. Two machines'
/// wall clocks are compared here, so it proves nothing; it only says whether the proof is worth waiting
/// for.
fn is_older(last_word: WallTime, ttl: SessionTtl, env: &Env) -> bool {
    let silent = env.wall.0.saturating_sub(last_word.0);
    let silent = Duration::from_micros(u64::try_from(silent).unwrap_or(0));
    silent > ttl.challenger_share()
}

/// Returns half of what proves the holder dead.
fn enough_of(lock: &Lock) -> Duration {
    let grant = lock.grant.as_ref();
    let ttl = grant.map(|grant| grant.holder.session_ttl.challenger_share());
    ttl.unwrap_or_default() / 2
}

fn read(lock: &Stored<Lock>, who: &Claimant, env: &mut Env) -> OpId {
    let machine = Machine::Claim(lock.value.resource.clone());
    let call = StoreCall::GetSession(who.session.clone());
    env.call(machine, call, CALL_LIMIT)
}

/// Returns the lock to write after its holder was proven dead.
pub(super) fn taken_over(
    current: &Stored<Lock>,
    claim: &ProtocolClaim,
    mint: &Mint,
    judge: &Judge,
    env: &Env,
) -> Option<Lock> {
    let holder = &current.value.grant.as_ref()?.holder;
    let ending = Ending {
        at: env.wall,
        kind: IncidentKind::Expired,
        actor: judge.pod.name.clone(),
        reason: format!(
            "session {} was not renewed for 1.05 of its TTL",
            holder.session
        )
        .into(),
    };
    let is_dead = |who: &Claimant| {
        let observed = judge.peers.observed(&who.key());
        let verdict = observed.map(|seen| seen.verdict(who.session_ttl, env.now));
        who.key() == holder.key() || verdict == Some(Verdict::Dead)
    };
    let lock = &current.value;
    lock.take_over(current.version, mint, is_dead, &ending, Some(claim))
}

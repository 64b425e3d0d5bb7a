//! How a model agent keeps its session, with [`Session`] and [`KeepAlive`] of the protocol.
//!
//! One request at a time. After an unanswered one the session is read again before anything else
//! is sent.

use leasehold::protocol::ids::SessionId;
use leasehold::protocol::session::{KeepAlive, RenewalFailures, Session};
use leasehold::protocol::time::{Moment, WallTime};
use leasehold::protocol::token::Revision;

use crate::bugs::Bug;
use crate::node::{Call, Live, LockClient, Node, Role};
use crate::rules::Rules;
use crate::store::{Answer, Precondition, Store, Versioned, Write};

/// What became of the session after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The session continues.
    Continues,
    /// It is over; all that hangs on it is lost.
    Over,
}

impl Node {
    /// Whether a session has to be begun (or begun again after an unanswered create).
    pub(crate) fn can_begin(&self, rules: &Rules) -> bool {
        let wanted = self.clients.iter().any(|client| client.want.is_some());
        match &self.live {
            None => wanted && self.sessions_begun < rules.sessions_each,
            Some(live) => {
                live.keep.is_none() && !live.resuming && !live.must_read && live.call.is_none()
            }
        }
    }

    /// Sends the create, and lists the locks for the highest revision (which the caller passes): a later answer shows
    /// no more than this one, so one step is enough.
    pub(crate) fn begin(&mut self, name: usize, now: Moment, listed: Revision, rules: &Rules) {
        if self.live.is_none() {
            self.live = Some(Live {
                id: SessionId::from(format!("s{name}-{}", self.sessions_begun)),
                keep: None,
                copy: None,
                first_sent: None,
                resuming: false,
                call: None,
                must_read: false,
            });
            self.sessions_begun += 1;
        }
        self.note_list(listed);
        let live = self.live.as_mut().expect("was just set");
        live.first_sent.get_or_insert(now);
        live.call = Some(Call::Sent(Write::Session {
            given: Precondition::Absent,
            value: rules.session(live.id.clone()).into(),
        }));
    }

    /// Whether a renewal may be sent now.
    pub(crate) fn can_renew(&self, now: Moment, store: &Store, rules: &Rules) -> bool {
        let Some(live) = &self.live else {
            return false;
        };
        let due = match live.keep {
            Some(keep) => keep.is_valid(now) && now >= keep.renew_at(0.0),
            None => live.resuming,
        };
        due && !self.outlasts(store, rules)
            && (self.is_busy() || live.resuming)
            && self.renewals_left > 0
            && live.call.is_none()
            && !live.must_read
    }

    pub(crate) fn renew(&mut self, now: Moment, rules: &Rules) {
        self.renewals_left -= 1;
        let live = self.live.as_mut().expect("only a session is renewed");
        live.first_sent.get_or_insert(now);
        let (at, copy) = live.copy.as_ref().expect("only a known session is renewed");
        let renewed = copy
            .renewed(WallTime::default(), RenewalFailures::default())
            .expect("a revoked session is over");
        // The precondition closes the race with a revocation: exactly one of the two wins.
        let given = match rules.bug {
            Some(Bug::RenewalWithoutPrecondition) => Precondition::Nothing,
            _ => Precondition::At(*at),
        };
        live.call = Some(Call::Sent(Write::Session {
            given,
            value: renewed.into(),
        }));
    }

    /// Whether the session's own deadline has passed.
    pub(crate) fn has_expired(&self) -> bool {
        let now = self.clock.now();
        self.is_up() && self.keep().is_some_and(|keep| !keep.is_valid(now))
    }

    /// Whether it waits, and renews as often as it takes.
    pub(crate) fn outlasts(&self, store: &Store, rules: &Rules) -> bool {
        let ready = |live: &Live| live.keep.is_some() && live.call.is_none() && !live.must_read;
        let waits = self.clients.iter().any(|client| client.want.is_some());
        let holds = store
            .locks
            .iter()
            .flatten()
            .any(|(_, lock)| lock.holder_session() == self.session_id());
        let up = self.is_up() && self.live.as_ref().is_some_and(ready);
        rules.waiters_outlast && up && waits && !holds
    }

    /// Whether it has passed and nothing is on its way any more that could move it.
    pub(crate) fn has_expired_for_good(&self) -> bool {
        let awaits = |live: &Live| live.call.is_some() || live.must_read;
        self.has_expired() && !self.live.as_ref().is_some_and(awaits)
    }

    /// Forgets what is never read again: a client without a lease or claim, and the session of a finished agent,
    /// unless the store still names it.
    pub(crate) fn forget(&mut self, named: bool) {
        if self.role == Role::Operator || !self.is_up() {
            return;
        }
        for client in &mut self.clients {
            if !client.is_busy() && client.call.is_none() {
                *client = LockClient::idle();
            }
        }
        let on_its_way = self.live.as_ref().is_some_and(|live| live.call.is_some());
        let done = self.apps.iter().all(|app| app.tries_left == 0)
            && self
                .clients
                .iter()
                .all(|client| *client == LockClient::idle());
        if done && !named && !on_its_way {
            self.live = None;
            self.seen = None;
            self.renewals_left = 0;
        }
    }

    /// Takes the answer to the session's request.
    pub(crate) fn session_answered(
        &mut self,
        answer: Answer,
        now: Moment,
        rules: &Rules,
    ) -> Outcome {
        let live = self.live.as_mut().expect("only a session is answered");
        match answer {
            Answer::Session(_, Some(found)) => live.found(found, now, rules),
            Answer::Session(_, None) => {
                live.must_read = false;
                // Before the create was seen to land, a missing object only means "not yet".
                if live.copy.is_none() && !live.resuming {
                    Outcome::Continues
                } else {
                    Outcome::Over
                }
            }
            // It may have been its own, sent before it crashed. Or not.
            Answer::Conflict if live.resuming && rules.bug != Some(Bug::ResumeTrustsARead) => {
                Outcome::Over
            }
            Answer::Conflict => {
                live.must_read = true;
                Outcome::Continues
            }
            Answer::Lock(_) => unreachable!("a session is never answered with a lock"),
        }
    }
}

impl Live {
    fn found(&mut self, found: Versioned<Session>, now: Moment, rules: &Rules) -> Outcome {
        let was_read = self.must_read;
        self.must_read = false;
        if found.1.revoked.is_some() {
            return Outcome::Over;
        }
        let landed = match &self.copy {
            None => !self.resuming,
            Some((_, copy)) => found.1.renewals > copy.renewals,
        };
        // A resumed process cannot tell its own unanswered renewal from one that it had sent before it crashed and
        // that landed since: only an answer counts.
        let certain = !(self.resuming && was_read) || rules.bug == Some(Bug::ResumeTrustsARead);
        self.copy = Some(found);
        if landed && certain {
            self.confirm(now, rules);
        }
        Outcome::Continues
    }

    fn confirm(&mut self, now: Moment, rules: &Rules) {
        let sent = match (rules.bug, self.first_sent.take()) {
            (Some(Bug::ValidityFromAnswer), _) | (_, None) => now,
            (_, Some(sent)) => sent,
        };
        self.resuming = false;
        match &mut self.keep {
            Some(keep) => keep.confirm(sent),
            None => self.keep = Some(KeepAlive::begun(sent, rules.ttl)),
        }
    }
}

//! One configuration of the model: the participants, what may go wrong and how often.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::protocol::ids::{GrantId, OwnerId, Resource, SessionId};
use leasehold::protocol::incident::{Ending, IncidentKind};
use leasehold::protocol::lock::{Claim, Lock};
use leasehold::protocol::session::{
    Claimant, PodRef, RenewalFailures, Revocation, RevokeReason, Session,
};
use leasehold::protocol::time::{SessionTtl, WallTime};

use crate::bugs::Bug;
use crate::clock::TTL_SECONDS;
use crate::node::Return;

/// How many of each fault a run may have. Every budget is shared by all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Budget {
    /// Requests or answers that take any time. All others take none: a process that steps later, or time that passes
    /// between two steps, needs no budget.
    pub(crate) late: u8,
    /// Late writes whose senders time out. Such a write may still be applied at any later time, or never.
    pub(crate) timeouts: u8,
    pub(crate) crashes: u8,
    /// A person deletes a session object.
    pub(crate) session_deletes: u8,
    /// A person deletes a lock object.
    pub(crate) lock_deletes: u8,
    /// A person forces a release.
    pub(crate) forces: u8,
    /// The operator deletes a lock object that is free.
    pub(crate) tidies: u8,
    /// A backup is restored with its revision bumped.
    pub(crate) restores: u8,
    /// Apps that hang up while they wait.
    pub(crate) hang_ups: u8,
}

/// A configuration.
#[derive(Clone, Debug)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a part of the world that is there or not"
)]
pub(crate) struct Rules {
    pub(crate) agents: usize,
    /// Whether an operator takes part.
    pub(crate) operator: bool,
    /// Whether agents take over, or only the operator does.
    pub(crate) peers_take_over: bool,
    pub(crate) locks: usize,
    /// Every combination of slow and fast clocks, or one rate for all.
    pub(crate) clocks_differ: bool,
    pub(crate) ttl: SessionTtl,
    /// How long a lease may go on without its app's asking again, in seconds.
    pub(crate) app_ttl_seconds: u64,
    /// Whether every app asks again as soon as it can be promised more (which for exclusion is the worst that it can
    /// do), or may also not ask.
    pub(crate) apps_ask_on: bool,
    /// How often an app asks for a lock, beside the first time.
    pub(crate) tries_each: u8,
    pub(crate) renewals_each: u8,
    pub(crate) sessions_each: u8,
    /// Whether agents with waiting apps renew in time automatically, as often as it takes. Otherwise a wait ends with
    /// its renewals, and waiting for ever would never be seen.
    pub(crate) waiters_outlast: bool,
    /// Whether apps wait in the queue, fail at once when the lock is held, or do either.
    pub(crate) waits: &'static [bool],
    /// Whether a challenger also watches the waiters' sessions.
    pub(crate) watch_waiters: bool,
    /// Whether apps write to the fenced resource.
    pub(crate) fenced_writes: bool,
    /// How crashed processes may come back.
    pub(crate) returns: &'static [Return],
    pub(crate) budget: Budget,
    pub(crate) bug: Option<Bug>,
    pub(crate) names: Names,
}

/// Informational fields of objects; the protocol decides nothing by them.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    owner: OwnerId,
    pod: PodRef,
    nobody: Arc<str>,
    resource: Resource,
}

impl Rules {
    /// Two agents, one lock, perfect network and clocks.
    pub(crate) fn calm() -> Self {
        Self {
            agents: 2,
            operator: false,
            peers_take_over: true,
            locks: 1,
            clocks_differ: false,
            ttl: SessionTtl::clamped(TTL_SECONDS),
            app_ttl_seconds: 630,
            apps_ask_on: true,
            tries_each: 0,
            renewals_each: 1,
            sessions_each: 1,
            waiters_outlast: false,
            waits: &[true],
            watch_waiters: false,
            fenced_writes: false,
            returns: &[Return::WithState, Return::WithoutState, Return::Never],
            budget: Budget::default(),
            bug: None,
            names: Names {
                owner: OwnerId::from("o"),
                pod: PodRef {
                    name: "p".into(),
                    uid: "u".into(),
                    node: None,
                },
                nobody: "".into(),
                resource: Resource::parse("r").expect("one letter is a resource"),
            },
        }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.agents + usize::from(self.operator)
    }

    pub(crate) fn session(&self, id: SessionId) -> Session {
        Session {
            id,
            pod: self.names.pod.clone(),
            ttl: self.ttl,
            agent_version: self.names.nobody.clone(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        }
    }

    pub(crate) fn unheld(&self) -> Lock {
        Lock::unheld(self.names.resource.clone())
    }

    pub(crate) fn claim(&self, grant: GrantId, session: SessionId) -> Claim {
        Claim {
            grant,
            claimant: Claimant {
                owner: self.names.owner.clone(),
                pod: self.names.pod.clone(),
                session,
                session_ttl: self.ttl,
            },
            kept: false,
            metadata: BTreeMap::new(),
            at: WallTime::default(),
            preferred: false,
        }
    }

    pub(crate) fn revocation(&self) -> Revocation {
        Revocation {
            at: WallTime::default(),
            by: self.names.nobody.clone(),
            reason: RevokeReason::Expired,
        }
    }

    pub(crate) fn ending(&self, kind: IncidentKind) -> Ending {
        Ending {
            at: WallTime::default(),
            kind,
            actor: self.names.nobody.clone(),
            reason: self.names.nobody.clone(),
        }
    }
}

//! One simulated world: its store, its time, its records and its invariants.
//!
//! Everything in it happens on one thread, one step after the other. Randomness and time come only
//! from the seed and the virtual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::protocol::election::is_election;
use leasehold::protocol::ids::{LeaseId, Resource};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::Session;
use leasehold::protocol::token::Token;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::fleet::FleetStore;
use tokio_util::sync::CancellationToken;

use crate::clock::Timeline;
use crate::history::{Op, OverriddenBy};
use crate::incidents::Incidents;
use crate::invariants::{Invariants, Promise, Verdict};
use crate::leads::Leads;
use crate::link::at_once;
use crate::recorder::{Invocation, Recorder};
use crate::sessions::Sessions;
use crate::setup::{Control, Setup};

/// The number of events of each kind.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// The longest duration of each kind, in TTLs.
pub(crate) type Longest = BTreeMap<&'static str, f64>;

/// The world. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    setup: Setup,
    time: Timeline,
    store: EmbeddedStore,
    records: Mutex<Records>,
    /// Notified when an invariant is violated.
    broken: CancellationToken,
}

/// The records of a world.
pub(crate) struct Records {
    pub(crate) invariants: Invariants,
    pub(crate) sessions: Sessions,
    pub(crate) incidents: Incidents,
    pub(crate) recorder: Recorder,
    pub(crate) trace: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) flaw: Option<String>,
    /// The longest duration of each kind after everything was healed, in TTLs.
    pub(crate) longest: Longest,
    /// The number of restored backups.
    pub(crate) restores: u64,
    leads: Leads,
    /// The pods without any running process.
    ended: BTreeSet<String>,
    /// The token of the last accepted write, by resource.
    register: BTreeMap<Resource, Token>,
}

impl World {
    pub(crate) fn new(setup: Setup) -> Self {
        let store = EmbeddedStore::in_memory(setup.first_revision).expect("a store in memory");
        let invariants = Invariants::new(!setup.clocks_leap);
        let recorder = Recorder::new(!setup.clocks_leap);
        let sessions = Sessions::new(!setup.clocks_leap && setup.control == Control::Nothing);
        Self(Arc::new(Inner {
            setup,
            time: Timeline::start(),
            store,
            records: Mutex::new(Records {
                invariants,
                sessions,
                incidents: Incidents::default(),
                recorder,
                trace: Vec::new(),
                counts: Counts::new(),
                flaw: None,
                longest: Longest::new(),
                restores: 0,
                leads: Leads::default(),
                ended: BTreeSet::new(),
                register: BTreeMap::new(),
            }),
            broken: CancellationToken::new(),
        }))
    }

    pub(crate) fn setup(&self) -> &Setup {
        &self.0.setup
    }

    pub(crate) fn time(&self) -> Timeline {
        self.0.time
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.time.now()
    }

    /// Returns the time since then.
    pub(crate) fn since(&self, then: Duration) -> Duration {
        self.now().saturating_sub(then)
    }

    /// Returns whether all faults are over.
    pub(crate) fn is_healed(&self) -> bool {
        self.now() >= self.setup().trouble_for
    }

    /// Returns how long faults are still injected.
    pub(crate) fn left(&self) -> Duration {
        self.setup().trouble_for.saturating_sub(self.now())
    }

    pub(crate) fn store(&self) -> &EmbeddedStore {
        &self.0.store
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.0
            .records
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an invariant is violated.
    pub(crate) async fn broken(&self) {
        self.0.broken.cancelled().await;
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, who: &str, what: impl fmt::Display) {
        let at = self.now().as_secs_f64();
        self.records()
            .trace
            .push(format!("{at:>9.3} {who:<8} {what}"));
    }

    /// Counts an event of this kind.
    pub(crate) fn count(&self, what: &'static str) {
        *self.records().counts.entry(what).or_default() += 1;
    }

    /// Records a duration after everything was healed.
    pub(crate) fn took(&self, what: &'static str, took: Duration) {
        let mut records = self.records();
        let ttls = took.div_duration_f64(self.setup().ttl.get());
        let longest = records.longest.entry(what).or_default();
        *longest = longest.max(ttls);
    }

    /// The first flaw ends the world.
    pub(crate) fn judge(&self, who: &str, verdict: Verdict) {
        let Err(flaw) = verdict else { return };
        self.note(who, format_args!("FLAW: {flaw}"));
        self.records().flaw.get_or_insert(flaw);
        self.0.broken.cancel();
    }

    /// A backup replaced everything.
    pub(crate) fn restored(&self, backup: &BTreeMap<Resource, Lock>) {
        let revision = at_once(self.store().revision()).unwrap_or_default();
        let now = self.now();
        let excused_until = now + self.setup().ttl.get();
        let mut records = self.records();
        records.invariants.restored(backup, revision);
        records.sessions.restored(now);
        records.leads.restored(excused_until);
        records
            .recorder
            .overridden(now, None, OverriddenBy::Restore);
        records.restores += 1;
    }

    /// A person ended the current grant.
    pub(crate) fn overridden(&self, resource: &Resource, by: OverriddenBy) {
        let (now, mut records) = (self.now(), self.records());
        records.invariants.overridden(resource);
        records.recorder.overridden(now, Some(resource), by);
    }

    /// The apps of a pod crashed.
    pub(crate) fn apps_crashed(&self, pod: &str) {
        let (now, mut records) = (self.now(), self.records());
        for (app, lease) in records.invariants.crashed(pod) {
            let op = Op::believes_end(lease.as_str());
            records.recorder.note(now, &app, op);
        }
    }

    /// An operator leads, and acts on that.
    pub(crate) fn acts_as_leader(&self, who: &str) {
        self.count("operator acts as the leader");
        let verdict = self.records().leads.acts(who, self.now());
        if !self.setup().clocks_leap {
            self.judge(who, verdict);
        }
    }

    /// No process of this pod runs any longer.
    pub(crate) fn ended(&self, pod: &str) {
        self.records().ended.insert(pod.to_owned());
    }

    /// A session was revoked because its pod ended.
    pub(crate) fn judge_early_reclaim(&self, who: &str, session: &Session) {
        if !self.records().ended.contains(&*session.pod.name) {
            let flaw = format!("{} was revoked as that of a pod that ended", session.id);
            self.judge(who, Err(flaw));
        }
        self.count("session revoked at the end of its pod");
    }

    /// Returns whether this pod holds a lock in the store.
    pub(crate) fn holds(&self, pod: &str) -> bool {
        let records = self.records();
        let mut grants = records
            .invariants
            .locks()
            .filter_map(|lock| lock.grant.as_ref());
        grants.any(|grant| *grant.holder.pod.name == *pod)
    }

    /// Records the stored lock after a write of this process.
    pub(crate) fn stored(&self, who: &str, resource: &Resource, lock: Option<&Lock>) {
        let stored = self.records().invariants.stored(resource, lock);
        let before = match stored {
            Ok(before) => before,
            Err(flaw) => return self.judge(who, Err(flaw)),
        };
        self.note_stored(who, resource, before.as_ref(), lock);
        if let Some((before, lock)) = before.as_ref().zip(lock) {
            let holder = before.grant.as_ref().map(|held| &*held.holder.pod.name);
            let pod_ended = holder.is_some_and(|pod| self.records().ended.contains(pod));
            let verdict = (self.records().incidents).stored(who, before, lock, pod_ended);
            self.judge(who, verdict);
        }
    }

    fn note_stored(&self, who: &str, of: &Resource, before: Option<&Lock>, lock: Option<&Lock>) {
        let holder = |lock: Option<&Lock>| lock.and_then(|lock| lock.grant.clone());
        let (had, has) = (holder(before), holder(lock));
        let what = match (&had, &has) {
            (None, Some(_)) => "granted",
            (Some(had), Some(has)) if had.id == has.id => "changed",
            (Some(had), Some(_)) if *had.holder.pod.name == *who => "handed over",
            (Some(_), Some(_)) => "taken over",
            (Some(had), None) if *had.holder.pod.name == *who => "released",
            (Some(_), None) => "freed",
            (None, None) => "changed while free",
        };
        self.count(what);
        if let Some(grant) = has.as_ref().filter(|_| is_election(of)) {
            self.records().leads.stored(grant);
        }
        let Some(lock) = lock else {
            return self.note(who, format_args!("{of} deleted"));
        };
        let has = has.map_or_else(
            || "nobody".to_owned(),
            |has| format!("{} by {}", has.holder.session, has.id),
        );
        let waiting = lock.waiters.len();
        let token = lock.token;
        self.note(
            who,
            format_args!("{of} {what}: {has}, token {token}, {waiting} wait"),
        );
    }

    /// Records that an app receives a confirmation of its lease.
    pub(crate) fn promise(&self, promise: &Promise) {
        let left = promise.until.saturating_sub(promise.at).as_secs_f64();
        self.note(
            &promise.app,
            format_args!(
                "believes in {} token {} for {left:.3} ({})",
                promise.resource, promise.token, promise.lease
            ),
        );
        let verdict = {
            let records = &mut *self.records();
            records.recorder.promise(promise);
            let session = records.invariants.session_of(promise);
            session
                .and_then(|session| {
                    records
                        .sessions
                        .may_last(&session, promise.until, promise.gain)
                })
                .and_then(|()| records.invariants.promise(promise))
        };
        self.judge(&promise.app, verdict);
    }

    /// A write with a token arrives at the fenced resource. Returns whether it was accepted.
    pub(crate) fn write(
        &self,
        app: &str,
        to: &Resource,
        lease: &LeaseId,
        token: Token,
        asked: &Invocation,
    ) -> bool {
        let now = self.now();
        let verdict = {
            let mut records = self.records();
            let last = records.register.entry(to.clone()).or_default();
            let is_taken = token >= *last || self.setup().control == Control::Register;
            if is_taken {
                *last = token;
            }
            records.recorder.written(now, app, asked, is_taken);
            let verdict = records.invariants.written(to, lease, token, is_taken, now);
            verdict.map(|()| is_taken)
        };
        let is_taken = *verdict.as_ref().unwrap_or(&false);
        let outcome = if is_taken {
            "taken"
        } else {
            "refused as stale"
        };
        self.note(
            app,
            format_args!("write to {to} with token {token}: {outcome}"),
        );
        self.count(if is_taken {
            "write taken"
        } else {
            "stale write refused"
        });
        self.judge(app, verdict.map(drop));
        is_taken
    }
}

//! One simulated world: its store, its time, what is written down of it, and what is checked.
//!
//! Everything that happens in it happens on one thread, one step after the other. Nothing in here asks
//! for chance or time but through the seed and the virtual clock.

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

use crate::checks::{Checks, Heard, Verdict};
use crate::clock::Timeline;
use crate::diary::{Asked, Diary};
use crate::history::{Op, OverriddenBy};
use crate::incidents::Incidents;
use crate::leads::Leads;
use crate::link::at_once;
use crate::sessions::Sessions;
use crate::setting::{Bent, Setting};

/// How often each kind of thing happened.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// How long something took at most, in TTLs.
pub(crate) type Longest = BTreeMap<&'static str, f64>;

/// The world. Cloning gives another handle to the same one.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    setting: Setting,
    time: Timeline,
    store: EmbeddedStore,
    book: Mutex<Book>,
    /// Told when something that must hold does not.
    broken: CancellationToken,
}

/// What is written down.
pub(crate) struct Book {
    pub(crate) checks: Checks,
    pub(crate) sessions: Sessions,
    pub(crate) incidents: Incidents,
    pub(crate) diary: Diary,
    pub(crate) trace: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) flaw: Option<String>,
    /// The longest that each of these took after everything was mended, in TTLs.
    pub(crate) longest: Longest,
    /// How many backups were restored.
    pub(crate) restores: u64,
    leads: Leads,
    /// The pods in which nothing runs any more.
    ended: BTreeSet<String>,
    /// What the fenced resource took last, by resource.
    register: BTreeMap<Resource, Token>,
}

impl World {
    pub(crate) fn new(setting: Setting) -> Self {
        let store = EmbeddedStore::in_memory(setting.first_revision).expect("a store in memory");
        let checks = Checks::new(!setting.clocks_leap);
        let diary = Diary::new(!setting.clocks_leap);
        let sessions = Sessions::new(!setting.clocks_leap && setting.bent == Bent::Nothing);
        Self(Arc::new(Inner {
            setting,
            time: Timeline::start(),
            store,
            book: Mutex::new(Book {
                checks,
                sessions,
                incidents: Incidents::default(),
                diary,
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

    pub(crate) fn setting(&self) -> &Setting {
        &self.0.setting
    }

    pub(crate) fn time(&self) -> Timeline {
        self.0.time
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.time.now()
    }

    /// How long ago that was.
    pub(crate) fn since(&self, then: Duration) -> Duration {
        self.now().saturating_sub(then)
    }

    /// Whether nothing goes wrong any more.
    pub(crate) fn is_mended(&self) -> bool {
        self.now() >= self.setting().trouble_for
    }

    /// For how long things still go wrong.
    pub(crate) fn left(&self) -> Duration {
        self.setting().trouble_for.saturating_sub(self.now())
    }

    pub(crate) fn store(&self) -> &EmbeddedStore {
        &self.0.store
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.0.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers when something that must hold does not.
    pub(crate) async fn broken(&self) {
        self.0.broken.cancelled().await;
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, who: &str, what: impl fmt::Display) {
        let at = self.now().as_secs_f64();
        self.book().trace.push(format!("{at:>9.3} {who:<8} {what}"));
    }

    /// One more of these happened.
    pub(crate) fn count(&self, what: &'static str) {
        *self.book().counts.entry(what).or_default() += 1;
    }

    /// After everything was mended, this took so long.
    pub(crate) fn took(&self, what: &'static str, took: Duration) {
        let mut book = self.book();
        let ttls = took.div_duration_f64(self.setting().ttl.get());
        let longest = book.longest.entry(what).or_default();
        *longest = longest.max(ttls);
    }

    /// What was found; the first flaw ends the world.
    pub(crate) fn judge(&self, who: &str, verdict: Verdict) {
        let Err(flaw) = verdict else { return };
        self.note(who, format_args!("FLAW: {flaw}"));
        self.book().flaw.get_or_insert(flaw);
        self.0.broken.cancel();
    }

    /// A backup was put in the place of everything.
    pub(crate) fn restored(&self, backup: &BTreeMap<Resource, Lock>) {
        let revision = at_once(self.store().revision()).unwrap_or_default();
        let now = self.now();
        let excused_until = now + self.setting().ttl.get();
        let mut book = self.book();
        book.checks.restored(backup, revision);
        book.sessions.restored(now);
        book.leads.restored(excused_until);
        book.diary.overridden(now, None, OverriddenBy::Restore);
        book.restores += 1;
    }

    /// A person overrode what holds now.
    pub(crate) fn overridden(&self, resource: &Resource, by: OverriddenBy) {
        let (now, mut book) = (self.now(), self.book());
        book.checks.overridden(resource);
        book.diary.overridden(now, Some(resource), by);
    }

    /// The apps of a pod are dead.
    pub(crate) fn apps_died(&self, pod: &str) {
        let (now, mut book) = (self.now(), self.book());
        for (app, lease) in book.checks.died(pod) {
            let op = Op::believes_end(lease.as_str());
            book.diary.note(now, &app, op);
        }
    }

    /// An operator was told that it leads, and acts on that.
    pub(crate) fn acts_as_leader(&self, who: &str) {
        self.count("operator acts as the leader");
        let verdict = self.book().leads.acts(who, self.now());
        if !self.setting().clocks_leap {
            self.judge(who, verdict);
        }
    }

    /// Nothing of this pod runs any more.
    pub(crate) fn ended(&self, pod: &str) {
        self.book().ended.insert(pod.to_owned());
    }

    /// A session was revoked because its pod ended.
    pub(crate) fn judge_early_reclaim(&self, who: &str, session: &Session) {
        if !self.book().ended.contains(&*session.pod.name) {
            let flaw = format!("{} was revoked as that of a pod that ended", session.id);
            self.judge(who, Err(flaw));
        }
        self.count("session revoked at the end of its pod");
    }

    /// Whether a lock is held by this pod, as the store has it.
    pub(crate) fn holds(&self, pod: &str) -> bool {
        let book = self.book();
        let mut grants = book.checks.locks().filter_map(|lock| lock.grant.as_ref());
        grants.any(|grant| *grant.holder.pod.name == *pod)
    }

    /// The store has this lock now, by a write of this process.
    pub(crate) fn stored(&self, who: &str, resource: &Resource, lock: Option<&Lock>) {
        let stored = self.book().checks.stored(resource, lock);
        let before = match stored {
            Ok(before) => before,
            Err(flaw) => return self.judge(who, Err(flaw)),
        };
        self.note_stored(who, resource, before.as_ref(), lock);
        if let Some((before, lock)) = before.as_ref().zip(lock) {
            let holder = before.grant.as_ref().map(|held| &*held.holder.pod.name);
            let pod_ended = holder.is_some_and(|pod| self.book().ended.contains(pod));
            let verdict = (self.book().incidents).stored(who, before, lock, pod_ended);
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
            self.book().leads.stored(grant);
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

    /// An app hears that a lease is its own.
    pub(crate) fn heard(&self, heard: &Heard) {
        let left = heard.until.saturating_sub(heard.at).as_secs_f64();
        self.note(
            &heard.app,
            format_args!(
                "believes in {} token {} for {left:.3} ({})",
                heard.resource, heard.token, heard.lease
            ),
        );
        let verdict = {
            let book = &mut *self.book();
            book.diary.heard(heard);
            let session = book.checks.session_of(heard);
            session
                .and_then(|session| book.sessions.may_last(&session, heard.until, heard.gain))
                .and_then(|()| book.checks.heard(heard))
        };
        self.judge(&heard.app, verdict);
    }

    /// A write with a token reaches the fenced resource; whether it was taken.
    pub(crate) fn write(
        &self,
        app: &str,
        to: &Resource,
        lease: &LeaseId,
        token: Token,
        asked: &Asked,
    ) -> bool {
        let now = self.now();
        let verdict = {
            let mut book = self.book();
            let last = book.register.entry(to.clone()).or_default();
            let is_taken = token >= *last || self.setting().bent == Bent::Register;
            if is_taken {
                *last = token;
            }
            book.diary.written(now, app, asked, is_taken);
            let verdict = book.checks.written(to, lease, token, is_taken, now);
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

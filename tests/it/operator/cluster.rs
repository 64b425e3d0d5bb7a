//! A fake cluster: locks and sessions in maps, with feeds of their changes.

mod namespaces;
mod ports;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::operator::{BindSidecars, Operator, Ports, Rules};
use leasehold::protocol::ids::{GrantId, OwnerId, Resource};
use leasehold::protocol::incident::{Incident, IncidentKind};
use leasehold::protocol::lock::{Grant, Lock};
use leasehold::protocol::queue::{Queue, Waiter};
use leasehold::protocol::session::{Claimant, PodRef, RenewalFailures, Session};
use leasehold::protocol::settings::{ReleaseMode, ReleaseRequest, Settings};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Revision, Token};
use leasehold::random::Random;
use leasehold::store::cluster::PodIdentity;
use leasehold::store::fleet::{FeedEvent, FleetStore, NodeReport, Object, ObjectRef};
use leasehold::store::{Original, StoreError, Stored};
use namespaces::Tenancy;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::paused_clock::PausedClock;

/// The TTL of all sessions of this cluster.
pub(crate) const TTL: Duration = Duration::from_secs(10);

type Teller<T> = mpsc::UnboundedSender<FeedEvent<Object<T>>>;

#[derive(Default)]
struct Inside {
    revision: u64,
    locks: BTreeMap<ObjectRef, Object<Lock>>,
    sessions: BTreeMap<ObjectRef, Object<Session>>,
    tell_locks: Option<Teller<Lock>>,
    tell_sessions: Option<Teller<Session>>,
    tell_nodes: Option<mpsc::UnboundedSender<FeedEvent<NodeReport>>>,
    notes: BTreeSet<ObjectRef>,
    notes_written: usize,
    notes_fail: Option<StoreError>,
    writes_fail: Option<StoreError>,
    tries: usize,
    writes: usize,
    lines: Vec<Value>,
    labelled: Vec<PodIdentity>,
    /// The candidates' pods that are not Ready, by name, with the time since when. Other pods are
    /// Ready.
    unready: BTreeMap<String, &'static str>,
    asked_to_resign: Vec<(GrantId, String)>,
    tenancy: Tenancy,
    leads: bool,
    asked_whether_it_leads: usize,
    stands: bool,
    broken: HashSet<Part>,
}

/// The parts that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// Lines of the audit log cannot be written.
    Audit,
    /// Locks cannot be listed.
    Locks,
    /// The right to list nodes is missing.
    Nodes,
}

/// The cluster and an operator that runs on it.
#[derive(Clone)]
pub(crate) struct Cluster {
    inside: Arc<Mutex<Inside>>,
    leads_changed: Arc<Notify>,
    operator: Option<Operator>,
}

fn place(name: &str) -> ObjectRef {
    ObjectRef {
        namespace: "n".into(),
        name: name.into(),
    }
}

fn placed<T>(place: &ObjectRef, value: T, version: u64) -> Object<T> {
    Object {
        object_ref: place.clone(),
        uid: format!("uid-of-{}", place.name).into(),
        is_deleted: false,
        is_misnamed: false,
        set_at: None,
        stored: Stored {
            value,
            version: Revision(version),
            original: Original::new(()),
        },
    }
}

impl Inside {
    fn put_lock(&mut self, name: &str, lock: Lock) -> Object<Lock> {
        self.revision += 1;
        let lock = placed(&place(name), lock, self.revision);
        self.locks.insert(lock.object_ref.clone(), lock.clone());
        if let Some(tell) = &self.tell_locks {
            let _told = tell.send(FeedEvent::Applied(Box::new(lock.clone())));
        }
        lock
    }

    fn put_session(&mut self, session: Session) -> Object<Session> {
        self.revision += 1;
        let place = place(session.id.as_str());
        let session = placed(&place, session, self.revision);
        self.sessions.insert(place, session.clone());
        if let Some(tell) = &self.tell_sessions {
            let _told = tell.send(FeedEvent::Applied(Box::new(session.clone())));
        }
        session
    }

    fn try_write(&mut self) -> Result<(), StoreError> {
        self.tries += 1;
        if let Some(error) = &self.writes_fail {
            return Err(error.clone());
        }
        self.writes += 1;
        Ok(())
    }
}

impl Cluster {
    /// Starts an operator that does not lead yet, on an empty cluster.
    pub(crate) async fn start() -> Self {
        Self::start_without([]).await
    }

    /// The same, with these parts broken.
    pub(crate) async fn start_without<const N: usize>(broken: [Part; N]) -> Self {
        Self::start_with(broken, BindSidecars::None).await
    }

    /// Starts an operator that binds the sidecars' role in labelled namespaces.
    pub(crate) async fn start_binding(bind_sidecars: BindSidecars) -> Self {
        Self::start_with([], bind_sidecars).await
    }

    /// Starts an operator on locks and sessions of another store.
    pub(crate) async fn start_over(fleet: Arc<dyn FleetStore>) -> Self {
        Self::new().run(Some(fleet), BindSidecars::None).await
    }

    async fn start_with<const N: usize>(broken: [Part; N], bind_sidecars: BindSidecars) -> Self {
        let cluster = Self::new();
        cluster.inside().broken.extend(broken);
        cluster.run(None, bind_sidecars).await
    }

    fn new() -> Self {
        let cluster = Self {
            inside: Arc::default(),
            leads_changed: Arc::default(),
            operator: None,
        };
        cluster.inside().revision = 1_000;
        cluster
    }

    async fn run(
        mut self,
        fleet: Option<Arc<dyn FleetStore>>,
        bind_sidecars: BindSidecars,
    ) -> Self {
        let ports = Ports {
            fleet: fleet.unwrap_or_else(|| Arc::new(self.clone())),
            events: Arc::new(self.clone()),
            labels: Arc::new(self.clone()),
            candidates: Arc::new(self.clone()),
            namespaces: Arc::new(self.clone()),
            audit: Arc::new(self.clone()),
            leadership: Arc::new(self.clone()),
            clock: Arc::new(PausedClock::start()),
            random: Random::system(),
            pause: None,
        };
        let rules = Rules {
            actor: "operator-0".into(),
            token_floor: 0,
            retain: Duration::from_secs(86_400),
            keep_sessions: Duration::from_secs(600),
            long_held: Duration::from_secs(3_600),
            leader_labels: true,
            unready_leader: TTL / 2,
            bind_sidecars,
            report_uninjected: bind_sidecars != BindSidecars::None,
            namespace: "leasehold-system".into(),
        };
        let operator = Operator::new(rules, ports);
        self.operator = Some(operator.clone());
        tokio::spawn(async move { operator.run(CancellationToken::new()).await });
        tokio::task::yield_now().await;
        self
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    /// Adds a lock that a pod's session holds; the session is never renewed.
    pub(crate) fn hold(&self, lock: &str, pod: &str) {
        let ttl = SessionTtl::from_secs(TTL.as_secs()).unwrap();
        let pod_ref = PodRef {
            name: pod.into(),
            uid: format!("pod-{pod}").as_str().into(),
            node: Some(format!("node-of-{pod}").as_str().into()),
        };
        let mut inside = self.inside();
        inside.put_session(Session {
            id: pod.into(),
            pod: pod_ref.clone(),
            ttl,
            agent_version: "0".into(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        });
        let held = Lock {
            grant: Some(Grant {
                id: format!("g-{pod}").into(),
                holder: Claimant {
                    owner: OwnerId::from(pod),
                    pod: pod_ref,
                    session: pod.into(),
                    session_ttl: ttl,
                },
                metadata: BTreeMap::new(),
                acquired_at: WallTime(0),
                kept: false,
            }),
            token: Token::from_raw(1_000),
            ..Lock::unheld(Resource::parse(lock).unwrap())
        };
        inside.put_lock(lock, held);
    }

    /// Reports a node with the out-of-service taint.
    pub(crate) fn taint(&self, node: &str, is_ready: bool) {
        let report = NodeReport {
            name: node.into(),
            is_tainted: true,
            is_ready,
        };
        let inside = self.inside();
        let tell = inside.tell_nodes.as_ref().unwrap();
        tell.send(FeedEvent::Applied(Box::new(report))).unwrap();
    }

    /// Returns whether the operator reports itself as ready.
    pub(crate) fn ready(&self) -> Result<(), String> {
        self.operator.as_ref().unwrap().ready()
    }

    /// Adds a pod as a waiter of a held lock.
    pub(crate) fn wait(&self, lock: &str, pod: &str) {
        let mut inside = self.inside();
        let before = inside.locks[&place(lock)].stored.value.clone();
        let mut claimant = before.grant.clone().unwrap().holder;
        claimant.pod.name = pod.into();
        claimant.session = pod.into();
        let waiter = Waiter {
            grant: format!("g-{pod}").into(),
            claimant,
            queued_at: WallTime(0),
            preferred: false,
        };
        let queued = Lock {
            waiters: Queue::from_entries(vec![waiter]),
            ..before
        };
        inside.put_lock(lock, queued);
    }

    /// Makes the pod of a candidate not Ready since this time.
    pub(crate) fn unready(&self, pod: &str, since: &'static str) {
        self.inside().unready.insert(pod.to_owned(), since);
    }

    /// Returns the requests to resign, by grant, with their reasons.
    pub(crate) fn asked_to_resign(&self) -> Vec<(GrantId, String)> {
        self.inside().asked_to_resign.clone()
    }

    /// Adds a free lock with an incident of now.
    pub(crate) fn incident(&self, lock: &str, kind: IncidentKind) {
        self.incident_at(lock, kind, WallTime(0));
    }

    /// Adds a free lock with an incident of this time by its writer's clock.
    pub(crate) fn incident_at(&self, lock: &str, kind: IncidentKind, at: WallTime) {
        let incident = Incident {
            at,
            kind,
            grant: Some("g".into()),
            token: Token::from_raw(1_000),
            owner: OwnerId::from("o"),
            pod: "p".into(),
            actor: "x".into(),
            reason: "y".into(),
        };
        let with_it = Lock {
            incidents: vec![incident],
            ..Lock::unheld(Resource::parse(lock).unwrap())
        };
        self.inside().put_lock(lock, with_it);
    }

    /// Creates a lock with a request to release a lease that never existed.
    pub(crate) fn make_with_request(&self, lock: &str) {
        let request = ReleaseRequest {
            lease: "nobody".into(),
            mode: ReleaseMode::Force,
            reason: "stuck".into(),
            actor: "jane".into(),
        };
        let with_it = Lock {
            settings: Settings {
                release_request: Some(Arc::new(request)),
                ..Settings::default()
            },
            ..Lock::unheld(Resource::parse(lock).unwrap())
        };
        self.inside().put_lock(lock, with_it);
    }

    pub(crate) fn lead(&self, leads: bool) {
        self.inside().leads = leads;
        self.leads_changed.notify_waiters();
    }

    /// Renews a session; no feed has delivered the renewal yet.
    pub(crate) fn renew_unheard(&self, session: &str) {
        let mut inside = self.inside();
        let tell = inside.tell_sessions.take();
        let mut renewed = inside.sessions[&place(session)].stored.value.clone();
        renewed.renewals += 1;
        inside.put_session(renewed);
        inside.tell_sessions = tell;
    }

    pub(crate) fn holder(&self, lock: &str) -> Option<String> {
        let inside = self.inside();
        let grant = inside.locks[&place(lock)].stored.value.grant.as_ref()?;
        Some(grant.holder.session.to_string())
    }

    pub(crate) fn writes(&self) -> usize {
        self.inside().writes
    }

    pub(crate) fn tries(&self) -> usize {
        self.inside().tries
    }

    pub(crate) fn lines(&self) -> Vec<Value> {
        self.inside().lines.clone()
    }

    pub(crate) fn notes(&self) -> usize {
        self.inside().notes.len()
    }

    /// Returns how many notes were written, including repeated ones.
    pub(crate) fn notes_written(&self) -> usize {
        self.inside().notes_written
    }

    /// Returns the pods with the label of the only election here.
    pub(crate) fn labelled(&self) -> Vec<String> {
        let inside = self.inside();
        let names = inside
            .labelled
            .iter()
            .map(|pod| pod.object_ref.name.to_string());
        names.collect()
    }

    pub(crate) fn forget_note_of(&self, lock: &str) {
        let prefix = format!("{lock}.");
        let mut inside = self.inside();
        let before = inside.notes.len();
        inside.notes.retain(|note| !note.name.starts_with(&prefix));
        assert_eq!(inside.notes.len(), before - 1);
    }

    pub(crate) fn notes_fail(&self, with: Option<StoreError>) {
        self.inside().notes_fail = with;
    }

    pub(crate) fn writes_fail(&self, with: Option<StoreError>) {
        self.inside().writes_fail = with;
    }

    /// Sets the revision of the store, and returns the previous one.
    pub(crate) fn set_revision(&self, revision: u64) -> u64 {
        std::mem::replace(&mut self.inside().revision, revision)
    }

    /// Interrupts the feed of locks, which continues without a change.
    pub(crate) fn interrupt(&self) {
        let inside = self.inside();
        let away = StoreError::Unavailable("away".into());
        let tell = inside.tell_locks.as_ref().unwrap();
        let _told = tell.send(FeedEvent::Interrupted(away));
    }

    /// Refuses the feed of locks once.
    pub(crate) fn refuse(&self) {
        let inside = self.inside();
        let refused = StoreError::Denied("cannot watch distributedlocks".into());
        let tell = inside.tell_locks.as_ref().unwrap();
        let _told = tell.send(FeedEvent::Interrupted(refused));
    }

    /// Returns whether the replica is willing to be active.
    pub(crate) fn stands(&self) -> bool {
        self.inside().stands
    }

    /// Returns why it is not ready, or an empty text if it is.
    pub(crate) fn why_not_ready(&self) -> String {
        let operator = self.operator.as_ref().unwrap();
        operator.ready().err().unwrap_or_default()
    }

    /// Relists the feed of locks.
    pub(crate) fn relist(&self) {
        let inside = self.inside();
        let tell = inside.tell_locks.as_ref().unwrap();
        let there = inside.locks.values().cloned();
        let there = there.map(|lock| FeedEvent::Applied(Box::new(lock)));
        for told in [FeedEvent::ListStarted]
            .into_iter()
            .chain(there)
            .chain([FeedEvent::ListDone])
        {
            let _told = tell.send(told);
        }
    }

    pub(crate) fn asked_whether_it_leads(&self) -> usize {
        self.inside().asked_whether_it_leads
    }

    pub(crate) fn break_down(&self, part: Part) {
        self.inside().broken.insert(part);
    }

    pub(crate) fn repair(&self, part: Part) {
        self.inside().broken.remove(&part);
    }

    /// Delivers an unreadable lock on the feed.
    pub(crate) fn unreadable(&self, lock: &str) {
        let inside = self.inside();
        let told = FeedEvent::Unreadable {
            object_ref: place(lock),
            uid: "u".into(),
            why: "somebody edited it".into(),
            free: None,
        };
        let _told = inside.tell_locks.as_ref().unwrap().send(told);
    }

    pub(crate) fn metrics(&self) -> String {
        self.operator.as_ref().unwrap().metrics()
    }
}

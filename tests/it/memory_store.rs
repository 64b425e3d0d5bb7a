//! A store in memory: compare-and-swap on a revision counter, as the API server has it, with
//! faults on demand and a count of the writes that took effect.

mod gate;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use leasehold::protocol::ids::{Resource, SessionId};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::{Revocation, RevokeReason, Session};
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Revision;
use leasehold::store::{
    LockEvent, LockStore, LockWatch, Look, Original, Page, SessionStore, StoreError, Stored,
};

pub(crate) use gate::{Gate, Half};

/// A call that a fault can be put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    GetLock,
    LookAtLock,
    ListHeldLocks,
    WatchLocks,
    ListLocks,
    CreateLock,
    UpdateLock,
    GetSession,
    CreateSession,
    UpdateSession,
}

/// What becomes of a call: none lets it through; an error is answered instead, and nothing done.
pub(crate) type Hook = Box<dyn FnMut(Call) -> Option<StoreError> + Send>;

#[derive(Default)]
struct Contents {
    revision: u64,
    writes: usize,
    calls: usize,
    locks: BTreeMap<Resource, Stored<Lock>>,
    sessions: BTreeMap<SessionId, Stored<Session>>,
    hook: Option<Hook>,
    gate: Option<Gate>,
    unanswered: Option<Call>,
    watches: Vec<Watch>,
}

/// An open watch: whose locks, and where their events go.
struct Watch {
    session: SessionId,
    events: UnboundedSender<Result<LockEvent, StoreError>>,
}

/// The store; clones share their contents.
#[derive(Clone, Default)]
pub(crate) struct MemoryStore {
    contents: Arc<Mutex<Contents>>,
    is_cut_off: Arc<AtomicBool>,
}

impl MemoryStore {
    /// The same store, as seen over a connection of its own.
    pub(crate) fn over_a_connection(&self) -> Self {
        Self {
            contents: self.contents.clone(),
            is_cut_off: Arc::default(),
        }
    }

    /// Nothing asked over this connection comes through any more.
    pub(crate) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::SeqCst);
    }

    /// How many writes took effect.
    pub(crate) fn writes(&self) -> usize {
        self.contents().writes
    }

    /// How often it was asked for anything.
    pub(crate) fn calls(&self) -> usize {
        self.contents().calls
    }

    /// The session that holds a lock.
    pub(crate) fn session_of(&self, resource: &str) -> Option<SessionId> {
        self.lock(resource)?.holder_session().cloned()
    }

    /// A session, as an onlooker sees it.
    pub(crate) fn session(&self, id: &SessionId) -> Option<Session> {
        let contents = self.contents();
        contents.sessions.get(id).map(|stored| stored.value.clone())
    }

    /// Deletes a lock's object, as a person with too many rights does.
    pub(crate) fn delete_lock(&self, resource: &str) {
        let resource = Resource::parse(resource).unwrap();
        let mut contents = self.contents();
        contents.revision += 1;
        let before = contents.locks.remove(&resource);
        contents.tell(before.as_ref(), None);
    }

    /// Makes a lock's object, as a person may.
    pub(crate) fn make_lock(&self, resource: &str) {
        let resource = Resource::parse(resource).unwrap();
        let mut contents = self.contents();
        contents.put(&Lock::unheld(resource));
    }

    /// Writes a lock past the agent, as a write of its own does that lands late.
    pub(crate) fn edit_lock(&self, resource: &str, edit: impl FnOnce(&mut Lock)) {
        let resource = Resource::parse(resource).unwrap();
        let mut contents = self.contents();
        let mut lock = contents.locks[&resource].value.clone();
        edit(&mut lock);
        contents.put(&lock);
    }

    /// Sends every later call past the hook first.
    pub(crate) fn on_call(&self, hook: impl FnMut(Call) -> Option<StoreError> + Send + 'static) {
        self.contents().hook = Some(Box::new(hook));
    }

    /// Answers one kind of call with an error from now on.
    pub(crate) fn fail(&self, failing: Call, error: StoreError) {
        self.on_call(move |call| (call == failing).then(|| error.clone()));
    }

    /// Answers every call with an error from now on.
    pub(crate) fn fail_all(&self, error: StoreError) {
        self.on_call(move |_| Some(error.clone()));
    }

    /// Does the next call of this kind, and loses its answer.
    pub(crate) fn lose_answer(&self, call: Call) {
        self.contents().unanswered = Some(call);
    }

    /// Lets every call through again.
    pub(crate) fn heal(&self) {
        self.contents().hook = None;
    }

    /// Holds back every later call of this kind, before or after it is done.
    pub(crate) fn hold(&self, call: Call, half: Half) -> Gate {
        let gate = Gate::new(call, half);
        self.contents().gate = Some(gate.clone());
        gate
    }

    /// All sessions, as an onlooker sees them.
    pub(crate) fn sessions(&self) -> Vec<Session> {
        let contents = self.contents();
        let stored = contents.sessions.values();
        stored.map(|stored| stored.value.clone()).collect()
    }

    /// Ends a session, as the operator does.
    pub(crate) fn revoke_session(&self, id: &SessionId) {
        let mut contents = self.contents();
        let revocation = Revocation {
            at: WallTime(0),
            by: "operator".into(),
            reason: RevokeReason::PodEnded,
        };
        let revoked = contents.sessions[id].value.revoked(revocation).unwrap();
        let stored = contents.write(&revoked);
        contents.sessions.insert(id.clone(), stored);
    }

    /// Stops telling the open watches anything, without ending them, for as long as the answer
    /// lives.
    pub(crate) fn stall_watches(&self) -> impl Sized + use<> {
        std::mem::take(&mut self.contents().watches)
    }

    /// Forgets writes, as a backup does that was restored without a bump.
    pub(crate) fn go_back(&self, revisions: u64) {
        self.contents().revision -= revisions;
    }

    /// Raises the revision, as a restore with a bump does.
    pub(crate) fn go_forward(&self, revisions: u64) {
        self.contents().revision += revisions;
    }

    /// The lock, as an onlooker sees it.
    pub(crate) fn lock(&self, resource: &str) -> Option<Lock> {
        let resource = Resource::parse(resource).unwrap();
        let contents = self.contents();
        contents
            .locks
            .get(&resource)
            .map(|stored| stored.value.clone())
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // A hook that panics on purpose poisons it, and breaks nothing.
        self.contents
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn ask(&self, call: Call) -> Result<MutexGuard<'_, Contents>, StoreError> {
        if self.is_cut_off.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("cut off".into()));
        }
        let mut contents = self.contents();
        contents.calls += 1;
        match contents.hook.as_mut().and_then(|hook| hook(call)) {
            Some(error) => Err(error),
            None => Ok(contents),
        }
    }

    /// One call: held back, refused or done, and its answer held back.
    async fn serve<T>(
        &self,
        call: Call,
        act: impl FnOnce(&mut Contents) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.pass(call, Half::Request).await;
        let answer = self.ask(call).and_then(|mut contents| {
            let answer = act(&mut contents);
            match contents.unanswered.take_if(|lost| *lost == call) {
                Some(_) => Err(StoreError::Ambiguous("the answer was lost".into())),
                None => answer,
            }
        });
        self.pass(call, Half::Answer).await;
        answer
    }

    async fn pass(&self, call: Call, half: Half) {
        let gate = self.contents().gate.clone();
        if let Some(gate) = gate {
            gate.pass(call, half).await;
        }
    }
}

impl Contents {
    fn put(&mut self, lock: &Lock) -> Stored<Lock> {
        let stored = self.write(lock);
        let before = self.locks.insert(lock.resource.clone(), stored.clone());
        self.tell(before.as_ref(), Some(&stored));
        stored
    }

    /// Tells the watches of those whom a change concerns.
    fn tell(&mut self, before: Option<&Stored<Lock>>, after: Option<&Stored<Lock>>) {
        let at = Revision(self.revision);
        let holder = |lock: Option<&Stored<Lock>>| {
            lock.and_then(|stored| stored.value.holder_session().cloned())
        };
        let (was, is) = (holder(before), holder(after));
        self.watches.retain(|watch| {
            let event = if is.as_ref() == Some(&watch.session) {
                after.map(|lock| LockEvent::Held(Box::new(lock.clone())))
            } else if was.as_ref() == Some(&watch.session) {
                before.map(|lock| LockEvent::Gone {
                    resource: lock.value.resource.clone(),
                    at,
                })
            } else {
                None
            };
            event.is_none_or(|event| watch.events.unbounded_send(Ok(event)).is_ok())
        });
    }

    fn write<T: Clone>(&mut self, value: &T) -> Stored<T> {
        self.revision += 1;
        self.writes += 1;
        Stored {
            value: value.clone(),
            version: Revision(self.revision),
            original: Original::new(()),
        }
    }
}

/// The one test of a compare-and-swap: is it still what the write was decided on?
fn compare<T>(there: Option<&Stored<T>>, decided_on: Revision) -> Result<(), StoreError> {
    match there {
        None => Err(StoreError::NotFound("no such object".into())),
        Some(there) if there.version != decided_on => Err(StoreError::Conflict),
        Some(_) => Ok(()),
    }
}

#[async_trait]
impl LockStore for MemoryStore {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        self.serve(Call::GetLock, |contents| {
            Ok(contents.locks.get(resource).cloned())
        })
        .await
    }

    async fn look(&self, resource: &Resource) -> Result<Look, StoreError> {
        self.serve(Call::LookAtLock, |contents| {
            Ok(Look {
                lock: contents.locks.get(resource).cloned(),
                revision: Revision(contents.revision),
            })
        })
        .await
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        self.serve(Call::ListHeldLocks, |contents| {
            let held = |lock: &&Stored<Lock>| lock.value.holder_session() == Some(session);
            Ok(Page {
                items: contents.locks.values().filter(held).cloned().collect(),
                revision: Revision(contents.revision),
                next: None,
                unreadable: Vec::new(),
            })
        })
        .await
    }

    async fn watch(&self, session: &SessionId, _after: Revision) -> Result<LockWatch, StoreError> {
        self.serve(Call::WatchLocks, |contents| {
            let (events, told) = unbounded();
            // What changed since the caller listed is told as a change now.
            let held = |lock: &&Stored<Lock>| lock.value.holder_session() == Some(session);
            for stored in contents.locks.values().filter(held) {
                let event = LockEvent::Held(Box::new(stored.clone()));
                events.unbounded_send(Ok(event)).unwrap();
            }
            contents.watches.push(Watch {
                session: session.clone(),
                events,
            });
            Ok(told.boxed())
        })
        .await
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        self.serve(Call::ListLocks, |contents| {
            let skip: usize = match next {
                None => 0,
                Some(next) => next
                    .parse()
                    .map_err(|_| StoreError::ListingOver(format!("{next:?} is no place")))?,
            };
            let end = skip + limit as usize;
            let items = contents.locks.values().skip(skip).take(limit as usize);
            Ok(Page {
                items: items.cloned().collect(),
                revision: Revision(contents.revision),
                next: (end < contents.locks.len()).then(|| end.to_string()),
                unreadable: Vec::new(),
            })
        })
        .await
    }

    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        self.serve(Call::CreateLock, |contents| {
            if contents.locks.contains_key(resource) {
                return Err(StoreError::Conflict);
            }
            let stored = contents.write(&Lock::unheld(resource.clone()));
            contents.locks.insert(resource.clone(), stored.clone());
            Ok(stored)
        })
        .await
    }

    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        self.serve(Call::UpdateLock, |contents| {
            compare(contents.locks.get(&next.resource), current.version)?;
            Ok(contents.put(next))
        })
        .await
    }
}

#[async_trait]
impl SessionStore for MemoryStore {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        self.serve(Call::GetSession, |contents| {
            Ok(contents.sessions.get(id).cloned())
        })
        .await
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        self.serve(Call::CreateSession, |contents| {
            if contents.sessions.contains_key(&session.id) {
                return Err(StoreError::Conflict);
            }
            let stored = contents.write(session);
            contents.sessions.insert(session.id.clone(), stored.clone());
            Ok(stored)
        })
        .await
    }

    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        self.serve(Call::UpdateSession, |contents| {
            compare(contents.sessions.get(&next.id), current.version)?;
            let stored = contents.write(next);
            contents.sessions.insert(next.id.clone(), stored.clone());
            Ok(stored)
        })
        .await
    }
}

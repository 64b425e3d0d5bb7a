//! The embedded store in memory, with faults on demand, calls that can be blocked, and a count of
//! the writes that took effect.

mod gate;
mod late;
mod watches;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use leasehold::protocol::ids::{Resource, SessionId};
use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::Waiter;
use leasehold::protocol::session::{Revocation, RevokeReason, Session};
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Revision;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::{
    LockAtRevision, LockStore, LockWatch, Page, SessionStore, StoreError, Stored,
};

pub(crate) use gate::{Gate, Half};
pub(crate) use late::LateJoin;
pub(crate) use leasehold::store::faulty::Call;
use watches::Watch;

/// Decides about a call: `None` passes it; an error is returned without an effect.
pub(crate) type Hook = Box<dyn FnMut(Call) -> Option<StoreError> + Send>;

#[derive(Default)]
struct Control {
    writes: usize,
    calls: usize,
    hook: Option<Hook>,
    gate: Option<Gate>,
    unanswered: Option<Call>,
    late_join: Option<LateJoin>,
    unreadable: Option<Resource>,
    being_deleted: Option<Resource>,
    watches: Vec<Watch>,
    /// Whether a watch continues from its reader's last position even after a jump of the revision.
    has_no_compaction: bool,
    /// Watches end with an error at the next event.
    watches_break: bool,
    /// The round trip of each call.
    latency: Duration,
}

/// The store; clones share their contents.
#[derive(Clone)]
pub(crate) struct MemoryStore {
    store: EmbeddedStore,
    control: Arc<Mutex<Control>>,
    is_cut_off: Arc<AtomicBool>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            store: EmbeddedStore::in_memory(Revision(0)).unwrap(),
            control: Arc::default(),
            is_cut_off: Arc::default(),
        }
    }
}

impl MemoryStore {
    /// Returns the same store over a separate connection.
    pub(crate) fn over_a_connection(&self) -> Self {
        Self {
            is_cut_off: Arc::default(),
            ..self.clone()
        }
    }

    /// Cuts this connection: every later call over it fails.
    pub(crate) fn cut_off(&self) {
        self.is_cut_off.store(true, Ordering::SeqCst);
    }

    /// Returns the number of writes that took effect.
    pub(crate) fn writes(&self) -> usize {
        self.control().writes
    }

    /// Returns the number of calls.
    pub(crate) fn calls(&self) -> usize {
        self.control().calls
    }

    /// Returns the session that holds a lock.
    pub(crate) fn session_of(&self, resource: &str) -> Option<SessionId> {
        self.lock(resource)?.holder_session().cloned()
    }

    /// Returns a session, read directly from the store.
    pub(crate) fn session(&self, id: &SessionId) -> Option<Session> {
        let found = at_once(SessionStore::get(&self.store, id));
        found.map(|stored| stored.value)
    }

    /// Deletes a lock object, as a person with too many rights can.
    pub(crate) fn delete_lock(&self, name: &str) {
        at_once(self.store.delete_lock(&resource(name)));
    }

    /// Deletes a session object, as a person with too many rights can.
    pub(crate) fn delete_session(&self, id: &SessionId) {
        at_once(self.store.delete_session(id));
    }

    /// Marks a lock object as being deleted, while a finalizer keeps it.
    pub(crate) fn begin_to_delete_lock(&self, name: &str) {
        self.control().being_deleted = Some(resource(name));
    }

    /// Removes the finalizer.
    pub(crate) fn finish_to_delete_lock(&self) {
        let deleted = self
            .control()
            .being_deleted
            .take()
            .expect("a lock with a finalizer");
        at_once(self.store.delete_lock(&deleted));
    }

    fn as_kept(&self, mut stored: Stored<Lock>) -> Stored<Lock> {
        let being_deleted = self.control().being_deleted.clone();
        stored.value.settings.is_being_deleted =
            being_deleted.as_ref() == Some(&stored.value.resource);
        stored
    }

    /// Creates a lock object, as a person may.
    pub(crate) fn make_lock(&self, name: &str) {
        at_once(LockStore::create(&self.store, &resource(name)));
    }

    /// Writes a lock without the agent and without the store's rules, like a late write of the
    /// agent's own.
    pub(crate) fn edit_lock(&self, name: &str, edit: impl FnOnce(&mut Lock)) {
        let mut lock = self.lock(name).expect("a lock");
        edit(&mut lock);
        at_once(self.store.put_lock(&lock));
    }

    /// Records every later call, in order.
    pub(crate) fn record_calls(&self) -> Arc<Mutex<Vec<Call>>> {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&calls);
        self.on_call(move |call| {
            recorded.lock().unwrap().push(call);
            None
        });
        calls
    }

    /// Passes every later call to the hook first.
    pub(crate) fn on_call(&self, hook: impl FnMut(Call) -> Option<StoreError> + Send + 'static) {
        self.control().hook = Some(Box::new(hook));
    }

    /// Answers one kind of call with an error from now on.
    pub(crate) fn fail(&self, failing: Call, error: StoreError) {
        self.on_call(move |call| (call == failing).then(|| error.clone()));
    }

    /// Answers every call with an error from now on.
    pub(crate) fn fail_all(&self, error: StoreError) {
        self.on_call(move |_| Some(error.clone()));
    }

    /// Executes the next call of this kind, and loses its answer.
    pub(crate) fn lose_answer(&self, call: Call) {
        self.control().unanswered = Some(call);
    }

    /// Delays the next join until the test delivers it.
    pub(crate) fn delay_join(&self) -> LateJoin {
        let late = LateJoin::new(self.store.clone());
        self.control().late_join = Some(late.clone());
        late
    }

    /// Removes the hook: every call succeeds again.
    pub(crate) fn heal(&self) {
        self.control().hook = None;
    }

    /// Makes a lock unreadable in later lists of what a session holds.
    pub(crate) fn make_unreadable_in_lists(&self, name: &str) {
        self.control().unreadable = Some(resource(name));
    }

    /// Blocks every later call of this kind, before or after it is applied.
    pub(crate) fn hold(&self, call: Call, half: Half) -> Gate {
        let gate = Gate::new(call, half);
        self.control().gate = Some(gate.clone());
        gate
    }

    /// Sets the round trip of each later call. A watch event takes half of it.
    pub(crate) fn slow_down(&self, latency: Duration) {
        self.control().latency = latency;
    }

    /// Returns all sessions, read directly from the store.
    pub(crate) fn sessions(&self) -> Vec<Session> {
        at_once(self.store.sessions())
    }

    /// Revokes a session as expired, as the operator does.
    pub(crate) fn revoke_session(&self, id: &SessionId) {
        self.revoke_session_as(id, RevokeReason::Expired);
    }

    /// Revokes a session for this reason.
    pub(crate) fn revoke_session_as(&self, id: &SessionId, reason: RevokeReason) {
        let current = at_once(SessionStore::get(&self.store, id)).expect("a session");
        let revocation = Revocation {
            at: WallTime(0),
            by: "operator".into(),
            reason,
        };
        let revoked = current.value.revoked(revocation).unwrap();
        at_once(SessionStore::update(&self.store, &current, &revoked));
    }

    /// Renews a session, like a renewal that arrives late.
    pub(crate) fn renew_session(&self, id: &SessionId) {
        let current = at_once(SessionStore::get(&self.store, id)).expect("a session");
        let renewed = current
            .value
            .renewed(WallTime(0), current.value.failures.clone());
        at_once(SessionStore::update(
            &self.store,
            &current,
            &renewed.unwrap(),
        ));
    }

    /// Returns the number of opened watches, without the stalled ones.
    pub(crate) fn watches(&self) -> usize {
        self.control().watches.len()
    }

    /// Writes a session, as a foreign client would.
    pub(crate) fn touch_session(&self, id: &SessionId) {
        let current = at_once(SessionStore::get(&self.store, id)).expect("a session");
        let mut touched = current.value.clone();
        touched.failures.count += 1;
        at_once(SessionStore::update(&self.store, &current, &touched));
    }

    /// Lowers the revision, like a backup that was restored without a bump.
    pub(crate) fn go_back(&self, revisions: u64) {
        self.set_revision(|now| now - revisions);
    }

    /// Raises the revision, like a restore with a bump.
    pub(crate) fn go_forward(&self, revisions: u64) {
        self.set_revision(|now| now + revisions);
    }

    /// The same, but later watches are not refused as expired, as after a restore without
    /// `--mark-compacted`.
    pub(crate) fn go_forward_in_silence(&self, revisions: u64) {
        self.control().has_no_compaction = true;
        self.go_forward(revisions);
    }

    fn set_revision(&self, change: impl FnOnce(u64) -> u64) {
        let now = at_once(LockStore::list(&self.store, 1, None)).revision;
        at_once(self.store.set_revision(Revision(change(now.0))));
    }

    /// Returns a lock, read directly from the store.
    pub(crate) fn lock(&self, name: &str) -> Option<Lock> {
        let found = at_once(LockStore::get(&self.store, &resource(name)));
        found.map(|stored| stored.value)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        // A hook that panics on purpose poisons the mutex; the state stays valid.
        self.control
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn ask(&self, call: Call) -> Result<(), StoreError> {
        if self.is_cut_off.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable("cut off".into()));
        }
        let mut control = self.control();
        control.calls += 1;
        match control.hook.as_mut().and_then(|hook| hook(call)) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Serves one call: blocked, refused or applied, and its answer lost or blocked.
    async fn serve<T>(
        &self,
        call: Call,
        act: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.travel().await;
        self.pass(call, Half::Request).await;
        let answer = self.act(call, act).await;
        self.pass(call, Half::Answer).await;
        self.travel().await;
        answer
    }

    /// Waits for half a round trip: a request, an answer or a watch event.
    async fn travel(&self) {
        let latency = self.control().latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency / 2).await;
        }
    }

    async fn act<T>(
        &self,
        call: Call,
        act: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.ask(call)?;
        let answer = act.await;
        match self.control().unanswered.take_if(|lost| *lost == call) {
            Some(_) => Err(StoreError::Ambiguous("the answer was lost".into())),
            None => answer,
        }
    }

    /// Like [`Self::serve`], for a write. A write without changes is not counted.
    async fn write<T>(
        &self,
        call: Call,
        before: Option<Revision>,
        act: impl Future<Output = Result<Stored<T>, StoreError>>,
    ) -> Result<Stored<T>, StoreError> {
        let counted = async {
            let written = act.await?;
            if Some(written.version) != before {
                self.control().writes += 1;
            }
            Ok(written)
        };
        self.serve(call, counted).await
    }

    async fn pass(&self, call: Call, half: Half) {
        let gate = self.control().gate.clone();
        if let Some(gate) = gate {
            gate.pass(call, half).await;
        }
    }
}

fn resource(name: &str) -> Resource {
    Resource::parse(name).unwrap()
}

/// Calls of the store in memory complete without waiting.
fn at_once<T>(call: impl Future<Output = Result<T, StoreError>>) -> T {
    call.now_or_never().expect("an answer at once").unwrap()
}

#[async_trait]
impl LockStore for MemoryStore {
    async fn get(&self, resource: &Resource) -> Result<Option<Stored<Lock>>, StoreError> {
        let got = LockStore::get(&self.store, resource);
        let got = self.serve(Call::GetLock, got).await?;
        Ok(got.map(|stored| self.as_kept(stored)))
    }

    async fn get_with_revision(&self, resource: &Resource) -> Result<LockAtRevision, StoreError> {
        let look = self.serve(
            Call::GetLockWithRevision,
            self.store.get_with_revision(resource),
        );
        let look = look.await?;
        Ok(LockAtRevision {
            lock: look.lock.map(|stored| self.as_kept(stored)),
            ..look
        })
    }

    async fn list_held_by(&self, session: &SessionId) -> Result<Page<Lock>, StoreError> {
        let listed = self.store.list_held_by(session);
        let mut page = self.serve(Call::ListHeldLocks, listed).await?;
        if let Some(unreadable) = &self.control().unreadable {
            page.items.retain(|lock| lock.value.resource != *unreadable);
            page.unreadable.push(format!("{unreadable}: no token"));
        }
        Ok(page)
    }

    async fn watch(&self, session: &SessionId, after: Revision) -> Result<LockWatch, StoreError> {
        let has_no_compaction = self.control().has_no_compaction;
        let watched = async {
            let now = self.store.list(1, None).await?.revision;
            let after = if has_no_compaction {
                after.max(now)
            } else {
                after
            };
            self.store.watch(session, after).await
        };
        let told = self.serve(Call::WatchLocks, watched).await?;
        Ok(self.controlled(told))
    }

    async fn list(&self, limit: u32, next: Option<&str>) -> Result<Page<Lock>, StoreError> {
        let listed = self.store.list(limit, next);
        self.serve(Call::ListLocks, listed).await
    }

    async fn create(&self, resource: &Resource) -> Result<Stored<Lock>, StoreError> {
        let made = LockStore::create(&self.store, resource);
        self.write(Call::CreateLock, None, made).await
    }

    async fn update(
        &self,
        current: &Stored<Lock>,
        next: &Lock,
    ) -> Result<Stored<Lock>, StoreError> {
        let written = LockStore::update(&self.store, current, next);
        let before = Some(current.version);
        self.write(Call::UpdateLock, before, written).await
    }

    async fn join(
        &self,
        current: &Stored<Lock>,
        waiter: &Waiter,
    ) -> Result<Stored<Lock>, StoreError> {
        if let Some(late) = self.control().late_join.take() {
            late.send(current, waiter);
            return Err(StoreError::Ambiguous("it is on its way".into()));
        }
        let joined = self.store.join(current, waiter);
        let before = Some(current.version);
        self.write(Call::JoinQueue, before, joined).await
    }
}

#[async_trait]
impl SessionStore for MemoryStore {
    async fn get(&self, id: &SessionId) -> Result<Option<Stored<Session>>, StoreError> {
        let got = SessionStore::get(&self.store, id);
        self.serve(Call::GetSession, got).await
    }

    async fn create(&self, session: &Session) -> Result<Stored<Session>, StoreError> {
        let made = SessionStore::create(&self.store, session);
        self.write(Call::CreateSession, None, made).await
    }

    async fn update(
        &self,
        current: &Stored<Session>,
        next: &Session,
    ) -> Result<Stored<Session>, StoreError> {
        let call = Call::of_update(&current.value, next);
        let written = SessionStore::update(&self.store, current, next);
        self.write(call, Some(current.version), written).await
    }
}

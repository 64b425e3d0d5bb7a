//! The contract of the ports: one suite for every adapter. `it` runs it on the embedded store,
//! `e2e` on a real API server.
//!
//! Each test gets an adapter with a store of its own and two parties. It makes only writes that the
//! admission policies allow a pod in peer mode. Assertions on revisions also hold while other
//! clients write to the same store. `every_fact!` generates the tests.

#![allow(
    clippy::panic,
    reason = "a test fails by panicking, also in what it is made of"
)]

#[path = "contract/listing.rs"]
mod listing;
#[path = "contract/locks.rs"]
mod locks;
#[path = "contract/queue.rs"]
mod queue;
#[path = "contract/rules.rs"]
mod rules;
#[path = "contract/sessions.rs"]
mod sessions;
#[path = "contract/unknown_fields.rs"]
mod unknown_fields;
#[path = "contract/watch.rs"]
mod watch;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use leasehold::protocol::ids::{GrantId, Resource, SessionId};
use leasehold::protocol::lock::{Claim, Decision, Lock};
use leasehold::protocol::session::{Claimant, PodRef, RenewalFailures, Session};
use leasehold::protocol::time::{SessionTtl, WallTime};
use leasehold::protocol::token::{Mint, Revision, Seen};
use leasehold::store::{LockEvent, LockStore, LockWatch, SessionStore, StoreError, Stored};

pub(crate) use listing::*;
pub(crate) use locks::*;
pub(crate) use queue::*;
pub(crate) use rules::*;
pub(crate) use sessions::*;
pub(crate) use unknown_fields::*;
pub(crate) use watch::*;

/// Every operation here is fast. A store that never answers fails the test instead of blocking it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for the absence of an event.
const SILENCE: Duration = Duration::from_millis(300);
/// The wall clock of all writes, which is informational.
const AT: WallTime = WallTime(1_767_225_600_123_456);

/// A pod and its ports to the store.
pub(crate) struct Party {
    pub(crate) pod: PodRef,
    pub(crate) locks: Arc<dyn LockStore>,
    pub(crate) sessions: Arc<dyn SessionStore>,
}

/// A store under test.
pub(crate) trait Adapter {
    /// One of two pods.
    fn a(&self) -> &Party;
    /// The other one.
    fn b(&self) -> &Party;
    /// Deletes the object of a free lock, as an administrator does.
    async fn delete_lock(&self, resource: &Resource);
    /// Deletes the object of a held lock. The test writes nothing to this store afterwards.
    async fn delete_held_lock(&self, resource: &Resource);
}

/// Generates one test per fact, each with its own adapter.
macro_rules! every_fact {
    ($adapter:expr) => {
        crate::contract::every_fact!($adapter;
            lock_is_created_once,
            a_lock_reads_back_as_it_was_written,
            completed_work_outlives_its_grant,
            a_write_on_an_older_version_is_a_conflict,
            one_of_many_writers_on_one_version_succeeds,
            unchanged_write_consumes_no_revision,
            similar_resources_are_different_locks,
            recreated_lock_has_larger_tokens,
            write_to_a_deleted_object_is_not_found,
            join_is_last_on_any_version_read,
            lock_read_as_free_is_joined_once_it_is_held,
            all_concurrent_joins_get_a_queue_entry,
            free_lock_refuses_a_late_join,
            queued_session_joins_no_second_time,
            holding_grant_joins_no_queue,
            thirty_third_waiter_does_not_join,
            preferred_candidate_joins_first_on_the_version_it_read,
            deleted_lock_refuses_a_late_join,
            revisions_rise_over_both_kinds,
            list_contains_every_acknowledged_write,
            all_pages_are_of_one_revision,
            unknown_continue_token_is_an_error,
            the_locks_of_a_session_are_listed,
            session_is_created_once_and_renewed,
            a_session_ends_once,
            a_renewal_and_a_revocation_cannot_both_succeed,
            token_never_decreases,
            a_new_grant_has_a_larger_token,
            a_grant_keeps_its_holder,
            watch_delivers_changes_of_the_sessions_locks,
            watch_delivers_a_deletion,
            watch_delivers_writes_after_the_list,
            watch_delivers_no_locks_of_other_sessions,
            watch_from_a_compacted_revision_is_refused,
            watch_from_a_future_revision_is_open_and_silent,
        );
    };
    ($adapter:expr; $($fact:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $fact() {
                crate::contract::$fact(&$adapter).await;
            }
        )*
    };
}
pub(crate) use every_fact;

impl Party {
    /// A pod of this name and uid.
    pub(crate) fn new(
        name: &str,
        uid: &str,
        locks: Arc<dyn LockStore>,
        sessions: Arc<dyn SessionStore>,
    ) -> Self {
        let pod = PodRef {
            name: name.into(),
            uid: uid.into(),
            node: None,
        };
        Self {
            pod,
            locks,
            sessions,
        }
    }

    fn session_id(&self) -> SessionId {
        format!("{}-0", self.pod.name).into()
    }

    /// Returns the session of this party.
    pub(crate) fn session(&self) -> Session {
        Session {
            id: self.session_id(),
            pod: self.pod.clone(),
            ttl: SessionTtl::clamped(15),
            agent_version: "0".into(),
            renewals: 0,
            renewed_at: None,
            failures: RenewalFailures::default(),
            revoked: None,
        }
    }

    /// Returns this party's claim for the grant with this id.
    fn claim(&self, grant: &str) -> Claim {
        Claim {
            grant: grant.into(),
            claimant: Claimant {
                owner: self.pod.name.as_ref().into(),
                pod: self.pod.clone(),
                session: self.session_id(),
                session_ttl: SessionTtl::clamped(15),
            },
            kept: false,
            metadata: [("key".to_owned(), "value".to_owned())].into(),
            at: AT,
            preferred: false,
        }
    }

    /// Returns the input of new tokens: a consistent list, as at the start of a session.
    async fn mint(&self) -> Mint {
        let page = self.locks.list(1, None).await.expect("a listing");
        Mint {
            seen: Seen::from_list(page.revision),
            floor: 0,
        }
    }

    pub(crate) async fn read(&self, resource: &Resource) -> Stored<Lock> {
        let found = self.locks.get(resource).await.expect("a read");
        found.expect("a lock")
    }

    /// Acquires a free lock, or joins its queue.
    async fn try_take(&self, lock: &Stored<Lock>, grant: &str) -> Result<Stored<Lock>, StoreError> {
        let mint = self.mint().await;
        let claim = self.claim(grant);
        match lock.value.acquire_or_queue(lock.version, &mint, &claim) {
            Decision::Granted(next) => self.locks.update(lock, &next).await,
            Decision::Queued(waiter) => self.locks.join(lock, &waiter).await,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn take(&self, lock: &Stored<Lock>, grant: &str) -> Stored<Lock> {
        self.try_take(lock, grant).await.expect("a write")
    }

    /// Creates a lock and acquires it.
    pub(crate) async fn make_and_take(&self, resource: &Resource, grant: &str) -> Stored<Lock> {
        let made = self.locks.create(resource).await.expect("a new lock");
        self.take(&made, grant).await
    }

    pub(crate) async fn release(&self, lock: &Stored<Lock>, grant: &str) -> Stored<Lock> {
        let held = lock.value.grant.as_ref().expect("held");
        assert_eq!(held.id, GrantId::from(grant));
        let mint = self.mint().await;
        let next = lock.value.release(lock.version, &mint, &held.key(), AT);
        let next = next.expect("held by this grant");
        self.locks.update(lock, &next).await.expect("a release")
    }

    pub(crate) async fn watch(&self, after: Revision) -> LockWatch {
        let watch = self.locks.watch(&self.session_id(), after).await;
        watch.expect("a watch")
    }
}

pub(crate) fn resource(name: &str) -> Resource {
    Resource::parse(name).expect("a resource")
}

/// Returns the next event that is not a bookmark.
async fn next_event(watch: &mut LockWatch) -> LockEvent {
    loop {
        let event = tokio::time::timeout(PATIENCE, watch.next()).await;
        let event = event.expect("an event in time").expect("an open watch");
        match event.expect("an event") {
            LockEvent::Bookmark(_) => {}
            told => return told,
        }
    }
}

async fn next_held(watch: &mut LockWatch) -> Stored<Lock> {
    match next_event(watch).await {
        LockEvent::Held(lock) => *lock,
        other => panic!("{other:?}"),
    }
}

async fn next_gone(watch: &mut LockWatch) -> (Resource, Revision) {
    match next_event(watch).await {
        LockEvent::Gone { resource, at } => (resource, at),
        other => panic!("{other:?}"),
    }
}

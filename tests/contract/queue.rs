//! Joining a lock's queue: the only write that applies to any version of the lock. The entry is
//! added to the stored lock, and the store's own rules may refuse it.

use leasehold::protocol::lock::Lock;
use leasehold::protocol::queue::{QUEUE_MAX, Queue, Waiter};
use leasehold::protocol::session::Claimant;
use leasehold::store::{StoreError, Stored};

use super::{AT, Adapter, Party, resource};

impl Party {
    /// Returns a waiter of this pod with its own session.
    pub(crate) fn waiter(&self, session: usize, grant: &str) -> Waiter {
        Waiter {
            grant: grant.into(),
            claimant: Claimant {
                session: format!("{}-{session}", self.pod.name).into(),
                ..self.claim(grant).claimant
            },
            queued_at: AT,
            preferred: false,
        }
    }

    async fn try_join(
        &self,
        read: &Stored<Lock>,
        session: usize,
        grant: &str,
    ) -> Result<Stored<Lock>, StoreError> {
        let waiter = self.waiter(session, grant);
        self.locks.join(read, &waiter).await
    }

    /// Marks the lock as kept, or not: a change that touches neither grant nor queue.
    async fn keep(&self, read: &Stored<Lock>, kept: bool) -> Stored<Lock> {
        let mut next = read.value.clone();
        next.grant.as_mut().expect("held").kept = kept;
        self.locks.update(read, &next).await.expect("a change")
    }

    pub(crate) async fn join(
        &self,
        read: &Stored<Lock>,
        session: usize,
        grant: &str,
    ) -> Stored<Lock> {
        let joined = self.try_join(read, session, grant).await;
        joined.expect("a queue entry")
    }
}

/// The loser of a race for a free lock has read the lock as free.
pub(crate) async fn lock_read_as_free_is_joined_once_it_is_held(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let free = a.locks.create(&resource("r")).await.expect("a lock");
    let held = a.take(&free, "g-a").await;
    let joined = b.join(&free, 1, "g-1").await;
    assert_eq!(joined.value.grant, held.value.grant);
    assert_eq!(names(&joined.value), ["g-1"]);
}

fn names(lock: &Lock) -> Vec<&str> {
    let waiters = lock.waiters.entries().iter();
    waiters.map(|waiter| waiter.grant.as_str()).collect()
}

/// A late join gets a conflict and changes nothing.
async fn refused(party: &Party, read: &Stored<Lock>, waiter: (usize, &str), now: &Stored<Lock>) {
    refused_as(StoreError::Conflict, party, read, waiter, now).await;
}

async fn refused_as(
    expected: StoreError,
    party: &Party,
    read: &Stored<Lock>,
    waiter: (usize, &str),
    now: &Stored<Lock>,
) {
    let late = party.try_join(read, waiter.0, waiter.1).await;
    assert_eq!(late.err(), Some(expected), "{waiter:?}");
    let found = party.read(&now.value.resource).await;
    assert_eq!((&found.value, found.version), (&now.value, now.version));
}

pub(crate) async fn join_is_last_on_any_version_read(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    // Go's encoder, the API server's, writes three of these characters as escapes.
    let resource = resource("https://r/?a=<b>&c=\"d\"");
    let held = a.make_and_take(&resource, "g-a").await;
    let kept = a.keep(&held, true).await;
    let read = b.join(&held, 1, "g-1").await;
    assert!(read.version > kept.version);
    assert_eq!(names(&read.value), ["g-1"]);
    let changed = a.keep(&read, false).await;
    let before = a.join(&changed, 2, "g-2").await;

    let joined = b.join(&read, 3, "g-3").await;
    assert!(joined.version > before.version);
    assert_eq!(names(&joined.value), ["g-1", "g-2", "g-3"]);
    let mut expected = before.value.clone();
    let mut entries = expected.waiters.entries().to_vec();
    entries.push(b.waiter(3, "g-3"));
    expected.waiters = Queue::from_entries(entries);
    assert_eq!(joined.value, expected, "nothing else changes");
    let found = a.read(&joined.value.resource).await;
    assert_eq!((found.value, found.version), (expected, joined.version));

    // The same holds after a hand-over: the lock has changed, and the entry is still added at the
    // end.
    let handed = a.release(&joined, "g-a").await;
    let joined = a.join(&read, 4, "g-4").await;
    assert_eq!(joined.value.grant, handed.value.grant);
    assert_eq!(joined.value.token, handed.value.token);
    assert_eq!(names(&joined.value), ["g-2", "g-3", "g-4"]);
}

/// A concurrent decision on the lock overwrites no queue entry.
pub(crate) async fn all_concurrent_joins_get_a_queue_entry(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let read = b.join(&held, 1, "g-1").await;
    let tries = (2..8).map(|n| {
        let (party, read) = (if n % 2 == 0 { a } else { b }, &read);
        async move { party.try_join(read, n, &format!("g-{n}")).await }
    });
    let mut refused = 0;
    for answer in futures::future::join_all(tries).await {
        match answer {
            Ok(_) => {}
            // An API server retries a patch a few times, and then returns a conflict.
            Err(StoreError::Conflict) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let found = a.read(&held.value.resource).await.value;
    assert_eq!(found.waiters.len(), 7 - refused);
    assert!(refused < 6, "{:?}", names(&found));
}

pub(crate) async fn free_lock_refuses_a_late_join(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let read = b.take(&held, "g-b").await;
    let handed = a.release(&read, "g-a").await;
    let free = b.release(&handed, "g-b").await;
    refused(a, &read, (1, "g-1"), &free).await;
    refused(a, &held, (1, "g-1"), &free).await;
}

pub(crate) async fn queued_session_joins_no_second_time(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let read = b.join(&held, 1, "g-1").await;
    let now = b.join(&read, 2, "g-2").await;
    for again in ["g-2", "g-other"] {
        refused(b, &read, (2, again), &now).await;
        refused(b, &now, (2, again), &now).await;
    }
}

/// A join that arrives after its grant already holds the lock.
pub(crate) async fn holding_grant_joins_no_queue(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let read = b.join(&held, 1, "g-1").await;
    b.join(&read, 2, "g-2").await;
    let now = a.join(&read, 3, "g-3").await;
    let first = a.release(&now, "g-a").await;
    let second = b.release(&first, "g-1").await;
    assert!(second.value.names_grant(&"g-2".into()));
    assert_eq!(names(&second.value), ["g-3"]);
    refused(b, &read, (2, "g-2"), &second).await;
    refused(b, &second, (2, "g-2"), &second).await;
}

pub(crate) async fn thirty_third_waiter_does_not_join(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("r"), "g-a").await;
    let read = b.join(&held, 1, "g-1").await;
    let mut full = read.clone();
    for n in 2..=QUEUE_MAX {
        full = b.join(&full, n, &format!("g-{n}")).await;
    }
    assert_eq!(full.value.waiters.len(), QUEUE_MAX);
    for read in [&read, &full] {
        refused_as(
            StoreError::QueueFull,
            b,
            read,
            (QUEUE_MAX + 1, "g-late"),
            &full,
        )
        .await;
    }
}

pub(crate) async fn preferred_candidate_joins_first_on_the_version_it_read(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let held = a.make_and_take(&resource("election:r"), "g-a").await;
    let first = b.join(&held, 1, "g-1").await;
    let preferred = |session: usize, grant: &str| Waiter {
        preferred: true,
        ..b.waiter(session, grant)
    };
    let read = b.locks.join(&first, &preferred(2, "g-2")).await;
    let read = read.expect("a queue entry before others");
    assert_eq!(names(&read.value), ["g-2", "g-1"]);
    // A waiter without preference joins on any version, and last.
    let last = a.join(&first, 3, "g-3").await;
    assert_eq!(names(&last.value), ["g-2", "g-1", "g-3"]);
    let read = b.locks.join(&last, &preferred(4, "g-4")).await;
    let read = read.expect("an entry behind the preferred");
    assert_eq!(names(&read.value), ["g-2", "g-4", "g-1", "g-3"]);
    let found = a.read(&read.value.resource).await;
    assert_eq!((found.value, found.version), (read.value, read.version));
}

pub(crate) async fn deleted_lock_refuses_a_late_join(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    let read = b.take(&held, "g-b").await;
    let handed = a.release(&read, "g-a").await;
    b.release(&handed, "g-b").await;
    adapter.delete_lock(&r).await;
    // With and without waiters in the version that was read.
    for read in [&read, &held] {
        let late = a.try_join(read, 1, "g-1").await;
        let is_told = matches!(late, Err(StoreError::NotFound(_) | StoreError::Conflict));
        assert!(is_told, "{late:?}");
    }
    assert!(a.locks.get(&r).await.expect("a read").is_none());
    let made = a.locks.create(&r).await.expect("a new lock");
    refused(a, &read, (1, "g-1"), &made).await;
}

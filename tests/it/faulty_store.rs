//! The store with faults on demand: transparent without faults, and exact with them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, poll};
use leasehold::clock::{Clock as _, ManualClock};
use leasehold::protocol::ids::Resource;
use leasehold::protocol::session::{RenewalFailures, Revocation, RevokeReason};
use leasehold::protocol::time::WallTime;
use leasehold::protocol::token::Revision;
use leasehold::store::embedded::EmbeddedStore;
use leasehold::store::faulty::{Call, FaultyStore, TimedFaults};
use leasehold::store::{LockStore, StoreError};

use crate::contract::{Adapter, Party, resource};
use crate::memory_store::{Half, MemoryStore};

/// A store with injectable faults, and their clock.
struct Faulty {
    behind: EmbeddedStore,
    a: Party,
    b: Party,
    faults: TimedFaults,
    clock: ManualClock,
}

impl Faulty {
    fn new() -> Self {
        let clock = ManualClock::default();
        let of_faults = clock.clone();
        let faults = TimedFaults::new(move || of_faults.now());
        let behind = EmbeddedStore::in_memory(Revision(1_000)).unwrap();
        let store = Arc::new(FaultyStore::new(behind.clone(), faults.clone()));
        let party = |name: &str| Party::new(name, name, store.clone(), store.clone());
        let (a, b) = (party("a"), party("b"));
        Self {
            behind,
            a,
            b,
            faults,
            clock,
        }
    }
}

impl Adapter for Faulty {
    fn a(&self) -> &Party {
        &self.a
    }

    fn b(&self) -> &Party {
        &self.b
    }

    async fn delete_lock(&self, resource: &Resource) {
        self.behind.delete_lock(resource).await.unwrap();
    }

    async fn delete_held_lock(&self, resource: &Resource) {
        self.delete_lock(resource).await;
    }
}

mod without_a_fault {
    use super::Faulty;

    crate::contract::every_fact!(Faulty::new());
}

fn is_away<T>(answer: Result<T, StoreError>) {
    let error = answer.err().expect("a failure");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn unavailable_store_receives_nothing_and_its_watches_end() {
    let faulty = Faulty::new();
    let (a, r) = (&faulty.a, resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    let mut watch = a.watch(held.version).await;
    assert!(watch.next().now_or_never().is_none(), "nothing happened");
    faulty.faults.fail_everything_for(Duration::from_secs(5));
    is_away(watch.next().now_or_never().unwrap().unwrap());
    assert!(watch.next().now_or_never().unwrap().is_none());

    let session = a.session();
    is_away(a.locks.get(&r).await);
    is_away(a.locks.get_with_revision(&r).await);
    is_away(a.locks.list(1, None).await);
    is_away(a.locks.list_held_by(&session.id).await);
    is_away(a.locks.watch(&session.id, held.version).await.map(|_| ()));
    is_away(a.locks.create(&resource("s")).await);
    is_away(a.locks.update(&held, &held.value).await);
    is_away(a.sessions.get(&session.id).await);
    is_away(a.sessions.create(&session).await);

    faulty.clock.advance(Duration::from_secs(5));
    let read = a.read(&r).await;
    assert_eq!((read.value, read.version), (held.value, held.version));
    assert!(a.locks.get(&resource("s")).await.unwrap().is_none());
}

#[tokio::test]
async fn fault_during_the_opening_of_a_watch_ends_it() {
    let clock = ManualClock::default();
    let of_faults = clock.clone();
    let faults = TimedFaults::new(move || of_faults.now());
    let store = MemoryStore::default();
    let gate = store.hold(Call::WatchLocks, Half::Answer);
    let store = FaultyStore::new(store, faults.clone());
    let session = "a-0".into();
    let mut opening = pin!(LockStore::watch(&store, &session, Revision(0)));
    assert!(poll!(&mut opening).is_pending() && gate.arrived() == 1);
    faults.fail_everything_for(Duration::from_secs(5));
    gate.open();
    let mut watch = opening.await.unwrap();
    is_away(watch.next().now_or_never().unwrap().unwrap());
    assert!(watch.next().now_or_never().unwrap().is_none());
}

#[tokio::test]
async fn renewal_fault_affects_renewals_only() {
    let faulty = Faulty::new();
    let a = &faulty.a;
    let made = a.sessions.create(&a.session()).await.unwrap();
    let renewed = made.value.renewed(WallTime(1), RenewalFailures::default());
    let renewed = renewed.unwrap();
    faulty.faults.fail_renewals_for(Duration::from_secs(60));
    is_away(a.sessions.update(&made, &renewed).await);
    a.make_and_take(&resource("r"), "g-a").await;
    faulty.faults.heal();
    let made = a.sessions.update(&made, &renewed).await.unwrap();

    faulty.faults.fail_renewals_for(Duration::from_secs(60));
    let end = Revocation {
        at: WallTime(2),
        by: "a".into(),
        reason: RevokeReason::Ended,
    };
    let ended = made.value.revoked(end).unwrap();
    a.sessions.update(&made, &ended).await.unwrap();
}

//! One lock: created, written by compare-and-swap, deleted and recreated.

use futures::future::join_all;
use leasehold::protocol::completed::{COMPLETED_MAX, Completion, CompletionKey};
use leasehold::protocol::incident::{Ending, IncidentKind};
use leasehold::protocol::lock::{Grant, Lock};
use leasehold::protocol::session::Claimant;
use leasehold::protocol::token::{Revision, Token};
use leasehold::store::StoreError;

use super::{AT, Adapter, resource};

pub(crate) async fn lock_is_created_once(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("tenant_123:billing"));
    assert!(a.locks.get(&r).await.expect("a read").is_none());
    let look = a.locks.get_with_revision(&r).await.expect("a look");
    assert!(look.lock.is_none() && look.revision > Revision(0));
    let made = a.locks.create(&r).await.expect("a new lock");
    assert_eq!(made.value, Lock::unheld(r.clone()));
    assert!(made.version > look.revision);
    assert_eq!(b.locks.create(&r).await.err(), Some(StoreError::Conflict));
    let read = b.read(&r).await;
    assert_eq!((read.value, read.version), (made.value, made.version));
}

pub(crate) async fn a_lock_reads_back_as_it_was_written(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    assert_eq!(held.value.holder_session(), Some(&a.session_id()));
    let queued = b.take(&held, "g-b").await;
    assert_eq!(queued.value.waiters.len(), 1);
    let read = a.read(&r).await;
    assert_eq!((&read.value, read.version), (&queued.value, queued.version));

    let handed = a.release(&queued, "g-a").await;
    assert!(handed.value.names_grant(&"g-b".into()));
    assert!(handed.value.token > held.value.token);
    assert!(handed.value.waiters.is_empty());

    let ending = Ending {
        at: AT,
        kind: IncidentKind::Expired,
        actor: "a".into(),
        reason: "it was silent".into(),
    };
    let (mint, taker) = (a.mint().await, a.claim("g-c"));
    let is_dead = |who: &Claimant| who.session == b.session_id();
    let after = handed
        .value
        .take_over(handed.version, &mint, is_dead, &ending, Some(&taker));
    let after = after.expect("an expired holder");
    let written = a.locks.update(&handed, &after).await.expect("a take-over");
    assert_eq!((&written.value, written.value.incidents.len()), (&after, 1));
    let read = b.read(&r).await;
    assert_eq!((read.value, read.version), (after, written.version));
}

pub(crate) async fn completed_work_outlives_its_grant(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let mut held = a.make_and_take(&r, "g-a").await;
    let grant = held.value.grant.as_ref().map(Grant::key);
    let grant = grant.expect("a grant");
    for n in 0..=COMPLETED_MAX {
        let completion = Completion {
            key: CompletionKey::parse(&format!("k{n}")).expect("a key"),
            at: AT,
            token: held.value.token,
            owner: "worker".into(),
        };
        let next = held.value.complete(&grant, completion).expect("held");
        held = a.locks.update(&held, &next).await.expect("a record");
        assert_eq!(held.value, next);
    }
    let completed = held.value.completed.clone();
    assert_eq!(completed.entries().len(), COMPLETED_MAX);
    assert_eq!(completed.entries()[0].key.as_str(), "k1");
    let freed = a.release(&held, "g-a").await;
    assert_eq!(freed.value.completed, completed);
    let taken = b.take(&freed, "g-b").await;
    assert_eq!(taken.value.completed, completed);
    assert_eq!(a.read(&r).await.value, taken.value);
}

pub(crate) async fn a_write_on_an_older_version_is_a_conflict(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let made = a.locks.create(&r).await.expect("a new lock");
    let held = a.take(&made, "g-a").await;
    assert!(held.version > made.version);
    let late = b.try_take(&made, "g-b").await;
    assert_eq!(late.err(), Some(StoreError::Conflict));
    let again = a.try_take(&made, "g-a").await;
    assert_eq!(again.err(), Some(StoreError::Conflict));
    let read = b.read(&r).await;
    assert_eq!((read.value, read.version), (held.value, held.version));
}

pub(crate) async fn one_of_many_writers_on_one_version_succeeds(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let mut lock = a.locks.create(&r).await.expect("a new lock");
    for round in 0..5 {
        let tries = (0..8).map(|n| {
            let (party, lock) = (if n % 2 == 0 { a } else { b }, &lock);
            async move { party.try_take(lock, &format!("g-{round}-{n}")).await }
        });
        let answers = join_all(tries).await;
        let (through, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        assert_eq!(through.len(), 1, "round {round}");
        for answer in refused {
            assert_eq!(answer.err(), Some(StoreError::Conflict), "round {round}");
        }
        let written = through.into_iter().next().expect("one").expect("well");
        let read = a.read(&r).await;
        assert_eq!(
            (&read.value, read.version),
            (&written.value, written.version)
        );
        let grant = written.value.grant.as_ref().expect("it was taken");
        let winner = if grant.holder.pod == a.pod { a } else { b };
        lock = winner.release(&written, grant.id.as_str()).await;
    }
}

/// If two writers made the same change without a new version, each could believe that its write
/// succeeded. So every write that matters changes something.
pub(crate) async fn unchanged_write_consumes_no_revision(adapter: &impl Adapter) {
    let (a, r) = (adapter.a(), resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    let same = a.locks.update(&held, &held.value).await.expect("no change");
    assert_eq!((same.value, same.version), (held.value, held.version));
}

pub(crate) async fn similar_resources_are_different_locks(adapter: &impl Adapter) {
    let a = adapter.a();
    let names = ["A:b", "a:b", "a-b", "a/b", "ü 日本", "%61:b", "a:b "];
    for (n, name) in names.iter().enumerate() {
        let made = a.locks.create(&resource(name)).await.expect("a new lock");
        assert_eq!(made.value.resource.as_str(), *name);
        a.take(&made, &format!("g-{n}")).await;
    }
    for (n, name) in names.iter().enumerate() {
        let lock = a.read(&resource(name)).await.value;
        assert!(lock.names_grant(&format!("g-{n}").into()), "{name}");
    }
}

pub(crate) async fn recreated_lock_has_larger_tokens(adapter: &impl Adapter) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let mut tokens = Vec::new();
    for life in 0..4 {
        let held = a.make_and_take(&r, &format!("g-{life}")).await;
        let free = a.release(&held, &format!("g-{life}")).await;
        adapter.delete_lock(&r).await;
        assert!(b.locks.get(&r).await.expect("a read").is_none());
        let made = b.locks.create(&r).await.expect("a new lock");
        assert_eq!(made.value.token, Token::NONE);
        assert!(made.version > free.version);
        // A write decided on the deleted object does not affect this one.
        let late = a.try_take(&free, "g-late").await;
        assert_eq!(late.err(), Some(StoreError::Conflict));
        adapter.delete_lock(&r).await;
        tokens.push(held.value.token.get());
    }
    let is_rising = tokens.windows(2).all(|two| two[1] >= two[0] + 1_000);
    assert!(is_rising, "{tokens:?}");
}

pub(crate) async fn write_to_a_deleted_object_is_not_found(adapter: &impl Adapter) {
    let (a, r) = (adapter.a(), resource("r"));
    let made = a.locks.create(&r).await.expect("a new lock");
    adapter.delete_lock(&r).await;
    let late = a.try_take(&made, "g-a").await;
    // Kubernetes 1.33 returns a conflict, because the deletion was another write. After either
    // error an agent re-reads.
    let is_told = matches!(late, Err(StoreError::NotFound(_) | StoreError::Conflict));
    assert!(is_told, "{late:?}");
    assert!(a.locks.get(&r).await.expect("a read").is_none());
}

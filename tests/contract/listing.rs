//! Lists: complete, consistent, and all pages as of one revision.

use std::collections::BTreeMap;

use leasehold::protocol::lock::Lock;
use leasehold::protocol::session::RenewalFailures;
use leasehold::protocol::token::Revision;
use leasehold::store::{Page, StoreError};

use super::{AT, Adapter, resource};

pub(crate) async fn revisions_rise_over_both_kinds(adapter: &impl Adapter) {
    let (a, r) = (adapter.a(), resource("r"));
    let mut revisions = vec![a.locks.list(1, None).await.expect("a listing").revision];
    let session = a.sessions.create(&a.session()).await.expect("a session");
    revisions.push(session.version);
    let lock = a.locks.create(&r).await.expect("a new lock");
    revisions.push(lock.version);
    let renewed = session.value.renewed(AT, RenewalFailures::default());
    let renewed = renewed.expect("it lives");
    let renewed = a.sessions.update(&session, &renewed).await;
    revisions.push(renewed.expect("a renewal").version);
    revisions.push(a.take(&lock, "g-a").await.version);
    assert!(
        revisions.is_sorted_by(|one, other| one < other),
        "{revisions:?}"
    );
}

pub(crate) async fn list_contains_every_acknowledged_write(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let mut written: BTreeMap<_, Revision> = BTreeMap::new();
    for n in 0..6 {
        let r = resource(&format!("r-{n}"));
        let held = a.make_and_take(&r, &format!("g-{n}")).await;
        written.insert(r.clone(), held.version);
        let page = b.locks.list(0, None).await.expect("a listing");
        assert!(page.revision >= held.version);
        assert_eq!((page.next, page.unreadable), (None, Vec::new()));
        let listed = page.items.into_iter();
        let listed: BTreeMap<_, _> = listed
            .map(|lock| (lock.value.resource, lock.version))
            .collect();
        assert_eq!(listed, written);
        let look = b.locks.get_with_revision(&r).await.expect("a look");
        assert!(look.revision >= held.version);
        assert_eq!(look.lock.expect("a lock").version, held.version);
    }
}

pub(crate) async fn all_pages_are_of_one_revision(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let mut written = Vec::new();
    for n in 0..5 {
        let r = resource(&format!("r-{n}"));
        written.push(a.make_and_take(&r, &format!("g-{n}")).await);
    }
    written[3] = a.release(&written[3], "g-3").await;
    let first = b.locks.list(2, None).await.expect("a page");
    let mut pages = vec![first.items];
    let mut next = first.next;
    // A write between two pages appears in neither.
    a.release(&written[0], "g-0").await;
    a.release(&written[4], "g-4").await;
    adapter.delete_lock(&resource("r-3")).await;
    a.make_and_take(&resource("r-9"), "g-9").await;
    while let Some(place) = next {
        let page = b.locks.list(2, Some(&place)).await.expect("a page");
        assert_eq!(page.revision, first.revision);
        assert!(page.items.len() <= 2 && pages.len() < 5);
        pages.push(page.items);
        next = page.next;
    }
    let listed = pages.concat();
    assert_eq!(listed.len(), written.len());
    for (listed, written) in listed.iter().zip(&written) {
        assert_eq!(
            (&listed.value, listed.version),
            (&written.value, written.version)
        );
    }
}

pub(crate) async fn unknown_continue_token_is_an_error(adapter: &impl Adapter) {
    for place in ["nonsense", "1-7", "ffffffff-61"] {
        let answer = adapter.a().locks.list(2, Some(place)).await;
        assert!(
            matches!(answer, Err(StoreError::ContinueTokenExpired(_))),
            "{answer:?}"
        );
    }
}

pub(crate) async fn the_locks_of_a_session_are_listed(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let one = a.make_and_take(&resource("one"), "g-1").await;
    let two = a.make_and_take(&resource("two"), "g-2").await;
    let others = b.make_and_take(&resource("three"), "g-3").await;
    // A waiter is not a holder.
    a.take(&others, "g-4").await;
    let held = |page: Page<Lock>| {
        let held = page.items.into_iter();
        held.map(|lock| (lock.value.resource.to_string(), lock.version))
            .collect::<BTreeMap<_, _>>()
    };
    let page = b.locks.list_held_by(&a.session_id()).await;
    let page = page.expect("a listing");
    assert!(page.revision >= two.version && page.next.is_none());
    let mine = [
        ("one".to_owned(), one.version),
        ("two".to_owned(), two.version),
    ];
    assert_eq!(held(page), BTreeMap::from(mine));

    a.release(&one, "g-1").await;
    let page = a.locks.list_held_by(&a.session_id()).await;
    let mine = [("two".to_owned(), two.version)];
    assert_eq!(held(page.expect("a listing")), BTreeMap::from(mine));
    let page = a.locks.list_held_by(&"nobody-0".into()).await;
    assert!(page.expect("a listing").items.is_empty());
}

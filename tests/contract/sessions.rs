//! Sessions: created once, renewed by compare-and-swap, and ended permanently.

use leasehold::protocol::session::{RenewalFailures, Revocation, RevokeReason, Session};
use leasehold::store::StoreError;

use super::{AT, Adapter};

fn end(by: &str, reason: RevokeReason) -> Revocation {
    Revocation {
        at: AT,
        by: by.into(),
        reason,
    }
}

fn failures() -> RenewalFailures {
    RenewalFailures {
        count: 3,
        last_reason: Some("no answer".into()),
        last_at: Some(AT),
    }
}

pub(crate) async fn session_is_created_once_and_renewed(adapter: &impl Adapter) {
    let (a, b) = (adapter.a(), adapter.b());
    let id = a.session_id();
    assert!(b.sessions.get(&id).await.expect("a read").is_none());
    let made = a.sessions.create(&a.session()).await.expect("a session");
    assert_eq!(made.value, a.session());
    let twice = a.sessions.create(&a.session()).await;
    assert_eq!(twice.err(), Some(StoreError::Conflict));

    let renewed = made.value.renewed(AT, failures()).expect("it lives");
    let written = a.sessions.update(&made, &renewed).await.expect("a renewal");
    assert_eq!(written.value, renewed);
    assert!(written.version > made.version);
    let late = a.sessions.update(&made, &renewed).await;
    assert_eq!(late.err(), Some(StoreError::Conflict));
    let read = b.sessions.get(&id).await.expect("a read");
    let read = read.expect("a session");
    assert_eq!((read.value, read.version), (renewed, written.version));
}

pub(crate) async fn a_session_ends_once(adapter: &impl Adapter) {
    let a = adapter.a();
    let made = a.sessions.create(&a.session()).await.expect("a session");
    let ended = made.value.revoked(end(&a.pod.name, RevokeReason::Ended));
    let ended = ended.expect("it lives");
    let ended = a.sessions.update(&made, &ended).await.expect("an end");
    let last = ended.value.clone();
    let renewed = Session {
        renewals: 9,
        ..last.clone()
    };
    let revived = Session {
        revoked: None,
        ..last.clone()
    };
    let other_end = Session {
        revoked: Some(end("a", RevokeReason::PodEnded)),
        ..last.clone()
    };
    for next in [renewed, revived, other_end] {
        let answer = a.sessions.update(&ended, &next).await;
        assert!(matches!(answer, Err(StoreError::Invalid(_))), "{answer:?}");
    }
    let read = a.sessions.get(&last.id).await.expect("a read");
    assert_eq!(read.expect("a session").value, last);
}

pub(crate) async fn a_renewal_and_a_revocation_cannot_both_succeed(adapter: &impl Adapter) {
    let a = adapter.a();
    let made = a.sessions.create(&a.session()).await.expect("a session");
    let renewed = made.value.renewed(AT, failures()).expect("it lives");
    let revoked = made.value.revoked(end(&a.pod.name, RevokeReason::Ended));
    let revoked = revoked.expect("it lives");
    let (renewal, revocation) = futures::join!(
        a.sessions.update(&made, &renewed),
        a.sessions.update(&made, &revoked)
    );
    let read = a.sessions.get(&made.value.id).await.expect("a read");
    let read = read.expect("a session");
    match (renewal, revocation) {
        (Ok(written), Err(StoreError::Conflict)) => {
            assert_eq!((read.value, read.version), (renewed, written.version));
        }
        (Err(StoreError::Conflict), Ok(written)) => {
            assert_eq!((read.value, read.version), (revoked, written.version));
        }
        other => panic!("{other:?}"),
    }
}

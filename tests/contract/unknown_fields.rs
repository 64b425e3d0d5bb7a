//! Fields of a newer version survive the writes of this one. This is not part of `every_fact!`: an
//! API server keeps unknown fields only where its definitions allow them.

use leasehold::protocol::ids::Resource;
use leasehold::protocol::incident::{Ending, IncidentKind};
use leasehold::protocol::session::Claimant;
use serde_json::Value;

use super::{AT, Adapter, resource};

/// A part of a lock's object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Lock,
    Holder,
    Grant,
    Waiter,
    Incidents,
}

/// An adapter with objects that a newer version wrote.
pub(crate) trait Newer: Adapter {
    /// Writes `"new": 1` into every part of a lock that is held and has a waiter, and one incident
    /// of the kind `Newer` with it.
    async fn add_unknown_fields(&self, resource: &Resource);
    /// Returns a part as it is stored, or null if it is absent.
    async fn part(&self, resource: &Resource, part: Part) -> Value;
}

pub(crate) async fn fields_of_a_newer_version_survive_every_write(adapter: &impl Newer) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    b.take(&held, "g-b").await;
    adapter.add_unknown_fields(&r).await;

    let lock = a.read(&r).await;
    assert!(lock.value.incidents.is_empty(), "an unknown kind");
    let mut kept = lock.value.clone();
    kept.grant.as_mut().expect("held").kept = true;
    let lock = a.locks.update(&lock, &kept).await;
    let lock = lock.expect("a change of one's own grant");
    for part in [Part::Lock, Part::Holder, Part::Grant, Part::Waiter] {
        let stored = adapter.part(&r, part).await;
        assert_eq!(stored["new"], 1, "{part:?}: {stored}");
    }

    let ending = Ending {
        at: AT,
        kind: IncidentKind::Expired,
        actor: "b".into(),
        reason: "r".into(),
    };
    let (mint, dead) = (b.mint().await, a.session_id());
    let is_dead = |who: &Claimant| who.session == dead;
    let taken = lock
        .value
        .take_over(lock.version, &mint, is_dead, &ending, None);
    let taken = b.locks.update(&lock, &taken.expect("expired")).await;
    assert!(taken.expect("a take-over").value.names_grant(&"g-b".into()));
    assert_eq!(adapter.part(&r, Part::Lock).await["new"], 1);
    let incidents = adapter.part(&r, Part::Incidents).await;
    assert_eq!(
        (&incidents[0]["new"], &incidents[0]["kind"]),
        (&1.into(), &"Newer".into())
    );
    assert_eq!(incidents[1]["kind"], "Expired");
    // The newer version's fields about the old holder do not apply to the new one.
    for part in [Part::Holder, Part::Grant] {
        assert_eq!(adapter.part(&r, part).await["new"], Value::Null, "{part:?}");
    }
}

pub(crate) async fn fields_of_a_newer_version_survive_a_join(adapter: &impl Newer) {
    let (a, b, r) = (adapter.a(), adapter.b(), resource("r"));
    let held = a.make_and_take(&r, "g-a").await;
    let read = b.take(&held, "g-b").await;
    adapter.add_unknown_fields(&r).await;
    // Whether or not the fields existed in the version that was read.
    a.join(&read, 1, "g-1").await;
    let lock = a.read(&r).await;
    let joined = a.join(&lock, 2, "g-2").await;
    assert_eq!(joined.value.waiters.len(), 3);
    for part in [Part::Lock, Part::Holder, Part::Grant, Part::Waiter] {
        let stored = adapter.part(&r, part).await;
        assert_eq!(stored["new"], 1, "{part:?}: {stored}");
    }
    let incidents = adapter.part(&r, Part::Incidents).await;
    assert_eq!(incidents[0]["new"], 1, "{incidents}");
}

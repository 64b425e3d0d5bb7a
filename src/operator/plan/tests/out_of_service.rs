//! Tests when a session ends because its node is out of service.

use super::*;
use crate::store::StoreError;
use crate::store::fleet::NodeReport;

/// Three fifths of the TTL.
const OVERDUE: u64 = TTL * 3 / 5;

impl World {
    /// Observes a node with the taint.
    fn tainted(mut self, name: &str, is_ready: bool) -> Self {
        let node = NodeReport {
            name: name.into(),
            is_tainted: true,
            is_ready,
        };
        let node = FeedEvent::Applied(Box::new(node));
        self.view.observe_node(node, at(0).moment);
        self
    }
}

fn on_node(who: &str, node: &str) -> Session {
    let mut session = session_of(who);
    session.pod.node = Some(node.into());
    session
}

/// The holder `a`, on `n1`.
fn holder_on_n1() -> World {
    let session = on_node("a", "n1");
    World::new()
        .session(session, 0)
        .lock(held_by("a", &["b"]), 0)
}

fn is_revoked(plan: &Plan) -> bool {
    matches!(plan.action, Some(Action::Revoke { .. }))
}

#[test]
fn silent_session_on_a_node_out_of_service_is_revoked() {
    let world = holder_on_n1().tainted("n1", false);
    waits_until(&world.about_session("a", OVERDUE - 1), OVERDUE);
    let reason = RevokeReason::NodeOutOfService;
    revokes(world.about_session("a", OVERDUE), &reason);
}

/// The node is as before the outage, and its taint was forgotten.
#[test]
fn outage_of_the_api_server_is_no_silence_of_the_node() {
    let mut world = holder_on_n1();
    let error = StoreError::Unavailable("away".into());
    world
        .view
        .observe_node(FeedEvent::Interrupted(error), at(3).moment);
    world
        .view
        .observe_node(FeedEvent::ListStarted, at(600).moment);
    let mut world = world.tainted("n1", false);
    world.view.observe_node(FeedEvent::ListDone, at(600).moment);
    let expired = Session {
        ttl: SessionTtl::clamped(3_600),
        ..on_node("a", "n1")
    };
    let world = world.session(expired, 0);
    let due = 600 + 72;
    assert!(!is_revoked(&world.about_session("a", due - 1)));
    revokes(
        world.about_session("a", due),
        &RevokeReason::NodeOutOfService,
    );
}

#[test]
fn session_is_not_revoked_without_each_of_the_conditions() {
    let renewed = Session {
        renewals: 1,
        ..on_node("a", "n1")
    };
    let outside_of_a_pod = {
        let mut session = on_node("a", "n1");
        session.pod.uid = "".into();
        session
    };
    let unused = World::new().session(on_node("a", "n1"), 0);
    let unnamed = World::new().session(session_of("a"), 0);
    let unnamed = unnamed.lock(held_by("a", &[]), 0);
    let user = World::new().session(outside_of_a_pod, 0);
    let table = [
        ("no node has the taint", holder_on_n1()),
        ("another node has it", holder_on_n1().tainted("n2", false)),
        ("the node is Ready", holder_on_n1().tainted("n1", true)),
        (
            "the node is Ready again",
            holder_on_n1().tainted("n1", false).tainted("n1", true),
        ),
        (
            "its agent runs: it renewed since",
            holder_on_n1()
                .tainted("n1", false)
                .session(renewed, OVERDUE),
        ),
        ("it has no lock", unused.tainted("n1", false)),
        ("it names no node", unnamed.tainted("n1", false)),
        ("it is a user's", user.tainted("n1", false)),
    ];
    for (what, world) in table {
        let plan = world.about_session("a", OVERDUE);
        assert!(!is_revoked(&plan), "{what}: {plan:?}");
    }
}

#[test]
fn waiters_session_on_the_node_is_revoked_too() {
    let world = holder_on_n1().session(on_node("b", "n1"), 0);
    let world = world.tainted("n1", false);
    assert!(is_revoked(&world.about_session("b", OVERDUE)));
}

/// One after the other would each have the lock until it is planned again.
#[test]
fn lock_skips_waiters_on_the_same_node() {
    let ended = revoked("a", RevokeReason::NodeOutOfService);
    let world = World::new()
        .session(ended, 0)
        .session(on_node("b", "n1"), 0)
        .session(on_node("c", "n2"), 0)
        .lock(held_by("a", &["b", "c"]), 0)
        .tainted("n1", false);
    let (next, _) = writes(world.about_lock(OVERDUE));
    assert_eq!(holder(&next), Some("c"));
    assert!(next.waiters.is_empty());
}

/// The operator did not cause the time before the taint.
#[test]
fn delay_of_a_lock_on_a_lost_node_counts_from_the_taint() {
    let mut world = holder_on_n1();
    world
        .view
        .observe_session_missing(&object_ref("a"), at(0).moment);
    let node = NodeReport {
        name: "n1".into(),
        is_tainted: true,
        is_ready: false,
    };
    let late = at(OVERDUE + 1).moment;
    world
        .view
        .observe_node(FeedEvent::Applied(Box::new(node)), late);
    let (_, why) = writes(world.about_lock(OVERDUE + 2));
    let WriteReason::Reclaim { due, .. } = why else {
        panic!("{why:?}");
    };
    assert_eq!(due, late);
}

/// Kubernetes deletes the pods of the node by force, and their sessions with them.
#[test]
fn lock_of_a_deleted_session_on_the_node_is_handed_over() {
    for (tainted, due, kind) in [
        (true, OVERDUE, IncidentKind::PodEnded),
        (false, TTL * 105 / 100, IncidentKind::Expired),
    ] {
        let mut world = holder_on_n1();
        let gone = at(0).moment;
        world.view.observe_session_missing(&object_ref("a"), gone);
        world.view.take_changed();
        if tainted {
            world = world.tainted("n1", false);
            assert_eq!(world.view.take_changed(), [Key::Lock(object_ref("r"))]);
        }
        assert!(!matches!(
            world.about_lock(due - 1).action,
            Some(Action::Write { .. })
        ));
        let (next, _) = writes(world.about_lock(due));
        assert_eq!(next.incidents[0].kind, kind);
    }
}

#[test]
fn taint_lets_the_sessions_of_its_node_be_planned() {
    let mut world = holder_on_n1().session(on_node("c", "n2"), 0);
    world.view.take_changed();
    let mut world = world.tainted("n1", false);
    let expected = [Key::Session(object_ref("a"))];
    assert_eq!(world.view.take_changed(), expected);
}

#[test]
fn lock_is_handed_over_with_a_reason_that_names_the_taint() {
    let ended = revoked("a", RevokeReason::NodeOutOfService);
    let world = World::new().session(ended, 0).lock(held_by("a", &["b"]), 0);
    let (next, _) = writes(world.about_lock(0));
    assert_eq!(holder(&next), Some("b"));
    let incident = &next.incidents[0];
    assert_eq!(incident.kind, IncidentKind::PodEnded);
    let named = incident
        .reason
        .contains("node.kubernetes.io/out-of-service");
    assert!(named, "{}", incident.reason);
}

//! The operator's loop on a fake cluster: which replica acts, and what is recorded once or again.

mod bindings;
mod cluster;
mod memory;

use std::time::Duration;

use leasehold::protocol::incident::IncidentKind;
use leasehold::protocol::time::WallTime;
use leasehold::store::StoreError;

use cluster::{Cluster, Part, TTL};

async fn settled() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn standby_watches_and_acts_at_once_when_it_leads() {
    let cluster = Cluster::start().await;
    cluster.hold("res", "a");
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(cluster.writes(), 0);
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.holder("res"), None);
    assert_eq!(cluster.writes(), 2, "one revocation, one release");
    assert_eq!(cluster.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn session_with_an_unseen_renewal_is_not_revoked() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    cluster.hold("res", "a");
    tokio::time::sleep(TTL).await;
    cluster.renew_unheard("a");
    tokio::time::sleep(TTL / 2).await;
    let holder = cluster.holder("res");
    assert_eq!(
        holder.as_deref(),
        Some("a"),
        "revoked although it was renewed"
    );
    assert_eq!(cluster.writes(), 0);
    tokio::time::sleep(TTL).await;
    assert_eq!(cluster.holder("res"), None, "it was silent from then on");
}

#[tokio::test(start_paused = true)]
async fn node_out_of_service_frees_its_locks_before_the_ttl() {
    for (node, is_ready, frees) in [
        ("node-of-a", false, true),
        ("node-of-a", true, false),
        ("node-of-b", false, false),
    ] {
        let cluster = Cluster::start().await;
        cluster.lead(true);
        cluster.hold("res", "a");
        cluster.wait("res", "b");
        tokio::time::sleep(TTL * 7 / 10).await;
        assert_eq!(cluster.holder("res").as_deref(), Some("a"), "not tainted");
        cluster.taint(node, is_ready);
        tokio::time::sleep(TTL / 10).await;
        let expected = if frees { "b" } else { "a" };
        let holder = cluster.holder("res");
        assert_eq!(holder.as_deref(), Some(expected), "{node} {is_ready}");
        let reasons: Vec<_> = cluster
            .lines()
            .iter()
            .map(|line| line["reason"].to_string())
            .collect();
        let is_named = |reason: &String| reason.contains("node.kubernetes.io/out-of-service");
        assert_eq!(reasons.iter().any(is_named), frees, "{reasons:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn operator_without_the_right_to_nodes_works_as_before() {
    let cluster = Cluster::start_without([Part::Nodes]).await;
    cluster.lead(true);
    cluster.hold("res", "a");
    settled().await;
    assert_eq!(cluster.ready(), Ok(()));
    assert!(cluster.metrics().contains("leasehold_operator_synced 1"));
    tokio::time::sleep(TTL).await;
    assert_eq!(cluster.holder("res"), None);
}

#[tokio::test(start_paused = true)]
async fn new_leader_records_only_unrecorded_incidents() {
    let cluster = Cluster::start().await;
    cluster.incident("told", IncidentKind::Expired);
    cluster.incident("untold", IncidentKind::Expired);
    cluster.lead(true);
    settled().await;
    let told: Vec<_> = cluster.lines();
    assert_eq!(told.len(), 2, "neither had a record");
    cluster.forget_note_of("untold");
    cluster.lead(false);
    settled().await;
    cluster.lead(true);
    settled().await;
    let again: Vec<_> = cluster.lines().split_off(2);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0]["lock"], "untold");
    assert!(told.contains(&again[0]), "the same line, with the same id");
}

/// By a clock that is two days behind: a node may have such a clock, and a pod may claim such a
/// time.
const LONG_AGO: WallTime = WallTime(-2 * 86_400_000_000);

#[tokio::test(start_paused = true)]
async fn incident_seen_on_a_watch_is_recorded_whatever_its_date() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    settled().await;
    cluster.incident_at("res", IncidentKind::Expired, LONG_AGO);
    settled().await;
    assert_eq!(cluster.lines().len(), 1, "a line of the audit log");
    assert_eq!(cluster.notes(), 1, "an Event");
    assert_eq!(
        cluster.lines()[0]["createdAt"],
        "1969-12-30T00:00:00.000000Z"
    );
}

#[tokio::test(start_paused = true)]
async fn next_leader_records_an_old_incident_of_its_predecessor() {
    let cluster = Cluster::start().await;
    settled().await;
    cluster.incident_at("res", IncidentKind::Expired, LONG_AGO);
    settled().await;
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.lines().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_before_existing_events_are_known() {
    let cluster = Cluster::start().await;
    cluster.incident("res", IncidentKind::PodEnded);
    cluster.notes_fail(Some(StoreError::Unavailable("away".into())));
    cluster.lead(true);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(cluster.lines().is_empty());
    cluster.notes_fail(None);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.lines().len(), 1);
    assert_eq!(cluster.notes(), 1);
}

#[tokio::test(start_paused = true)]
async fn everything_is_recorded_if_events_cannot_be_listed() {
    let cluster = Cluster::start().await;
    cluster.incident("res", IncidentKind::PodEnded);
    cluster.notes_fail(Some(StoreError::Denied("no list".into())));
    cluster.lead(true);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(cluster.lines().len(), 1);
}

/// A reclaim with failing writes is retried with pauses, and succeeds once writes succeed.
async fn is_tried_again_with_pauses(error: StoreError) {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    cluster.hold("res", "a");
    cluster.writes_fail(Some(error));
    tokio::time::sleep(TTL * 2).await;
    let tried = cluster.tries();
    assert!((2..20).contains(&tried), "{tried} tries in about one TTL");
    cluster.writes_fail(None);
    tokio::time::sleep(Duration::from_secs(40)).await;
    assert_eq!(cluster.holder("res"), None);
}

#[tokio::test(start_paused = true)]
async fn failed_write_is_retried_with_backoff() {
    is_tried_again_with_pauses(StoreError::DeniedByPolicy("no".into())).await;
}

#[tokio::test(start_paused = true)]
async fn conflict_without_a_newer_version_is_retried_with_backoff() {
    is_tried_again_with_pauses(StoreError::Conflict).await;
}

#[tokio::test(start_paused = true)]
async fn ambiguous_write_is_retried_with_backoff() {
    is_tried_again_with_pauses(StoreError::Ambiguous("500".into())).await;
}

#[tokio::test(start_paused = true)]
async fn store_that_went_back_is_detected_with_a_silent_watch() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    cluster.hold("res", "a");
    settled().await;
    cluster.set_revision(5);
    cluster.interrupt();
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(cluster.writes(), 0);
    let metrics = cluster.metrics();
    assert!(metrics.contains("leasehold_operator_store_went_back 1"));
}

#[tokio::test(start_paused = true)]
async fn store_that_went_back_gets_no_write_until_restored_again() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    cluster.hold("res", "a");
    settled().await;
    let revision = cluster.set_revision(5);
    cluster.relist();
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(cluster.writes(), 0);
    assert!(
        cluster
            .metrics()
            .contains("leasehold_operator_store_went_back 1")
    );
    cluster.set_revision(revision + 1_000_000_000);
    tokio::time::sleep(TTL * 2).await;
    assert_eq!(cluster.holder("res"), None);
    assert!(
        cluster
            .metrics()
            .contains("leasehold_operator_store_went_back 0")
    );
}

#[tokio::test(start_paused = true)]
async fn leader_is_labelled_and_not_written_again_by_the_next_replica() {
    let cluster = Cluster::start().await;
    cluster.hold("election:jobs", "a");
    cluster.lead(true);
    settled().await;
    assert_eq!(
        (cluster.labelled(), cluster.writes()),
        (vec!["a".to_owned()], 1)
    );
    cluster.lead(false);
    settled().await;
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.writes(), 1);
    tokio::time::sleep(TTL).await;
    assert_eq!(cluster.holder("election:jobs"), None);
    assert_eq!(cluster.labelled(), Vec::<String>::new());
    assert_eq!(
        cluster.writes(),
        4,
        "revoked, freed, and taken from its pod"
    );
}

#[tokio::test(start_paused = true)]
async fn unready_leader_is_asked_once_to_resign_for_a_ready_pod() {
    for (is_other_ready, expected) in [(false, 0), (true, 1)] {
        let cluster = Cluster::start().await;
        cluster.hold("election:jobs", "a");
        cluster.wait("election:jobs", "b");
        cluster.unready("a", "noon");
        if !is_other_ready {
            cluster.unready("b", "noon");
        }
        cluster.lead(true);
        tokio::time::sleep(TTL * 9 / 20).await;
        assert_eq!(cluster.asked_to_resign(), [], "before the second check");
        tokio::time::sleep(TTL * 9 / 20).await;
        let asked = cluster.asked_to_resign();
        assert_eq!(asked.len(), expected, "{asked:?}");
        let (grant, why) = ("g-a", "pod a is not Ready since noon");
        assert!(
            asked
                .iter()
                .all(|(asked, reason)| asked.as_str() == grant && reason.contains(why))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn replica_without_the_lead_leaves_pending_work_to_the_next() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    cluster.hold("res", "a");
    cluster.writes_fail(Some(StoreError::Unavailable("away".into())));
    tokio::time::sleep(TTL * 2).await;
    cluster.lead(false);
    cluster.writes_fail(None);
    let asked = cluster.asked_whether_it_leads();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(cluster.holder("res").as_deref(), Some("a"));
    let asked = cluster.asked_whether_it_leads() - asked;
    assert!(asked < 200, "{asked} iterations in a minute");
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.holder("res"), None);
}

#[tokio::test(start_paused = true)]
async fn object_unreadable_before_the_lead_is_reported() {
    let cluster = Cluster::start().await;
    cluster.unreadable("res");
    settled().await;
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.notes(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_unreadable_locks_of_a_namespace_get_few_events() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    for number in (0..30).rev() {
        cluster.unreadable(&format!("res-{number:02}"));
    }
    settled().await;
    assert_eq!(cluster.notes(), 10);
    let counted = "leasehold_operator_unreadable_objects{kind=\"lock\"} 30\n";
    assert!(cluster.metrics().contains(counted));
}

#[tokio::test(start_paused = true)]
async fn no_event_without_its_audit_line() {
    let cluster = Cluster::start().await;
    cluster.incident("res", IncidentKind::Expired);
    cluster.break_down(Part::Audit);
    cluster.lead(true);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(cluster.notes(), 0);
    cluster.repair(Part::Audit);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((cluster.lines().len(), cluster.notes()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn refused_label_is_retried_with_backoff() {
    let cluster = Cluster::start().await;
    cluster.hold("election:jobs", "a");
    cluster.writes_fail(Some(StoreError::Denied("no right".into())));
    cluster.lead(true);
    tokio::time::sleep(TTL * 9 / 10).await;
    let tried = cluster.tries();
    assert!((2..20).contains(&tried), "{tried} tries in less than a TTL");
}

#[tokio::test(start_paused = true)]
async fn replica_that_may_not_list_is_not_a_candidate() {
    let cluster = Cluster::start_without([Part::Locks]).await;
    settled().await;
    cluster.refuse();
    settled().await;
    assert!(!cluster.stands());
    let why = cluster.why_not_ready();
    let words = [
        "lock",
        "denied",
        "charts/leasehold/files/rbac/operator.yaml",
    ];
    for word in words {
        assert!(why.contains(word), "{why}");
    }
    cluster.relist();
    settled().await;
    assert!(cluster.stands());
    assert_eq!(cluster.why_not_ready(), "");
}

#[tokio::test(start_paused = true)]
async fn replica_releases_its_lead_while_it_may_not_list() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    settled().await;
    // A starting API server refuses requests for a moment.
    cluster.refuse();
    settled().await;
    assert!(cluster.stands());
    assert_eq!(cluster.why_not_ready(), "");
    for _ in 0..4 {
        cluster.refuse();
        settled().await;
    }
    assert!(!cluster.stands());
    assert!(cluster.why_not_ready().contains("operator.yaml"));
    // An open watch reports nothing about that.
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(cluster.stands());
    assert_eq!(cluster.why_not_ready(), "");
}

#[tokio::test(start_paused = true)]
async fn request_created_with_its_lock_gets_an_event() {
    let cluster = Cluster::start().await;
    cluster.lead(true);
    settled().await;
    cluster.make_with_request("res");
    settled().await;
    assert_eq!(cluster.notes(), 1);
    assert!(cluster.lines().is_empty());
    cluster.relist();
    settled().await;
    assert_eq!(cluster.notes(), 1);
}

//! The `RoleBinding`s of sidecars in labelled namespaces, and the Events about pods without a sidecar.

use std::time::Duration;

use leasehold::operator::BindSidecars;
use leasehold::store::StoreError;
use leasehold::store::namespaces::{Binding, Subject};

use super::cluster::{Cluster, TTL};
use super::settled;

fn ours(subjects: &[Subject]) -> Binding {
    Binding {
        is_ours: true,
        binds_role: true,
        subjects: subjects.iter().cloned().collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn active_replica_binds_a_labelled_namespace_in_one_write() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    cluster.label("n", true);
    cluster.label("m", true);
    settled().await;
    assert_eq!((cluster.writes(), cluster.binding("n")), (0, None));
    cluster.lead(true);
    settled().await;
    let expected = Some(ours(&[Subject::AllAccounts]));
    assert_eq!(
        (cluster.binding("n"), cluster.binding("m")),
        (expected.clone(), expected)
    );
    tokio::time::sleep(Duration::from_secs(300)).await;
    cluster.lead(false);
    settled().await;
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.tries(), 2, "one write each, and never again");
}

#[tokio::test(start_paused = true)]
async fn binding_outlives_the_label_until_the_last_session_ends() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    cluster.lead(true);
    cluster.label("n", true);
    cluster.hold("res", "a");
    settled().await;
    cluster.label("n", false);
    tokio::time::sleep(TTL * 3).await;
    assert!(cluster.binding("n").is_some(), "a revoked session counts");
    cluster.end_sessions();
    settled().await;
    assert_eq!(cluster.binding("n"), None);
}

#[tokio::test(start_paused = true)]
async fn binding_outlives_the_label_until_the_last_sidecar_ends() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    cluster.lead(true);
    cluster.label("n", true);
    cluster.inject("n", "idle");
    settled().await;
    cluster.label("n", false);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(
        cluster.binding("n").is_some(),
        "it may take a lock at any time"
    );
    cluster.end_injected();
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(cluster.binding("n"), None);
}

#[tokio::test(start_paused = true)]
async fn edited_binding_is_repaired_or_recreated_for_another_role() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    cluster.lead(true);
    cluster.label("n", true);
    settled().await;
    let right = ours(&[Subject::AllAccounts]);
    for (edited, writes) in [
        (ours(&[Subject::AllAccounts, Subject::Other]), 1),
        (ours(&[]), 1),
        (
            Binding {
                binds_role: false,
                ..right.clone()
            },
            2,
        ),
    ] {
        let before = cluster.tries();
        cluster.edit_binding("n", edited);
        settled().await;
        assert_eq!(cluster.binding("n").as_ref(), Some(&right));
        assert_eq!(cluster.tries() - before, writes);
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_binding_is_left_alone_and_reported_once() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    let foreign = Binding {
        is_ours: false,
        ..ours(&[Subject::Other])
    };
    cluster.edit_binding("n", foreign.clone());
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.notes(), 0, "no label, no Event");
    cluster.label("n", true);
    settled().await;
    cluster.lead(false);
    settled().await;
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.notes_written(), 1);
    cluster.label("n", false);
    settled().await;
    assert_eq!((cluster.binding("n"), cluster.tries()), (Some(foreign), 0));
}

#[tokio::test(start_paused = true)]
async fn only_labelled_accounts_are_bound_by_name() {
    let cluster = Cluster::start_binding(BindSidecars::ServiceAccount).await;
    cluster.lead(true);
    cluster.label("n", true);
    cluster.label_account("m", "x");
    settled().await;
    assert_eq!((cluster.binding("n"), cluster.tries()), (None, 0));
    cluster.label_account("n", "b");
    settled().await;
    cluster.label_account("n", "a");
    settled().await;
    let both = ["a", "b"].map(|name| Subject::Account(name.into()));
    assert_eq!(cluster.binding("n"), Some(ours(&both)));
    assert_eq!((cluster.binding("m"), cluster.tries()), (None, 2));
}

#[tokio::test(start_paused = true)]
async fn failed_binding_is_retried_with_backoff() {
    for error in [
        StoreError::Denied("no".into()),
        StoreError::Ambiguous("500".into()),
        StoreError::Conflict,
    ] {
        let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
        cluster.lead(true);
        cluster.writes_fail(Some(error));
        cluster.label("n", true);
        tokio::time::sleep(Duration::from_secs(20)).await;
        let tried = cluster.tries();
        assert!((2..20).contains(&tried), "{tried} tries in 20 s");
        cluster.writes_fail(None);
        tokio::time::sleep(Duration::from_secs(40)).await;
        assert!(cluster.binding("n").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn missing_sidecar_is_reported_once_in_labelled_namespaces() {
    let cluster = Cluster::start_binding(BindSidecars::Namespace).await;
    cluster.label("n", true);
    for (namespace, pod) in [("n", "a"), ("later", "b"), ("never", "c")] {
        cluster.make_without_sidecar(namespace, pod);
    }
    settled().await;
    assert_eq!(cluster.notes(), 0, "another replica leads");
    cluster.lead(true);
    settled().await;
    assert_eq!(cluster.notes(), 1);
    cluster.label("later", true);
    settled().await;
    assert_eq!(cluster.notes(), 2);
    cluster.lead(false);
    settled().await;
    cluster.lead(true);
    cluster.make_without_sidecar("n", "a");
    settled().await;
    assert_eq!((cluster.notes(), cluster.notes_written()), (2, 2));
    assert!(cluster.lines().is_empty(), "not for the audit log");
}

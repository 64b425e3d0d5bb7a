//! Performs a planned action: one write, one read, or one step of moving a label. It decides
//! nothing.

mod applied;
mod bindings;
mod fleet;
mod labels;
mod leaders;

use crate::protocol::time::Moment;

use super::action::{Action, WriteReason};
use super::metrics::Metrics;
use super::ports::Ports;

pub(super) use self::applied::Applied;

/// Performs an action.
pub(super) async fn apply(ports: &Ports, action: Action) -> Applied {
    let fleet = &*ports.fleet;
    let (namespaces, labels) = (&*ports.namespaces, &*ports.labels);
    match action {
        Action::Revoke { current, next } => fleet::revoke(fleet, &current, &next).await,
        Action::Write { current, next, .. } => fleet::write(fleet, &current, &next).await,
        Action::ReadPod(session) => Applied::read(fleet::read_pod(fleet, &session).await),
        Action::ReadSession(session) => Applied::read(fleet::read_session(fleet, &session).await),
        Action::DeleteLock(current) => fleet::delete_lock(fleet, &current).await,
        Action::DeleteSession(current) => fleet::delete_session(fleet, &current).await,
        Action::CreateBinding {
            namespace,
            subjects,
        } => bindings::create(namespaces, &namespace, &subjects).await,
        Action::UpdateBinding { current, subjects } => {
            bindings::update(namespaces, &current, &subjects).await
        }
        Action::FindSidecars(namespace) => bindings::find_sidecars(labels, namespace).await,
        Action::DeleteBinding(current) => bindings::delete(namespaces, &current).await,
        Action::RemoveLabel {
            election,
            grant,
            keep,
        } => labels::remove(labels, election, grant, keep).await,
        Action::AddLabel {
            election,
            grant,
            pod,
        } => labels::add(labels, election, grant, &pod).await,
        Action::CheckLeader {
            election,
            current,
            grant,
            pod,
            others,
            unready_since,
        } => {
            let leader = leaders::Leader {
                election,
                current: &current,
                grant,
                pod: &pod,
            };
            leaders::check(ports, leader, &others, unready_since).await
        }
    }
}

/// Logs and counts an action that was done.
pub(super) fn log_done(action: &Action, metrics: &Metrics, now: Moment) {
    match action {
        Action::Revoke { current, next } => {
            let reason = next
                .revoked
                .as_ref()
                .map(|revoked| format!("{:?}", revoked.reason));
            tracing::info!(session = %current.object_ref, reason, "session revoked");
        }
        Action::Write {
            current,
            next,
            why: WriteReason::Reclaim { kind, last_seen },
        } => {
            let next = next.grant.as_ref().map(|grant| &*grant.holder.pod.name);
            let reason = kind.name();
            tracing::info!(lock = %current.object_ref, reason, nextPod = next, "reclaimed lock from expired holder");
            metrics.record_reclaimed(*kind, now.since(*last_seen));
        }
        Action::Write {
            current,
            why: WriteReason::Force,
            ..
        } => {
            tracing::warn!(lock = %current.object_ref, "force-released lock");
            metrics.record_force_release();
        }
        Action::Write {
            current,
            why: WriteReason::LongHeld,
            ..
        } => tracing::info!(lock = %current.object_ref, "updated condition LongHeld"),
        Action::DeleteLock(lock) => {
            tracing::info!(lock = %lock.object_ref, "deleted idle lock");
        }
        Action::DeleteSession(session) => {
            tracing::debug!(session = %session.object_ref, "deleted ended session");
        }
        Action::AddLabel { election, pod, .. } => {
            tracing::info!(%election, pod = %pod.object_ref.name, "labelled leader pod");
        }
        Action::CreateBinding { namespace, .. } => {
            tracing::info!(%namespace, "created sidecar RoleBinding");
        }
        Action::UpdateBinding { current, .. } => {
            let namespace = &*current.object_ref.namespace;
            tracing::info!(namespace, "updated sidecar RoleBinding");
        }
        Action::DeleteBinding(current) => {
            let namespace = &*current.object_ref.namespace;
            tracing::info!(namespace, "deleted sidecar RoleBinding");
        }
        Action::ReadPod(_)
        | Action::ReadSession(_)
        | Action::FindSidecars(_)
        | Action::CheckLeader { .. }
        | Action::RemoveLabel { .. } => {}
    }
}

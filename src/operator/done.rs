//! Logs and counts what the operator has done.

use crate::protocol::time::Moment;

use super::action::{Action, WriteReason};
use super::metrics::Metrics;

/// Logs and counts an action that was done.
pub(super) fn record_done(action: &Action, metrics: &Metrics, now: Moment) {
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
            why:
                WriteReason::Reclaim {
                    kind,
                    last_seen,
                    due,
                },
        } => {
            let next = next.grant.as_ref().map(|grant| &*grant.holder.pod.name);
            let reason = kind.name();
            tracing::info!(lock = %current.object_ref, reason, nextPod = next, "reclaimed lock from expired holder");
            metrics.record_reclaimed(*kind, now.since(*last_seen), now.since(*due));
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

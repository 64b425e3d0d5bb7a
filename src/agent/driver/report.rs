//! The texts of the core's reports, and their metrics.

use crate::agent::core::report::{Report, Said};
use crate::agent::metrics::Metrics;

/// Logs and counts.
pub(super) fn report(report: &Report, metrics: &Metrics) {
    match report {
        Report::SessionStarted(session, ttl) => {
            tracing::info!(%session, sessionTtlSeconds = ttl.as_secs(), "session started");
        }
        Report::IdleSessionEnded(session) => tracing::info!(%session, "idle session ended"),
        Report::EndingSessionFailed(session, error) => {
            tracing::warn!(%session, %error, "ending session failed");
        }
        Report::RevokingSessionFailed(session, error) => {
            tracing::debug!(%session, %error, "revoking lost session failed; retrying");
        }
        Report::Renewed => metrics.renewal("renewed"),
        Report::RenewalFailed(session, error, remaining) => {
            metrics.renewal("failed");
            let remaining = remaining.as_millis();
            tracing::warn!(%session, %error, remainingMs = remaining, "renewal failed");
        }
        Report::RenewalLost => metrics.renewal("lost"),
        Report::PodReportedEnded(actor) => {
            tracing::error!(?actor, "pod reported as ended; sessions suspended");
        }
        Report::Released => metrics.release("released"),
        Report::ReleaseFailed(resource, error) => {
            metrics.release("retried");
            tracing::warn!(%resource, %error, "release failed; retrying");
        }
        Report::ReleaseAbandoned => metrics.release("abandoned"),
        Report::RequestNotRecorded(resource, actor) => tracing::warn!(
            %resource, %actor, "release request not recorded; releasing anyway"
        ),
        Report::GrantWithoutCaller(resource, grant) => {
            tracing::info!(%resource, grantId = %grant, "grant has no caller; releasing");
        }
        Report::LeavingQueueFailed(resource, error) => {
            tracing::debug!(%resource, %error, "leaving the queue failed; retrying");
        }
        Report::ForceReleased(lease, said) => {
            // People's words are escaped: they may have line breaks in them.
            let (actor, reason) = words(said.as_ref());
            tracing::warn!(leaseId = %lease, ?actor, ?reason, "grant ended by force release");
        }
        Report::Reassigned(lease, said) => {
            // Its app could still believe in it.
            metrics.dual_owner_suspected();
            let (actor, reason) = words(said.as_ref());
            tracing::error!(
                leaseId = %lease, ?actor, ?reason, "session revoked and lock reassigned"
            );
        }
        Report::NotNamed(lease) => {
            metrics.dual_owner_suspected();
            tracing::error!(
                leaseId = %lease, advice = "check whether the lock was deleted or edited",
                "lock no longer names the lease's grant"
            );
        }
        Report::LeaseLost(loss) => metrics.lease_lost(loss.as_str()),
        Report::StoreRestored(revision) => {
            tracing::warn!(%revision, "store revision jumped; assuming a restored backup");
        }
        Report::StoreWentBack(error) => {
            tracing::error!(%error, "store went back; granting suspended");
        }
        Report::WatchInterrupted(session, error) => {
            tracing::debug!(%session, %error, "watch interrupted; retrying");
        }
        Report::ListingFailed(session, error) => {
            tracing::debug!(%session, %error, "listing the session's locks failed; retrying");
        }
    }
}

/// Returns what an incident says: its actor and reason.
fn words(said: Option<&Said>) -> (Option<&str>, Option<&str>) {
    said.map(|(actor, reason)| (&**actor, &**reason)).unzip()
}

//! The texts of the core's reports, and their metrics.

use crate::agent::core::report::Report;
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
        Report::PodReportedEnded(session, actor) => tracing::error!(
            %session, ?actor, "pod reported as ended; sessions suspended"
        ),
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

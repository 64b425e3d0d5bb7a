//! The texts of the core's reports, and their metrics.

use std::path::Path;

use crate::agent::core::discard::DiscardReason;
use crate::agent::core::report::{ClaimReport, Report, ResumptionReport, Said, Summary};
use crate::agent::metrics::Metrics;
use crate::protocol::ids::{LeaseId, SessionId};
use crate::protocol::lease::Loss;

/// Logs and counts.
pub(super) fn report(report: &Report, metrics: &Metrics) {
    match report {
        Report::SessionStarted(session, ttl) => {
            tracing::info!(%session, sessionTtlSeconds = ttl.as_secs(), "session started");
        }
        Report::Resumption(resumption) => report_resumption(resumption, metrics),
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
            tracing::warn!(%session, %error, remainingMs = remaining.as_millis(), "renewal failed");
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
        Report::ForceReleased(lease, said) => force_released(lease, said.as_ref()),
        Report::Reassigned(lease, said) => reassigned(lease, said.as_ref(), metrics),
        Report::NotNamed(lease) => not_named(lease, metrics),
        Report::ReleasedLeaseLost(loss) => metrics.lease_lost(loss.as_str()),
        Report::LockAcquired(lease, is_warm) => lock_acquired(lease, *is_warm),
        Report::LeaseReleased(lease, is_kept) => lease_released(lease, *is_kept, metrics),
        Report::LeaseLost(lease, loss) => lease_lost(lease, *loss, metrics),
        Report::SessionLost(session, loss, leases) => {
            tracing::warn!(%session, reason = %loss, leases, "session lost");
        }
        Report::Claim(claim) => report_claim(claim, metrics),
        Report::WarmGrantLost(resource) => tracing::warn!(%resource, "warm grant lost"),
        Report::ForeignGrant(resource, grant, pod) => tracing::warn!(
            %resource, grantId = %grant.id, session = %grant.session.id, pod = %pod.name,
            podUid = %pod.uid, "grant belongs to another pod; ignored"
        ),
        Report::ReleaseRequested(resource, lease, request) => tracing::info!(
            %resource, leaseId = %lease, actor = ?request.actor, reason = ?request.reason,
            "release requested"
        ),
        Report::UnreadableLocks(session, locks) => {
            tracing::warn!(%session, ?locks, "unreadable locks");
        }
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

fn report_resumption(report: &ResumptionReport, metrics: &Metrics) {
    match report {
        ResumptionReport::Continues {
            session,
            leases,
            lost,
            released,
            released_later,
        } => tracing::info!(
            %session, leases, lost, released, releasedLater = released_later,
            "resumed session from state file"
        ),
        ResumptionReport::LeaseLost(lease, token, loss) => {
            metrics.lease_lost(loss.as_str());
            tracing::warn!(
                leaseId = %lease, fencingToken = token.get(), reason = loss.as_str(), "lease lost"
            );
        }
        ResumptionReport::Discarded(reason, session, leases) => {
            for _ in 0..*leases {
                metrics.lease_lost(reason.loss().as_str());
            }
            state_discarded(reason, Some(session), Some(*leases), None);
        }
        ResumptionReport::CallFailed(error) => {
            tracing::debug!(%error, "resuming session failed; retrying");
        }
    }
}

fn report_claim(report: &ClaimReport, metrics: &Metrics) {
    match report {
        ClaimReport::GrantWithoutCaller(resource, grant) => {
            tracing::info!(%resource, grantId = %grant, "grant has no caller; releasing");
        }
        ClaimReport::LeavingQueueFailed(resource, error) => {
            tracing::debug!(%resource, %error, "leaving the queue failed; retrying");
        }
        ClaimReport::TakeOverDenied(reason) => tracing::info!(
            reason,
            "take-over denied; leaving take-overs to the operator"
        ),
        ClaimReport::SessionRevoked(session) => tracing::info!(%session, "revoked expired session"),
        ClaimReport::WaiterUnknown(session, error) => {
            tracing::debug!(%session, %error, "checking a waiter's session failed");
        }
        ClaimReport::WatchLate => metrics.watch_was_late(),
        ClaimReport::Queued(resource, owner, ahead) => {
            tracing::info!(%resource, ownerId = %owner, ahead, "queued for lock");
        }
        ClaimReport::OrphanedGrant(resource, grant) => {
            tracing::warn!(%resource, grantId = %grant, "orphaned grant; releasing");
        }
        ClaimReport::TokenRaised(resource, token, revision) => tracing::warn!(
            %resource, fencingToken = token.get(), revision = revision.0,
            "store revision jumped; raising the fencing token"
        ),
        ClaimReport::RenameFailed(resource, error) => {
            tracing::warn!(%resource, %error, "updating the holder's owner failed");
        }
        ClaimReport::HungUp(resource, owner, waited) => {
            metrics.waited("hung_up", *waited);
            let waited = waited.as_millis();
            tracing::info!(
                %resource, ownerId = %owner, waitedMs = waited,
                "waiting caller disconnected"
            );
        }
        ClaimReport::LeaseUndelivered(lease) => {
            tracing::info!(leaseId = %lease, "caller disconnected; lease released");
        }
    }
}

/// Logs why nothing continues; with the session and how many leases it had, if that is known, and where
/// the file is now, if it was set aside.
pub(in crate::agent) fn state_discarded(
    reason: &DiscardReason,
    session: Option<&SessionId>,
    leases: Option<usize>,
    file: Option<&Path>,
) {
    tracing::warn!(
        %reason, session = session.map(tracing::field::display), leases,
        file = file.map(|path| tracing::field::display(path.display())), advice = reason.advice(),
        "ignoring state file; starting a new session"
    );
}

fn lease_lost(lease: &Summary, loss: Loss, metrics: &Metrics) {
    metrics.lease_lost(loss.as_str());
    metrics.lease_ended(lease.lasted);
    tracing::warn!(
        resource = %lease.resource, ownerId = %lease.owner, leaseId = %lease.lease,
        fencingToken = lease.token.get(), reason = loss.as_str(), "lease lost"
    );
}

fn force_released(lease: &LeaseId, said: Option<&Said>) {
    // People's words are escaped: they may have line breaks in them.
    let (actor, reason) = words(said);
    tracing::warn!(leaseId = %lease, ?actor, ?reason, "grant ended by force release");
}

fn reassigned(lease: &LeaseId, said: Option<&Said>, metrics: &Metrics) {
    // Its app could still believe in it.
    metrics.dual_owner_suspected();
    let (actor, reason) = words(said);
    tracing::error!(
        leaseId = %lease, ?actor, ?reason, "session revoked and lock reassigned"
    );
}

fn not_named(lease: &LeaseId, metrics: &Metrics) {
    metrics.dual_owner_suspected();
    tracing::error!(
        leaseId = %lease, advice = "check whether the lock was deleted or edited",
        "lock no longer names the lease's grant"
    );
}

fn lock_acquired(lease: &Summary, is_warm: bool) {
    let (resource, owner, token) = (&lease.resource, &lease.owner, lease.token.get());
    let lease = &lease.lease;
    if is_warm {
        tracing::debug!(
            %resource, ownerId = %owner, leaseId = %lease, fencingToken = token,
            "lock acquired from warm grant"
        );
    } else {
        tracing::info!(
            %resource, ownerId = %owner, leaseId = %lease, fencingToken = token, "lock acquired"
        );
    }
}

fn lease_released(lease: &Summary, is_kept: bool, metrics: &Metrics) {
    metrics.lease_ended(lease.lasted);
    let (resource, owner, token) = (&lease.resource, &lease.owner, lease.token.get());
    let lease = &lease.lease;
    if is_kept {
        tracing::debug!(
            %resource, ownerId = %owner, leaseId = %lease, fencingToken = token,
            "lease released; grant kept"
        );
    } else {
        tracing::info!(
            %resource, ownerId = %owner, leaseId = %lease, fencingToken = token, "lease released"
        );
    }
}

/// Returns what an incident says: its actor and reason.
fn words(said: Option<&Said>) -> (Option<&str>, Option<&str>) {
    said.map(|(actor, reason)| (&**actor, &**reason)).unzip()
}

//! What the watch, lists and reads show of this agent's leases and warm grants: grants that were ended
//! by somebody else, sessions that join a held lock's queue (a release then needs no read), and release
//! requests.
//!
//! An observation is older than its arrival, so it is compared with the version at which the lock was
//! last seen. A lease is over in the step that shows that its grant is gone; the lock's incident may
//! have the reason. If the lock itself was not read yet, it is read to find out, and the loss is reported
//! then. Whether it was right to end the grant does not matter here.
//!
//! Grants and queue entries of other pods may carry names of this agent's. No agent writes such, and the
//! policies refuse them; without policies every pod of the namespace can. They are the other pod's to
//! end, so they are never served, never released from here and never counted, and reported once.
//!
//! A release request (`spec.releaseRequest`, mode Ask) is no state of its own: it is in the lock as it was
//! last seen. Only a request that was known here when a lease ended, and that stands in the version that
//! the release is decided on, is recorded as the cause of its end.

use std::collections::BTreeSet;

use crate::protocol::ids::{LeaseId, Resource, SessionId};
use crate::protocol::key::GrantKey;
use crate::protocol::lease::Loss;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::object::{LockEvent, Page, Stored};
use crate::protocol::token::Revision;

use super::effect::Effect;
use super::env::InFlight;
use super::held::Held;
use super::history::End;
use super::leases::Leases;
use super::lost::Read;
use super::own::Before;
use super::report::Report;
use super::warm::others_wait;

/// What is known of a lock that no longer names a grant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    /// The lock as it was read since; `None` if there is no such lock.
    Read(Option<&'a Lock>),
    /// It was only reported that the grant is gone.
    Unread,
}

/// Takes an event of the watch.
pub(super) fn event(leases: &mut Leases, event: LockEvent) {
    match event {
        LockEvent::Held(stored) => held(leases, &stored),
        LockEvent::Gone { resource, at } => not_held(leases, &resource, at, Found::Unread),
        LockEvent::Bookmark(_) => {}
    }
}

/// Takes a list of what the session holds.
pub(super) fn listed(leases: &mut Leases, session: &SessionId, page: Page<Lock>) {
    if leases.deadline_of(session).is_none() {
        // It says nothing about what the next session holds.
        return;
    }
    if page.unreadable.is_empty() {
        missing(leases, &page.items, page.revision);
    } else {
        // What is missing may be what somebody made unreadable.
        let unreadable = Report::UnreadableLocks(session.clone(), page.unreadable);
        leases.env.out.report(unreadable);
    }
    for stored in &page.items {
        held(leases, stored);
    }
}

/// Takes a lock as a call has read or written it.
pub(super) fn answered(leases: &mut Leases, call: &InFlight, lock: Option<&Stored<Lock>>) {
    match (&call.reads, lock) {
        (Some(resource), lock) => {
            if let Some(lock) = lock {
                read(leases, lock);
            }
            let lock = lock.cloned().map(Box::new);
            let read = Effect::LockRead(resource.clone(), call.sent_at, lock);
            leases.env.out.push(read);
        }
        // A claim takes the lock that it has created.
        (None, Some(written)) if written.value.grant.is_none() && call.is_of_a_claim() => {}
        (None, Some(written)) => leases.free_locks.observe(written),
        (None, None) => {}
    }
}

/// Takes a lock that was read.
pub(in crate::agent) fn read(leases: &mut Leases, seen: &Stored<Lock>) {
    let _is_lease = lease_seen(leases, seen);
}

/// Takes a lock as a write of its own grant left it. The next lease of that grant is to see it, too.
pub(in crate::agent) fn written(leases: &mut Leases, seen: &Stored<Lock>) {
    let _is_own = warm_seen(leases, seen) || lease_seen(leases, seen);
}

/// Takes a read of a lock of which the agent had a lease or a warm grant when the read was sent. If it
/// no longer shows the grant, that is gone: no grant comes back.
pub(in crate::agent) fn compared(
    leases: &mut Leases,
    resource: &Resource,
    before: Before,
    found: Option<&Stored<Lock>>,
) {
    if let Some((lease, grant, seen_at)) = before.lease {
        let is_gone =
            found.is_none_or(|found| found.version > seen_at && !found.value.is_held_by(&grant));
        if is_gone {
            lose_gone(leases, &lease, Found::Read(found.map(|found| &found.value)));
        }
    }
    if let Some(grant) = before.warm {
        let at = match found {
            Some(found) if found.value.is_held_by(&grant) => return,
            Some(found) => found.version,
            None => Revision(u64::MAX),
        };
        let warm = leases.own.warm(resource);
        if warm.is_some_and(|warm| warm.key() == grant) {
            forget_warm_before(leases, resource, at);
        }
    }
}

/// The store gave this agent another grant of a lock. A lease that is still served from an older one is
/// over, and an older warm grant is gone: somebody ended that grant, which was not reported yet.
pub(super) fn superseded(leases: &mut Leases, grant: &GrantKey, seen: &Stored<Lock>) {
    let resource = &seen.value.resource;
    forget_warm_before(leases, resource, seen.version);
    let served = leases.own.held(resource);
    if let Some(lease) = served.filter(|held| held.key() != *grant) {
        let lease = lease.lease.id.clone();
        lose_gone(leases, &lease, Found::Read(Some(&seen.value)));
    }
}

/// Records why a lease is lost, and reports that.
pub(super) fn explained(leases: &mut Leases, lease: &LeaseId, read: Read) {
    let Some(mut held) = leases.own.take_unexplained(lease) else {
        return;
    };
    let gone = held.gone();
    let lock = read.as_ref().map(|read| &read.value);
    let loss = gone.loss(lock);
    let report = gone.report(lease, lock);
    leases.env.out.report(report);
    leases.history.correct_end(lease, End::Lost(loss));
    if let Some(read) = read {
        // Nothing is left to be released, and that needs no other read.
        held.stored = *read;
    }
    let over = Effect::LeaseOver(lease.clone());
    leases.env.out.push(over);
    leases.env.out.push(Effect::SomethingEnded);
    lose(leases, held, loss);
}

/// Returns whether another pod holds this lock, which was listed as our session's. Reports that.
pub(in crate::agent) fn is_foreign(leases: &mut Leases, stored: &Stored<Lock>) -> bool {
    let own = &leases.session.pod().uid;
    let grant = stored.value.grant.as_ref();
    let Some(grant) = grant.filter(|grant| grant.holder.pod.uid != *own) else {
        return false;
    };
    report_foreign(leases, &stored.value.resource, grant);
    true
}

/// Reports a foreign grant: once, however often it is seen.
pub(in crate::agent) fn report_foreign(leases: &mut Leases, resource: &Resource, grant: &Grant) {
    if leases.own.is_to_be_reported(&grant.id) {
        let report = Report::ForeignGrant(resource.clone(), grant.key(), grant.holder.pod.clone());
        leases.env.out.report(report);
    }
}

/// The session holds this lock.
fn held(leases: &mut Leases, stored: &Stored<Lock>) {
    let Some(key) = stored.value.grant.as_ref().map(Grant::key) else {
        return;
    };
    let resource = stored.value.resource.clone();
    let found = Found::Read(Some(&stored.value));
    if is_foreign(leases, stored) {
        return not_held(leases, &resource, stored.version, found);
    }
    let served = leases.own.held(&resource).map(Held::key);
    if served.is_some_and(|served| served != key) {
        // Somebody ended the grant that is served, and this one came after it or before.
        not_held(leases, &resource, stored.version, found);
    }
    if warm_seen(leases, stored) || lease_seen(leases, stored) {
        return;
    }
    forget_warm_before(leases, &resource, stored.version);
    if leases.releases.observe(&key.id, stored) {
        return;
    }
    if leases.acquiring.observe(&key.id, stored) {
        leases.changed.insert(resource);
        return;
    }
    // It came for no caller, or what is reported here is over already; the lock says which.
    let env = &mut leases.env;
    leases.releases.look_for_leftover(resource, key, None, env);
}

/// At this revision our session did not hold the lock: a lease or a warm grant that is older is over.
/// Somebody else ended it.
fn not_held(leases: &mut Leases, resource: &Resource, at: Revision, found: Found) {
    leases.acquiring.observe_gone(resource, at);
    lose_before(leases, resource, at, found);
}

fn lose_before(leases: &mut Leases, resource: &Resource, at: Revision, found: Found) {
    forget_warm_before(leases, resource, at);
    let served = leases.own.held(resource);
    if let Some(held) = served.filter(|held| held.stored.version < at) {
        let lease = held.lease.id.clone();
        lose_gone(leases, &lease, found);
    }
}

/// Locks that are not in a list of what the session holds.
fn missing(leases: &mut Leases, listed: &[Stored<Lock>], at: Revision) {
    let mut own = BTreeSet::new();
    for stored in listed {
        if !is_foreign(leases, stored) {
            own.insert(stored.value.resource.clone());
        }
    }
    let held = leases.own.leases().map(|held| &held.stored.value.resource);
    let warm = leases.own.warm_grants().map(|(resource, _)| resource);
    let missing = held.chain(warm).filter(|resource| !own.contains(*resource));
    let missing: Vec<Resource> = missing.cloned().collect();
    for resource in missing {
        lose_before(leases, &resource, at, Found::Unread);
    }
    leases.acquiring.observe_only(&own, at);
}

/// Records a lock as it was seen with a warm grant. Returns whether it was. The grant is released if a
/// person asks for that, or if others wait for it and no caller of this pod, who would do so, does.
fn warm_seen(leases: &mut Leases, seen: &Stored<Lock>) -> bool {
    let (resource, now) = (&seen.value.resource, leases.env.now);
    let Some(warm) = leases.own.warm_mut(resource) else {
        return false;
    };
    if !seen.value.is_held_by(&warm.key()) {
        return false;
    }
    warm.observe(seen, now);
    let is_asked = warm.release_request().is_some();
    if is_asked || (warm.share.others_wait() && !leases.acquiring.is_awaited(resource, now)) {
        leases.release_warm(resource);
    }
    true
}

/// Records a lock as it was seen with the grant of a lease. Returns whether it was.
fn lease_seen(leases: &mut Leases, seen: &Stored<Lock>) -> bool {
    let (resource, now) = (&seen.value.resource, leases.env.now);
    let Some(held) = leases.own.held_mut(resource) else {
        return false;
    };
    if !seen.value.is_held_by(&held.key()) {
        return false;
    }
    if held.stored.version >= seen.version {
        return true;
    }
    let others = others_wait(&seen.value, &held.session);
    let others_are_news = others != held.share.others_wait();
    held.share.note_others(others, now);
    let before = held.release_request().cloned();
    // A new waiter changed the queue; the release then needs no read.
    held.stored = seen.clone();
    let request = held.release_request();
    let is_news = before.as_ref() != request;
    if is_news {
        if let Some(request) = request {
            let lease = held.lease.id.clone();
            let report = Report::ReleaseRequested(resource.clone(), lease, request.clone());
            leases.env.out.report(report);
        }
        leases.env.out.push(Effect::WakeStreams);
    }
    if others_are_news || is_news {
        // Callers of this pod may have to join the queue from now on.
        leases.changed.insert(resource.clone());
    }
    true
}

/// At this revision the session did not hold the lock: an older warm grant is gone. No app believed in
/// it.
fn forget_warm_before(leases: &mut Leases, resource: &Resource, at: Revision) {
    let warm = leases.own.warm(resource);
    if warm.is_some_and(|warm| warm.stored.version < at) {
        leases.own.take_warm(resource);
        leases.changed.insert(resource.clone());
        let lost = Report::WarmGrantLost(resource.clone());
        leases.env.out.report(lost);
    }
}

/// Ends a lease whose grant the store no longer names.
fn lose_gone(leases: &mut Leases, lease: &LeaseId, found: Found) {
    let Some(gone) = leases.own.lease(lease).map(Held::gone) else {
        return;
    };
    match found {
        Found::Read(lock) => {
            let loss = gone.loss(lock);
            if let Some(held) = leases.end_for_good(lease, End::Lost(loss)) {
                leases.env.out.report(gone.report(lease, lock));
                lose(leases, held, loss);
            }
        }
        Found::Unread => {
            let end = End::Lost(Loss::GrantGone);
            if let Some(held) = leases.end_for_good(lease, end) {
                let resource = held.stored.value.resource.clone();
                leases.own.explain_later(held);
                leases
                    .releases
                    .explain(lease.clone(), gone.grant, resource, &mut leases.env);
            }
        }
    }
}

/// Reports a lease that is over, and releases what the store may still have of it.
fn lose(leases: &mut Leases, mut held: Held, loss: Loss) {
    leases.report_loss(held.summary(leases.env.now), loss);
    let session = held.session.id.clone();
    let requests = held.closing.take().unwrap_or_default();
    leases.release(held.into_release(), requests);
    if loss == Loss::SessionRevoked {
        // What is acquired with it meanwhile would be lost again.
        leases.session.renew_now(&session, &mut leases.env);
    }
}

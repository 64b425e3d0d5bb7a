//! Selects the records of the observed objects: incidents, long-held and unreadable locks, ignored
//! release requests, foreign bindings, and pods without their sidecar.
//!
//! Pure. A later call returns records with the same names, so the recorder writes each once.

use crate::clock::Now;
use crate::protocol::lock::{Grant, Lock};
use crate::protocol::time::Moment;
use crate::store::fleet::{Object, ObjectRef};
use crate::store::namespaces::{Binding, UninjectedPod};

use super::audit::{self, AuditRecord};
use super::key::Key;
use super::rules::{BindSidecars, Rules};
use super::view::{LockObservation, Unreadable, View};

/// The maximum number of unreadable locks with an Event in each namespace.
const UNREADABLE_EVENTS_MAX: usize = 10;
/// The webhook never injects there, regardless of the labels.
const KUBE_SYSTEM: &str = "kube-system";

/// Returns all current records of an operator that has been active since `active_since`.
pub(super) fn all(
    view: &View,
    rules: &Rules,
    active_since: Moment,
    now: Now,
) -> impl Iterator<Item = AuditRecord> {
    let locks = view.locks();
    let locks = locks.flat_map(move |(object_ref, observation)| {
        audit::records_of(object_ref, observation, active_since)
    });
    let bindings = view.labelled().bindings();
    let foreign = bindings.filter(|found| is_foreign(view, rules, found));
    let foreign = foreign.map(move |found| audit::foreign_binding(found, now.wall));
    let pods = view.labelled().all_without_sidecar();
    let pods = pods.filter(|pod| is_reported(view, rules, pod));
    let pods = pods.map(move |pod| audit::not_injected(pod, now.wall));
    unreadable(view, now)
        .chain(locks)
        .chain(foreign)
        .chain(pods)
}

/// Returns the current records of one object.
pub(super) fn of_key(
    view: &View,
    rules: &Rules,
    key: &Key,
    active_since: Moment,
    now: Now,
) -> Vec<AuditRecord> {
    let labelled = view.labelled();
    match key {
        Key::Lock(object_ref) => {
            let records = |seen| audit::records_of(object_ref, seen, active_since).collect();
            view.lock(object_ref).map_or_else(Vec::new, records)
        }
        Key::Binding(namespace) => {
            let found = labelled.binding_of(namespace);
            let found = found.filter(|found| is_foreign(view, rules, found));
            let record = found.map(|found| audit::foreign_binding(found, now.wall));
            record.into_iter().collect()
        }
        Key::UninjectedPod(object_ref) => {
            let pod = labelled.without_sidecar(object_ref);
            let pod = pod.filter(|pod| is_reported(view, rules, pod));
            let record = pod.map(|pod| audit::not_injected(pod, now.wall));
            record.into_iter().collect()
        }
        Key::Session(_) | Key::Label(_) | Key::Leader(_) => Vec::new(),
    }
}

/// Returns the records of the first few unreadable locks of each namespace.
pub(super) fn unreadable(view: &View, now: Now) -> impl Iterator<Item = AuditRecord> {
    let mut namespace = None;
    let mut count = 0;
    let first = view.unreadable_locks().iter().filter(move |(lock, _)| {
        if namespace.as_ref() != Some(&lock.namespace) {
            namespace = Some(lock.namespace.clone());
            count = 0;
        }
        count += 1;
        count <= UNREADABLE_EVENTS_MAX
    });
    first.map(move |(lock, found)| unreadable_record(lock, found, now))
}

/// Returns the record of an unreadable lock, unless its namespace has too many.
pub(super) fn unreadable_lock(view: &View, lock: &ObjectRef, now: Now) -> Option<AuditRecord> {
    let others = view.unreadable_locks_in(&lock.namespace);
    let is_few = others.take(UNREADABLE_EVENTS_MAX + 1).count() <= UNREADABLE_EVENTS_MAX;
    let found = view.unreadable_locks().get(lock).filter(|_| is_few)?;
    Some(unreadable_record(lock, found, now))
}

fn unreadable_record(lock: &ObjectRef, found: &Unreadable, now: Now) -> AuditRecord {
    audit::unreadable(lock, &found.uid, &found.why, now.wall)
}

/// Returns the record of a new release request that names no grant of the lock. The view has not
/// observed this version of the lock yet.
pub(super) fn ignored_request(view: &View, lock: &Object<Lock>, now: Now) -> Option<AuditRecord> {
    let value = &lock.stored.value;
    let request = value.settings.release_request.as_ref()?;
    let before = view.lock(&lock.object_ref);
    let is_new = match before {
        Some(before) => before.release_request.as_ref() != Some(request),
        // The lock was created with it. A request in a list may be old.
        None => value.transitions == 0 && !view.is_listing_locks(),
    };
    let names = |grant: Option<&Grant>| grant.is_some_and(|grant| request.names(&grant.id));
    // The named grant may have ended just before.
    let held_before = before.and_then(LockObservation::grant);
    let is_ignored = is_new && !names(value.grant.as_ref()) && !names(held_before);
    is_ignored.then(|| audit::ignored_request(lock, request, now.wall))
}

/// Returns whether another user created a binding with the operator's name in a labelled namespace.
fn is_foreign(view: &View, rules: &Rules, found: &Object<Binding>) -> bool {
    rules.bind_sidecars != BindSidecars::None
        && !found.stored.value.is_ours
        && view.labelled().is_labelled(&found.object_ref.namespace)
}

/// Returns whether a pod that requests a sidecar and has none is reported, at once: its containers
/// cannot be changed. Without a report, its app would only see that nothing listens.
fn is_reported(view: &View, rules: &Rules, pod: &Object<UninjectedPod>) -> bool {
    let namespace = &pod.object_ref.namespace;
    let is_exempt = **namespace == *KUBE_SYSTEM || *namespace == rules.namespace;
    rules.report_uninjected && !is_exempt && view.labelled().is_labelled(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::plan;
    use crate::operator::tests::object;
    use crate::store::fleet::FeedEvent;

    #[test]
    fn missing_sidecar_is_reported_in_labelled_namespaces_only() {
        let rules = Rules {
            report_uninjected: true,
            ..plan::tests::rules()
        };
        let quiet = plan::tests::rules();
        let mut view = View::default();
        for namespace in ["n", "kube-system", "leasehold-system"] {
            let labelled = object("", namespace, 1, ());
            view.observe_namespace(FeedEvent::Applied(Box::new(labelled)));
        }
        for (namespace, expected) in [
            ("n", true),
            ("not-labelled", false),
            ("kube-system", false),
            ("leasehold-system", false),
        ] {
            let pod = object(namespace, "p", 1, UninjectedPod::default());
            assert_eq!(is_reported(&view, &rules, &pod), expected, "{namespace}");
            assert!(!is_reported(&view, &quiet, &pod));
        }
    }
}
